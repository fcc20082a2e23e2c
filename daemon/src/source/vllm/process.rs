//! What `/proc` tells of processes and listeners (proc(5)). Its root is a parameter, so that tests can have their own.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Most processes looked at.
pub const MAX_PROCESSES: usize = 65_536;
/// Most bytes read of a `stat` or a `status` file.
const MAX_STAT_BYTES: u64 = 4096;
/// Most bytes read of a command line.
const MAX_CMDLINE_BYTES: u64 = 128 * 1024;
/// Most bytes read of an environment.
const MAX_ENVIRON_BYTES: u64 = 512 * 1024;
/// Most bytes read of a table of sockets: some 50,000 connections.
const MAX_SOCKETS_BYTES: u64 = 8 << 20;
/// Most open files looked at of one process.
const MAX_FILES: usize = 65_536;
/// `PF_KTHREAD` of linux/sched.h: a thread of the kernel, which never becomes a program.
const PF_KTHREAD: u64 = 0x0020_0000;
/// State of a listening socket (`TCP_LISTEN` of net/tcp_states.h), as `/proc/net/tcp` writes it.
const LISTENING: &str = "0A";

/// A process that cannot be mistaken for a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
}

/// What `/proc/PID/stat` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Which process.
    pub identity: Identity,
    /// Name, at most 15 bytes.
    pub comm: String,
    /// Parent.
    pub parent: u32,
    /// Whether it is a thread of the kernel.
    pub kernel: bool,
    /// Whether it has ended and only waits to be reaped.
    pub ended: bool,
}

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its port.
    pub port: u16,
    /// Its inode, by which its owner is found.
    pub inode: u64,
}

/// The `/proc` file system or a likeness of it.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
}

impl Proc {
    /// The one below `root`, usually `/proc`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Ids of all processes, at most [`MAX_PROCESSES`].
    ///
    /// # Errors
    /// That of reading the directory.
    pub fn pids(&self) -> io::Result<BTreeSet<u32>> {
        let names = fs::read_dir(&self.root)?.filter_map(Result::ok).map(|entry| entry.file_name());
        Ok(names.filter_map(|name| name.to_str()?.parse().ok()).take(MAX_PROCESSES).collect())
    }

