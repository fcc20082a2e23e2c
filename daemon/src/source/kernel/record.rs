//! Turns the programs' records into observations: the one place that knows both.

use gpuadmit_abi::{
    ALLOCATION_FAILED, ALLOCATION_RETRIED, COMM_BYTES, CUDA_CALLS, EXEC, EXIT, FORK, HAS_MEMORY,
    OOM_SCORE_ADJ, OOM_VICTIM, Record, SIGNAL, WATCHED, XID,
};
use gpuadmit_core::{
    observation::{ProcessChange, ProcessEvent, Resident, Sender},
    units::{Bytes, Mono, Span},
};

use super::{
    exit::Status,
    pci::{self, Address},
};

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Something happened to a process; its id is 0 where only `tid`, one of its threads, is known.
    Process {
        /// What.
        event: ProcessEvent,
        /// The thread.
        tid: u32,
    },
    /// The driver reported an Xid.
    Xid {
        /// When.
        span: Span,
        /// Which GPU.
        device: Address,
        /// Its number.
        code: u64,
    },
}

/// What `bytes` say, with pages of `page` bytes; `None`: nothing that is understood.
#[must_use]
pub fn decode(bytes: &[u8], page: u64) -> Option<Told> {
    let record = Record::decode(bytes)?;
    let span = Span::at(Mono(record.time));
    if record.kind == XID {
        let device = pci::parse(&text(record.comm))?;
        return Some(Told::Xid { span, device, code: u64::try_from(record.value).ok()? });
    }
    let event = ProcessEvent {
        span,
        pid: record.pid,
        start_ticks: known(record.start),
        comm: text(record.comm),
        watched: record.flags & WATCHED != 0,
        what: change(&record, page)?,
    };
    Some(Told::Process { event, tid: record.tid })
}

fn change(record: &Record, page: u64) -> Option<ProcessChange> {
    Some(match record.kind {
        EXIT => Status(record.value).change(),
        SIGNAL => ProcessChange::Signal {
            number: record.value,
            code: record.detail,
            // `SI_FROMUSER` of linux/signal.h: what programs send has a code of 0 or below.
            sender: Sender { pid: record.other, comm: text(record.other_comm), kernel: record.detail > 0 },
        },
        OOM_VICTIM => ProcessChange::OomVictim { rss: resident(record, page), scope: None },
        OOM_SCORE_ADJ => ProcessChange::OomScoreAdjusted { from: None, to: record.value },
        FORK => ProcessChange::Forked { child: record.other, child_start_ticks: known(record.other_start) },
        EXEC => ProcessChange::Exec,
        ALLOCATION_FAILED => {
            ProcessChange::AllocationFailed { requested: Some(asked_for(record)), call: call(record)? }
        }
        ALLOCATION_RETRIED => {
            ProcessChange::AllocationRetried { requested: asked_for(record), call: call(record)? }
        }
        _ => return None,
    })
}

fn asked_for(record: &Record) -> Bytes {
    let [bytes, ..] = record.memory;
    Bytes(bytes)
}

fn call(record: &Record) -> Option<&'static str> {
    CUDA_CALLS.get(usize::try_from(record.value).ok()?).copied()
}

fn resident(record: &Record, page: u64) -> Option<Resident> {
    let [anonymous, file, shared] = record.memory.map(|pages| Bytes(pages.saturating_mul(page)));
    (record.flags & HAS_MEMORY != 0).then_some(Resident { anonymous, file, shared })
}

fn known(start: u64) -> Option<u64> {
    (start != 0).then_some(start)
}

/// A task's name: any bytes that the process liked, up to a zero.
fn text(comm: [u8; COMM_BYTES]) -> Box<str> {
    let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    printable(&String::from_utf8_lossy(name))
}

/// A process's name without what would move a terminal's cursor.
pub(super) fn printable(name: &str) -> Box<str> {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as its fields lie in memory, by hand.
    fn bytes(kind: u32, flags: u32, value: i32, detail: i32) -> Vec<u8> {
        let mut bytes = vec![];
        for wide in [7_u64, 100, 0, 3, 2, 1] {
            bytes.extend(wide.to_ne_bytes());
        }
        for word in [kind, flags, 42, 43, 44] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [value, detail, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(*b"VLLM::EngineCor\0earlyoom\x1b[m\0\0\0\0\0");
        bytes
    }

    fn process(kind: u32, flags: u32, value: i32, detail: i32) -> ProcessEvent {
        match decode(&bytes(kind, flags, value, detail), 4096) {
            Some(Told::Process { event, tid: 43 }) => event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_kill_names_who_sent_it() {
        let event = process(SIGNAL, WATCHED, 9, 0);
        assert_eq!((event.pid, event.start_ticks, &*event.comm), (42, Some(100), "VLLM::EngineCor"));
        assert_eq!((event.span, event.watched), (Span::at(Mono(7)), true));
        let sender = Sender { pid: 44, comm: "earlyoom?[m".into(), kernel: false };
        assert_eq!(event.what, ProcessChange::Signal { number: 9, code: 0, sender });
    }

    #[test]
    fn an_exit_is_decoded_as_wait_does() {
        let exit = |value| process(EXIT, WATCHED, value, 0).what;
        assert_eq!(exit(0x300), ProcessChange::Exit { code: Some(3), signal: None });
        assert_eq!(exit(9), ProcessChange::Exit { code: None, signal: Some(9) });
        // With a core dump.
        assert_eq!(exit(0x8b), ProcessChange::Exit { code: None, signal: Some(11) });
    }

    #[test]
    fn memory_that_is_not_known_is_not_zero() {
        let victim = |flags| match process(OOM_VICTIM, flags, 0, 0).what {
            ProcessChange::OomVictim { rss, .. } => rss,
            other => panic!("{other:?}"),
        };
        let [anonymous, file, shared] = [12288, 8192, 4096].map(Bytes);
        assert_eq!(victim(HAS_MEMORY), Some(Resident { anonymous, file, shared }));
        assert_eq!(victim(0), None);
    }

    #[test]
    fn a_failed_allocation_names_its_call_and_what_was_asked_for() {
        // The first of the three amounts of memory, by hand, is 3.
        let (requested, call) = (Some(Bytes(3)), "cuMemCreate");
        assert_eq!(
            process(ALLOCATION_FAILED, WATCHED, 5, 0).what,
            ProcessChange::AllocationFailed { requested, call }
        );
        for unknown in [9, -1] {
            assert_eq!(decode(&bytes(ALLOCATION_FAILED, WATCHED, unknown, 0), 4096), None);
        }
    }

    #[test]
    fn unknown_kinds_and_lengths_say_nothing() {
        assert_eq!(decode(&bytes(99, 0, 0, 0), 4096), None);
        assert_eq!(decode(&bytes(EXIT, 0, 0, 0)[1..], 4096), None);
        assert_eq!(decode(&[], 4096), None);
    }
}
