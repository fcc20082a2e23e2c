//! `SO_PEERGROUPS` (unix(7), Linux 4.13): the supplementary groups of the process at the other end of a Unix socket.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Most groups a process can have: `NGROUPS_MAX`.
const MAX_GROUPS: usize = 65_536;

/// Supplementary groups of the peer of `socket`, as they were when it connected.
///
/// # Errors
/// The kernel's.
pub(super) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let bytes = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: `groups` owns `length` writable bytes; the kernel writes at most `length` and sets it.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: too short; the kernel has set the length it needs.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd as _, unix::net::UnixStream};

    use nix::unistd::getgroups;

    use super::*;

    #[test]
    fn groups_of_the_peer_are_those_of_this_process() {
        let (here, _there) = UnixStream::pair().unwrap();
        let mine: Vec<u32> = getgroups().unwrap().into_iter().map(nix::unistd::Gid::as_raw).collect();
        assert_eq!(peer_groups(here.as_fd()).unwrap(), mine);
    }
}
