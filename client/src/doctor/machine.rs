//! The files of a machine, below any root.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Most bytes read of one file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 65_536;

/// Room in a file system, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// What the daemon may still write.
    pub(crate) free: u64,
    /// All of it.
    pub(crate) total: u64,
}

/// The machine whose root folder this is.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
    space: fn(&Path) -> Option<Space>,
}

/// What the permissions of a file are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) is_socket: bool,
    pub(crate) is_folder: bool,
}

/// What one may want of a file; values are the bits of one of the three groups of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Read = 0o4,
    ReadWrite = 0o6,
    /// To make files in a folder.
    Fill = 0o3,
}

/// Who wants something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    /// First the primary group.
    pub(crate) groups: Vec<u32>,
}

impl Access {
    /// Whether `who` may do `what` by the mode alone; root may always.
    pub(crate) fn allows(self, who: &Identity, what: Want) -> bool {
        let bits = if who.uid == self.uid {
            self.mode >> 6
        } else if who.groups.contains(&self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        let wanted = what as u32;
        who.uid == 0 || bits & wanted == wanted
    }
}

impl Machine {
    /// The one below `root`.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, space }
    }

    /// The same, with file systems whose room `space` tells.
    #[cfg(test)]
    pub(crate) fn with_space(self, space: fn(&Path) -> Option<Space>) -> Self {
        Self { space, ..self }
    }

    /// Whether it is the one that this runs on.
    pub(crate) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where an absolute `path` of that machine is for us.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, cut after [`MAX_FILE_BYTES`].
    pub(crate) fn try_read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut bytes = vec![];
        File::open(self.path(path))?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a file; `None`: it is not there, or not for us.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        self.try_read(path).ok()
    }

    /// The text of a file with one line.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.read(path)?.trim().to_owned())
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Names in a folder, sorted; none where there is no such folder.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten().take(MAX_ENTRIES);
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// File name of what a link leads to in the end.
    pub(crate) fn link_target(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::canonicalize(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// What a link says, whether that is there or not.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        fs::read_link(self.path(path)).ok()
    }

    pub(crate) fn access(&self, path: impl AsRef<Path>) -> io::Result<Access> {
        let file = fs::metadata(self.path(path))?;
        Ok(Access {
            uid: file.uid(),
            gid: file.gid(),
            mode: file.mode() & 0o7777,
            is_socket: file.file_type().is_socket(),
            is_folder: file.is_dir(),
        })
    }

    /// Room in the file system of `path`.
    pub(crate) fn space(&self, path: impl AsRef<Path>) -> Option<Space> {
        (self.space)(&self.path(path))
    }

    /// Bytes of the files directly in a folder.
    pub(crate) fn bytes_in(&self, path: impl AsRef<Path>) -> u64 {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten().take(MAX_ENTRIES);
        entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
    }
}

fn space(path: &Path) -> Option<Space> {
    let room = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
    Some(Space { free: bytes(room.f_bavail), total: bytes(room.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_the_first_group_that_fits() {
        let file = Access { uid: 5, gid: 7, mode: 0o640, is_socket: false, is_folder: false };
        let who = |uid, groups: &[u32]| Identity { uid, groups: groups.to_vec() };
        assert!(file.allows(&who(5, &[]), Want::ReadWrite));
        assert!(file.allows(&who(6, &[1, 7]), Want::Read));
        assert!(!file.allows(&who(6, &[1, 7]), Want::ReadWrite));
        assert!(!file.allows(&who(6, &[1]), Want::Read));
        assert!(file.allows(&who(0, &[]), Want::ReadWrite));
        // The owner is no "other": its own bits count although those of others are wider.
        let strange = Access { mode: 0o066, ..file };
        assert!(!strange.allows(&who(5, &[7]), Want::Read));
    }
}