    /// `/proc/PID/stat`; `None` when the process is gone.
    #[must_use]
    pub fn stat(&self, pid: u32) -> Option<Stat> {
        let text = self.read(&format!("{pid}/stat"), MAX_STAT_BYTES)?;
        // The name may hold spaces and parentheses: the last one ends it.
        let text = String::from_utf8_lossy(&text);
        let (head, tail) = text.rsplit_once(')')?;
        let (_, comm) = head.split_once('(')?;
        // Fields from the third, `state`, on.
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field.checked_sub(3)?)?.parse::<u64>().ok();
        let identity = Identity { pid, start_ticks: number(22)? };
        let parent = u32::try_from(number(4)?).ok()?;
        let ended = matches!(fields.first(), Some(&("Z" | "X")));
        Some(Stat { identity, comm: comm.into(), parent, kernel: number(9)? & PF_KTHREAD != 0, ended })
    }

    /// The user that started it: its real user id (`Uid` of `/proc/PID/status`). Not the owner of `/proc/PID`, which the
    /// process can make root. `None` when it is gone.
    #[must_use]
    pub fn uid(&self, pid: u32) -> Option<u32> {
        let text = self.read(&format!("{pid}/status"), MAX_STAT_BYTES)?;
        let text = String::from_utf8_lossy(&text);
        let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        ids.split_ascii_whitespace().next()?.parse().ok()
    }

    /// Arguments; empty when they cannot be read.
    #[must_use]
    pub fn args(&self, pid: u32) -> Vec<String> {
        let text = self.read(&format!("{pid}/cmdline"), MAX_CMDLINE_BYTES).unwrap_or_default();
        let mut words: Vec<String> =
            text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        // Every argument ends with a zero; a title set by the process may leave many.
        words.truncate(
            words.iter().rposition(|word| !word.is_empty()).map_or(0, |last| last.saturating_add(1)),
        );
        words
    }

    /// Environment at its start, as text; `None` without the right to read it.
    #[must_use]
    pub fn environment(&self, pid: u32) -> Option<Vec<String>> {
        let text = self.read(&format!("{pid}/environ"), MAX_ENVIRON_BYTES)?;
        Some(text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    }

    /// Working directory; `None` without the right to know.
    #[must_use]
    pub fn folder(&self, pid: u32) -> Option<String> {
        fs::read_link(self.root.join(format!("{pid}/cwd"))).ok()?.into_os_string().into_string().ok()
    }

    /// Program that it runs; `None` without the right to know.
    #[must_use]
    pub fn program(&self, pid: u32) -> Option<PathBuf> {
        fs::read_link(self.root.join(format!("{pid}/exe"))).ok()
    }

    /// Where a file is, as seen from here, that the process calls `path`.
    #[must_use]
    pub fn path_of(&self, pid: u32, path: &str) -> PathBuf {
        if Path::new(path).is_relative() {
            return self.root.join(format!("{pid}/cwd")).join(path);
        }
        self.other_root(pid).map_or_else(|| path.into(), |root| format!("{root}{path}").into())
    }

    /// Root folder, as seen from here, of a process whose file system is another than ours; `None` where it is the
    /// same, or without the right to know.
    #[must_use]
    pub fn other_root(&self, pid: u32) -> Option<String> {
        let [own, its] = ["self", &pid.to_string()].map(|whose| self.root.join(format!("{whose}/ns/mnt")));
        let other = fs::read_link(own).ok()? != fs::read_link(its).ok()?;
        other.then(|| self.root.join(format!("{pid}/root")).to_string_lossy().into_owned())
    }

    /// Whether the process sees another network than we do; `None` without the right to know.
    #[must_use]
    pub fn other_network(&self, pid: u32) -> Option<bool> {
        let own = fs::read_link(self.root.join("self/ns/net")).ok()?;
        let its = fs::read_link(self.root.join(format!("{pid}/ns/net"))).ok()?;
        Some(own != its)
    }

    /// Listening TCP sockets of our network.
    #[must_use]
    pub fn listeners(&self) -> Vec<Listener> {
        let tables =
            ["net/tcp", "net/tcp6"].map(|name| self.read(name, MAX_SOCKETS_BYTES).unwrap_or_default());
        tables.iter().flat_map(|table| table.split(|byte| *byte == b'\n')).filter_map(listener).collect()
    }

    /// Inodes of a process's sockets; `None` without the right to see its files.
    #[must_use]
    pub fn sockets(&self, pid: u32) -> Option<BTreeSet<u64>> {
        let files = fs::read_dir(self.root.join(format!("{pid}/fd"))).ok()?;
        let links =
            files.filter_map(Result::ok).take(MAX_FILES).filter_map(|file| fs::read_link(file.path()).ok());
        Some(links.filter_map(|link| socket_inode(&link)).collect())
    }

    /// At most `most` bytes of a file below the root.
    fn read(&self, name: &str, most: u64) -> Option<Vec<u8>> {
        let mut text = vec![];
        File::open(self.root.join(name)).ok()?.take(most).read_to_end(&mut text).ok()?;
        Some(text)
    }
}

/// `socket:[123]`.
fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A line of `/proc/net/tcp`: slot, local address:port, remote address:port, state, …, inode as tenth field.
fn listener(line: &[u8]) -> Option<Listener> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (_, port) = fields.nth(1)?.rsplit_once(':')?;
    let listens = fields.nth(1)? == LISTENING;
    let inode = fields.nth(5)?.parse().ok()?;
    listens.then_some(Listener { port: u16::from_str_radix(port, 16).ok()?, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_a_line_in_state_0a() {
        let line = b"   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        assert_eq!(listener(line), Some(Listener { port: 8000, inode: 4711 }));
        let connected = String::from_utf8_lossy(line).replace(" 0A ", " 01 ");
        assert_eq!(listener(connected.as_bytes()), None);
        assert_eq!(listener(b"  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn our_own_process_is_found_in_the_real_proc() {
        let proc = Proc::new("/proc");
        let own = std::process::id();
        assert!(proc.pids().unwrap().contains(&own));
        let stat = proc.stat(own).unwrap();
        assert!(!stat.kernel && !stat.ended && stat.identity.pid == own);
        assert_eq!(proc.uid(own), Some(nix::unistd::getuid().as_raw()));
        assert_eq!(proc.args(own).len(), std::env::args().count());
        assert_eq!(proc.other_network(own), Some(false));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = proc.listeners().into_iter().find(|listener| listener.port == port).unwrap();
        assert!(proc.sockets(own).unwrap().contains(&found.inode));
    }
}
