//! Links of one program to many places in a file, `BPF_TRACE_UPROBE_MULTI` of bpf(2), for which aya has no words: the
//! programs are loaded here, with that as the type that they will be attached as.

use std::{
    collections::{HashMap, HashSet},
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::{
    Object,
    generated::{
        bpf_attach_type::BPF_TRACE_UPROBE_MULTI, bpf_attr, bpf_cmd, bpf_insn,
        bpf_prog_type::BPF_PROG_TYPE_KPROBE,
    },
};

/// `BPF_F_UPROBE_MULTI_RETURN` of linux/bpf.h: on return.
const ON_RETURN: u32 = 1;

/// Maps that the programs use, by name.
pub(in crate::source::kernel) type Maps = HashMap<String, RawFd>;

/// Loaded programs, by name.
pub(super) struct Multi(HashMap<String, OwnedFd>);

impl Multi {
    /// Loads the programs called `names` of the object file in `bytes`.
    ///
    /// # Errors
    /// One sentence; also on kernels that have no such links.
    pub(super) fn load<'a>(
        bytes: &[u8],
        maps: &Maps,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let mut object = Object::parse(bytes).map_err(|error| error.to_string())?;
        let code: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let described = std::mem::take(&mut object.maps);
        let known = described.iter().filter_map(|(name, map)| Some((name.as_str(), *maps.get(name)?, map)));
        object.relocate_maps(known, &code).map_err(|error| error.to_string())?;
        object.relocate_calls(&code).map_err(|error| error.to_string())?;
        let load = |name: &str| {
            let program = object.programs.get(name).ok_or_else(|| format!("there is no program {name}"))?;
            let function = object.functions.get(&program.function_key());
            let instructions = &function.ok_or_else(|| format!("program {name} is empty"))?.instructions;
            let loaded = load(instructions, &program.license).map_err(|error| error.to_string())?;
            Ok((name.to_owned(), loaded))
        };
        let programs: HashMap<String, OwnedFd> = names.map(load).collect::<Result<_, String>>()?;
        programs.values().next().map_or(Ok(()), links)?;
        Ok(Self(programs))
    }

    /// Links a program to all of `places`, bytes from the start of the file at `path`.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn attach(
        &self,
        name: &str,
        path: &str,
        places: &[u64],
        on_return: bool,
    ) -> Result<OwnedFd, String> {
        let program = self.0.get(name).ok_or_else(|| format!("there is no program {name}"))?;
        link(program, path, places, on_return).map_err(|error| error.to_string())
    }
}

/// Whether the kernel has such links: older ones load a program without a look at the type of its links.
fn links(program: &OwnedFd) -> Result<(), String> {
    match link(program, "/", &[0], false) {
        // "/" is no regular file: it got as far as that.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("a folder was probed".into()),
    }
}

fn load(instructions: &[bpf_insn], license: &CString) -> io::Result<OwnedFd> {
    // SAFETY: all of its parts are numbers, for which zeros are values.
    let mut attributes: bpf_attr = unsafe { std::mem::zeroed() };
    // SAFETY: this is the part that BPF_PROG_LOAD reads, and all its parts are numbers.
    let program = unsafe { &mut attributes.__bindgen_anon_3 };
    program.prog_type = BPF_PROG_TYPE_KPROBE as u32;
    program.expected_attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    program.insns = instructions.as_ptr() as u64;
    program.insn_cnt = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    program.license = license.as_ptr() as u64;
    call(bpf_cmd::BPF_PROG_LOAD, &attributes)
}

fn link(program: &OwnedFd, path: &str, places: &[u64], on_return: bool) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    // SAFETY: all of its parts are numbers, for which zeros are values.
    let mut attributes: bpf_attr = unsafe { std::mem::zeroed() };
    // SAFETY: this is the part that BPF_LINK_CREATE reads, and all its parts are numbers.
    let link = unsafe { &mut attributes.link_create };
    link.__bindgen_anon_1.prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    link.attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    link.__bindgen_anon_3.uprobe_multi.path = path.as_ptr() as u64;
    link.__bindgen_anon_3.uprobe_multi.offsets = places.as_ptr() as u64;
    link.__bindgen_anon_3.uprobe_multi.cnt = u32::try_from(places.len()).map_err(io::Error::other)?;
    link.__bindgen_anon_3.uprobe_multi.flags = if on_return { ON_RETURN } else { 0 };
    call(bpf_cmd::BPF_LINK_CREATE, &attributes)
}

/// bpf(2) with a command that makes a file.
fn call(command: bpf_cmd, attributes: &bpf_attr) -> io::Result<OwnedFd> {
    let (place, size) = (std::ptr::from_ref(attributes), size_of::<bpf_attr>());
    // SAFETY: the call reads that many bytes there, and what the addresses in them point to lives until it returns.
    let file = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, place, size) };
    match RawFd::try_from(file) {
        // SAFETY: it was just made and is nobody else's.
        Ok(file) if file >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(io::Error::last_os_error()),
    }
}
