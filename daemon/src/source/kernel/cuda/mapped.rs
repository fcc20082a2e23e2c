//! Finds the libcuda that a process has mapped (`/proc/PID/maps`, proc_pid_maps(5)). Takes any bytes.

use std::io;

/// Most bytes read of one process's maps: some 80,000 lines.
const MAX_BYTES: u64 = 8 << 20;
/// How the file's name begins: `libcuda.so.1`, `libcuda.so.550.54.15`.
const NAME: &str = "libcuda.so";

/// A mapped libcuda.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// As the process sees it.
    pub path: String,
    /// Inode of the file.
    pub inode: u64,
}

/// That of process `pid`; `None`: it has none.
///
/// # Errors
/// That of reading, which takes CAP_SYS_PTRACE where the process is another user's; a file that is mapped but has been
/// removed.
pub fn of(pid: u32) -> io::Result<Option<Mapped>> {
    let found = parse(&super::super::offsets::read(format!("/proc/{pid}/maps").as_ref(), MAX_BYTES)?);
    if found.as_ref().is_some_and(|mapped| mapped.path.ends_with(" (deleted)")) {
        return Err(io::Error::other("its libcuda has been removed from the disk"));
    }
    Ok(found)
}

/// The first in `maps`. A line is `7f00-7f01 r-xp 00001000 fe:00 1234   /usr/lib/libcuda.so.1`.
#[must_use]
pub fn parse(maps: &[u8]) -> Option<Mapped> {
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let (head, path) = line.split_at_checked(line.find('/')?)?;
        let name = path.rsplit('/').next()?;
        let (_, permissions, _, _, inode) = fields(head)?;
        (name.starts_with(NAME) && permissions.contains('x'))
            .then(|| Some(Mapped { path: path.to_owned(), inode: inode.parse().ok()? }))?
    })
}

fn fields(head: &str) -> Option<(&str, &str, &str, &str, &str)> {
    let mut fields = head.split_ascii_whitespace();
    Some((fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c8000000-55d0c8001000 r--p 00000000 fe:00 11                         /usr/bin/python3.11
7f3a10000000-7f3a10200000 r--p 00000000 fe:00 4711                       /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
7f3a10200000-7f3a11000000 r-xp 00200000 fe:00 4711                       /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
7f3a20000000-7f3a20001000 rw-p 00000000 00:00 0 
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn the_mapped_library_is_named_with_its_inode() {
        let path = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15".to_owned();
        assert_eq!(parse(MAPS.as_bytes()), Some(Mapped { path, inode: 4711 }));
    }

    #[test]
    fn the_runtime_library_and_data_files_are_none() {
        let other = MAPS.replace("libcuda.so", "libcudart.so");
        assert_eq!(parse(other.as_bytes()), None);
        assert_eq!(parse(MAPS.replace("r-xp", "r--p").as_bytes()), None);
        assert_eq!(parse(b""), None);
    }
}
