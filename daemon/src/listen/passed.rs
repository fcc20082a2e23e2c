//! Socket activation: the listener that systemd passes as file descriptor 3 (sd_listen_fds(3)).

use std::{
    io,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::net::UnixListener,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::socket::{getsockopt, sockopt};

/// The passed listener; `None` when none was passed, or it was taken before.
///
/// # Errors
/// What was passed is not one listening Unix stream socket.
pub(super) fn listener() -> io::Result<Option<UnixListener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);

    let mut passed = sd_notify::listen_fds()?;
    let Some(fd) = passed.next() else { return Ok(None) };
    if passed.next().is_some() {
        return Err(io::Error::other("more than one was passed"));
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(None);
    }
    // SAFETY: systemd opened this descriptor for this process, nothing else here uses it, and it is taken once.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if !getsockopt(&fd, sockopt::AcceptConn)? {
        return Err(io::Error::other("it does not listen"));
    }
    let listener = UnixListener::from(fd);
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}
