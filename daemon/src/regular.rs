//! Files that somebody else may have put something else in the place of: a pipe there would be waited for, for ever.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a regular file to read.
///
/// # Errors
/// It cannot be opened, or it is something else.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Looked at once it is open: what has its name may change. For a regular file O_NONBLOCK means nothing.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe, socket] = ["file", "pipe", "socket"].map(|name| folder.path().join(name));
        std::fs::write(&file, "text").unwrap();
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(open(&file).is_ok());
        for other in [&pipe, &socket, folder.path(), Path::new("/dev/null"), &folder.path().join("none")] {
            assert!(open(other).is_err(), "{}", other.display());
        }
    }
}
