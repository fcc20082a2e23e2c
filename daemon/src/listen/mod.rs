//! The Unix socket that callers come in by: made here, or passed by systemd.
//!
//! Two daemons never serve one path: each holds a lock on `PATH.lock` as long as it lives. The lock file stays, since
//! removing it would let a third daemon lock another file of the same name; the socket itself is removed at exit.

mod authority;
mod incoming;
mod passed;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::{
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket},
        stat::{FchmodatFlags, Mode, fchmodat},
    },
    unistd::{Group, chown},
};

pub use self::incoming::{Connection, Incoming};
use crate::config::Socket;

/// Connections that the kernel holds before they are accepted.
const BACKLOG: i32 = 128;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon holds the lock.
    #[error("another gpuadmitd serves {0}; stop it, or give this one another --socket")]
    Locked(PathBuf),
    /// Something answers at the path.
    #[error("another program serves {0}; stop it, or give this daemon another --socket")]
    InUse(PathBuf),
    /// The socket's folder does not exist.
    #[error("socket.path: there is no folder {0}; make it, or give this daemon another --socket")]
    NoFolder(PathBuf),
    /// Something else than a socket is at the path, and is left alone.
    #[error("{0} exists and is not a socket; remove it, or give this daemon another --socket")]
    NotASocket(PathBuf),
    /// The configured group does not exist.
    #[error("socket.group: there is no group {0:?}; one of this machine, as `getent group` lists them")]
    NoGroup(String),
    /// What systemd passed is no listening Unix socket.
    #[error("the socket passed by systemd is not a listening Unix stream socket: {0}")]
    Passed(io::Error),
    /// A system call failed.
    #[error("cannot {doing} {path}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// A listening socket. A socket file of our own is removed when this is dropped.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    file_gid: Option<u32>,
    file_mode: Option<u32>,
    own: Option<OwnFile>,
}

/// A socket file that we made, and the lock that keeps others from the path.
#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    inode: (u64, u64),
    _lock: Flock<File>,
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.inode);
        if ours {
            // At exit nobody is left to tell; the next daemon finds it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Bound {
    /// The socket that systemd passed, else a new one at the configured path.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn new(socket: &Socket) -> Result<Self, ListenError> {
        match passed::listener().map_err(ListenError::Passed)? {
            Some(listener) => Ok(Self::passed(listener)),
            None => Self::make(socket),
        }
    }

    /// Group that owns the socket file, where that is known.
    #[must_use]
    pub const fn file_gid(&self) -> Option<u32> {
        self.file_gid
    }

    /// Permission bits of the socket file, where they are known.
    #[must_use]
    pub const fn file_mode(&self) -> Option<u32> {
        self.file_mode
    }

    fn passed(listener: UnixListener) -> Self {
        let address = listener.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        let file = path.and_then(|path| fs::metadata(path).ok());
        let (file_gid, file_mode) = file.map(|file| (file.gid(), file.mode())).unzip();
        Self { listener, file_gid, file_mode, own: None }
    }

    /// The listener, once more; it ends with the process's last.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// A new socket at the configured path.
    pub(crate) fn make(socket: &Socket) -> Result<Self, ListenError> {
        let path = socket.path.as_path();
        make_folder(path)?;
        let lock = lock(path)?;
        remove_stale(path)?;
        // Nobody can connect before `listen`, so the file has its owner and mode before it has callers.
        let fd = bound(path)?;
        let system = |doing| move |error: Errno| system_error(doing, path, error);
        if let Some(name) = &socket.group {
            let group = Group::from_name(name).map_err(system("look up the group of"))?;
            let gid = group.ok_or_else(|| ListenError::NoGroup(name.clone()))?.gid;
            chown(path, None, Some(gid)).map_err(system("set the group of"))?;
        }
        let mode = Mode::from_bits_truncate(socket.mode_bits().unwrap_or(0o600));
        let at = nix::fcntl::AT_FDCWD;
        fchmodat(at, path, mode, FchmodatFlags::FollowSymlink).map_err(system("set the mode of"))?;
        let file = fs::symlink_metadata(path).map_err(|source| io_error("inspect", path, source))?;
        let backlog = Backlog::new(BACKLOG).map_err(system("listen on"))?;
        listen(&fd, backlog).map_err(system("listen on"))?;
        let inode = (file.dev(), file.ino());
        let own = OwnFile { path: path.to_owned(), inode, _lock: lock };
        let (file_gid, file_mode) = (Some(file.gid()), Some(file.mode()));
        Ok(Self { listener: UnixListener::from(fd), file_gid, file_mode, own: Some(own) })
    }
}

