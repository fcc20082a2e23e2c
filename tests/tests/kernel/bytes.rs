//! Whatever bytes come, the readers end, and none panics.

use std::{hint::black_box, sync::LazyLock};

use gpuadmitd::source::kernel::{
    btf::Btf,
    cuda::{mapped, release, symbols},
    format, kmsg, pci, record,
};
use proptest::prelude::*;

/// The description of the running kernel, if it has one.
static REAL: LazyLock<Vec<u8>> =
    LazyLock::new(|| std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default());

/// Asks all that the daemon asks of a kernel.
fn ask(btf: &Btf<'_>) {
    for (structure, member) in
        [("task_struct", "tgid"), ("mm_struct", "rss_stat"), ("kernel_siginfo", "si_code")]
    {
        if let Some(member) = btf.member(structure, member) {
            black_box(btf.structure_name(member.kind));
            black_box(btf.element_bytes(member.kind));
        }
    }
    black_box(btf.tracepoint("mark_victim"));
}

/// A header whose parts lie inside, and anything in them.
fn described() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::collection::vec(
        prop_oneof![0_u32..32, (0_u32..32).prop_map(|kind| kind << 24 | 2), any::<u32>()],
        0..64,
    );
    (words, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(types, names)| {
        let length = u32::try_from(types.len() * 4).unwrap();
        let mut bytes = [0xeb9f_u16.to_ne_bytes(), [1, 0]].concat();
        let header = [24, 0, length, length, u32::try_from(names.len()).unwrap()];
        bytes.extend(header.iter().chain(&types).flat_map(|word| word.to_ne_bytes()));
        bytes.extend(names);
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..256), page in any::<u64>()) {
        black_box(record::decode(&bytes, page));
    }

    #[test]
    fn any_record_of_the_right_length_is_read(bytes in prop::collection::vec(any::<u8>(), 112), kind in 0_u32..10) {
        let mut bytes = bytes;
        bytes[48..52].copy_from_slice(&kind.to_ne_bytes());
        black_box(record::decode(&bytes, 4096));
    }

    #[test]
    fn any_bytes_may_describe_types(bytes in prop_oneof![described(), prop::collection::vec(any::<u8>(), 0..512)]) {
        if let Ok(btf) = Btf::parse(&bytes) {
            ask(&btf);
        }
    }

    #[test]
    fn any_bytes_may_describe_a_tracepoint(bytes in prop::collection::vec(any::<u8>(), 0..512), text in "field:[ -~]{0,40};?(\toffset:[0-9]{0,12};)?") {
        black_box(format::offset(&bytes, "pid"));
        black_box(format::offset(text.as_bytes(), "pid"));
    }

    #[test]
    fn any_bytes_may_be_a_process_maps_or_a_release(bytes in prop::collection::vec(any::<u8>(), 0..512), text in "([0-9a-f]{1,4}-[0-9a-f]{1,4} r-xp [0-9]{1,3} fe:00 [0-9]{1,22} ?)?/?[ -~]{0,20}libcuda.so[ -~]{0,9}") {
        black_box(mapped::parse(&bytes));
        black_box(mapped::parse(text.as_bytes()));
        black_box(release::refusal(&text));
    }

    #[test]
    fn any_file_may_be_a_library(mut bytes in prop::collection::vec(any::<u8>(), 64..512), headers in 0_u8..8) {
        // The begin of an ELF file of this machine's kind, and few headers, so that some are looked at.
        bytes[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        bytes[32..48].fill(0);
        (bytes[32], bytes[40], bytes[56], bytes[60]) = (64, 64, headers, headers);
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let _ = black_box(symbols::offsets(&file));
    }

    #[test]
    fn any_bytes_may_be_a_line_of_the_log(bytes in prop::collection::vec(any::<u8>(), 0..512), text in "[0-9]{1,3},1,2,-;(NVRM: Xid \\(PCI:|oom-kill:constraint=)[ -~]{0,80}") {
        black_box(kmsg::parse(&bytes));
        black_box(kmsg::parse(text.as_bytes()));
        black_box(pci::parse(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_real_description_with_wrong_bytes_in_it_is_read_or_refused(at in any::<prop::sample::Index>(), wrong in any::<[u8; 8]>(), length in any::<prop::sample::Index>()) {
        if REAL.is_empty() {
            return Ok(());
        }
        let mut bytes = REAL.clone();
        let at = at.index(bytes.len() - wrong.len());
        bytes[at..at + wrong.len()].copy_from_slice(&wrong);
        if let Ok(btf) = Btf::parse(&bytes) {
            ask(&btf);
        }
        let _ = Btf::parse(&REAL[..length.index(REAL.len())]);
    }
}
