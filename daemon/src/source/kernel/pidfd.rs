//! Files that stand for processes (pidfd_open(2)): they become readable when the process has ended.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use super::{
    exit::Status,
    rights::{Right, Rights},
};

/// `PIDFD_INFO_EXIT` of linux/pidfd.h, Linux 6.15: the status of a process that was reaped.
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)` of the structure's first version, 64 bytes.
const GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
/// Attempts to read the status of a process that its parent may reap at any moment.
const ATTEMPTS: usize = 3;
/// Most bytes looked at of `/proc/PID/stat`.
const MAX_STAT_BYTES: u64 = 4096;

/// The first version of `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// A process, whatever its id comes to stand for later.
#[derive(Debug)]
pub struct Pidfd {
    pid: u32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens it.
    ///
    /// # Errors
    /// That of pidfd_open(2), Linux 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes two numbers and returns a new file descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: it was just made and is nobody else's.
            Ok(fd) if fd >= 0 => Ok(Self { pid, fd: unsafe { OwnedFd::from_raw_fd(fd) } }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// How it ended, once it has: from `/proc` as long as its parent has not reaped it, then from the kernel where it
    /// keeps the status (Linux 6.15). `None`: unknown.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        (0..ATTEMPTS).find_map(|_| self.of_zombie().or_else(|| self.of_reaped()))
    }

    fn of_zombie(&self) -> Option<Status> {
        let bytes = super::offsets::read(format!("/proc/{}/stat", self.pid).as_ref(), MAX_STAT_BYTES).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        // Fields from the third, `state`, on; the last, the 52nd, is `exit_code`.
        if fields.next()? != "Z" {
            return None;
        }
        let code = fields.nth(48)?.parse().ok()?;
        // Whom we may not look into is shown with zeros.
        (code != 0 || self.may_look()).then_some(Status(code))
    }

    fn may_look(&self) -> bool {
        let ours = fs::metadata("/proc/self").ok().map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        let its = fs::metadata(format!("/proc/{}", self.pid)).ok();
        Rights::own().has(Right::SysPtrace)
            || its.map(|its| std::os::unix::fs::MetadataExt::uid(&its)) == ours
    }

    fn of_reaped(&self) -> Option<Status> {
        let mut info = Info { mask: INFO_EXIT, ..Info::default() };
        // SAFETY: the call writes at most the 64 bytes that its number says, which `info` has.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        (done == 0 && info.mask & INFO_EXIT != 0).then_some(Status(info.exit_code))
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const _: () = assert!(size_of::<Info>() == 64);

    #[test]
    fn a_zombie_tells_how_it_ended() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let process = Pidfd::open(child.id()).unwrap();
        let mut fds = [nix::poll::PollFd::new(process.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 10_000_u16), Ok(1));
        assert_eq!(process.status(), Some(Status(0x300)));
        child.wait().unwrap();
        // Reaped: what is told then is right, or nothing.
        assert!(matches!(process.status(), None | Some(Status(0x300))));
    }
}