fn system_error(doing: &'static str, path: &Path, error: Errno) -> ListenError {
    io_error(doing, path, error.into())
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> ListenError {
    ListenError::System { doing, path: path.to_owned(), source }
}

/// The folder of the socket, for a daemon started by hand; under systemd it is `RuntimeDirectory=`. Only that of the default
/// path is made: the lock and what was promised stay in it, and a path that was mistyped would leave them anywhere.
fn make_folder(path: &Path) -> Result<(), ListenError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if path != Socket::default().path {
        return if folder.is_dir() { Ok(()) } else { Err(ListenError::NoFolder(folder.to_owned())) };
    }
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error("create the folder", folder, error))
        }
        _ => Ok(()),
    }
}

fn lock(path: &Path) -> Result<Flock<File>, ListenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
    let file = file.map_err(|source| io_error("open", &lock_path, source))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => ListenError::Locked(path.to_owned()),
        error => system_error("lock", &lock_path, error),
    })
}

/// Removes a socket file that nobody listens on any more.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("inspect", path, error)),
    };
    if !file.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    let system = |doing| move |error: Errno| system_error(doing, path, error);
    let probe = unix_socket().map_err(system("probe"))?;
    let address = UnixAddr::new(path).map_err(system("probe"))?;
    match connect(probe.as_raw_fd(), &address) {
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(|error| io_error("remove", path, error)),
        // EAGAIN: it listens, and its queue is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(ListenError::InUse(path.to_owned())),
        Err(error) => Err(system_error("probe", path, error)),
    }
}

fn bound(path: &Path) -> Result<OwnedFd, ListenError> {
    let system = |error| system_error("bind", path, error);
    let fd = unix_socket().map_err(system)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path).map_err(system)?).map_err(system)?;
    Ok(fd)
}

fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn at(path: PathBuf) -> Socket {
        Socket { path, ..Socket::default() }
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_file_has_the_configured_mode_and_is_removed_at_the_end() {
        let folder = folder();
        let path = folder.path().join("s");
        let bound = Bound::new(&at(path.clone())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        assert_eq!(bound.file_gid(), Some(fs::metadata(&path).unwrap().gid()));
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_second_daemon_on_the_same_path_is_refused() {
        let folder = folder();
        let socket = at(folder.path().join("s"));
        let first = Bound::new(&socket).unwrap();
        assert!(matches!(Bound::new(&socket), Err(ListenError::Locked(_))));
        assert!(UnixStream::connect(&socket.path).is_ok(), "the first still listens");
        drop(first);
        assert!(Bound::new(&socket).is_ok());
    }

    #[test]
    fn no_folder_is_made_for_a_path_that_was_mistyped() {
        let folder = folder();
        let socket = at(folder.path().join("misspelt").join("s"));
        let error = Bound::new(&socket).unwrap_err();
        assert!(matches!(error, ListenError::NoFolder(_)), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_stale_file_is_replaced() {
        let folder = folder();
        let socket = at(folder.path().join("s"));
        drop(UnixListener::bind(&socket.path).unwrap());
        assert!(socket.path.exists());
        assert!(Bound::new(&socket).is_ok());
    }

    #[test]
    fn another_programs_socket_is_left_alone() {
        let folder = folder();
        let socket = at(folder.path().join("s"));
        let _other = UnixListener::bind(&socket.path).unwrap();
        assert!(matches!(Bound::new(&socket), Err(ListenError::InUse(_))));
        assert!(UnixStream::connect(&socket.path).is_ok());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = folder();
        let socket = at(folder.path().join("s"));
        fs::write(&socket.path, "precious").unwrap();
        assert!(matches!(Bound::new(&socket), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&socket.path).unwrap(), "precious");
    }

    #[test]
    fn a_group_that_does_not_exist_is_told() {
        let folder = folder();
        let mut socket = at(folder.path().join("s"));
        socket.group = Some("no-such-group".into());
        let error = Bound::new(&socket).unwrap_err();
        assert_eq!(
            error.to_string(),
            "socket.group: there is no group \"no-such-group\"; one of this machine, as `getent group` lists them"
        );
    }
}
