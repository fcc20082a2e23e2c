//! The kernel's log, `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg): Xid errors where the driver has no tracepoint for
//! them, and whose memory ran out when the OOM killer comes.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

use gpuadmit_core::observation::OomScope;

use super::pci::{self, Address};

/// Longest line; the kernel writes none longer than `PRINTK_MESSAGE_MAX` (2,048 bytes).
const MAX_LINE_BYTES: usize = 8192;
/// Most lines read at once; more are read at the next turn.
const MAX_LINES: usize = 1000;

/// A line that says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`.
    Xid {
        /// Which GPU.
        device: Address,
        /// Its number.
        code: u64,
    },
    /// `oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/a,task_memcg=/a/b,task=python3,pid=42,uid=0`.
    OomKill {
        /// The victim.
        pid: u32,
        /// Its name.
        comm: String,
        /// Whose memory ran out.
        scope: OomScope,
    },
}

/// The log from now on.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens it. Where `kernel.dmesg_restrict` is set, this takes CAP_SYSLOG.
    ///
    /// # Errors
    /// That of opening.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// What was written since. Lines that were overwritten before they were read are passed over.
    pub fn read(&mut self) -> Vec<Line> {
        let mut found = vec![];
        let mut line = [0; MAX_LINE_BYTES];
        for _ in 0..MAX_LINES {
            match self.0.read(&mut line) {
                Ok(0) => break,
                Ok(length) => found.extend(parse(line.get(..length).unwrap_or_default())),
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        found
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a record of the log says: `6,1234,56789,-;text`, and lines that begin with a space.
#[must_use]
pub fn parse(record: &[u8]) -> Option<Line> {
    let record = String::from_utf8_lossy(record);
    let (head, rest) = record.split_once(';')?;
    let text = rest.lines().next()?;
    // What programs write to the log has another facility than the kernel (0): nobody can forge a line.
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    if priority >> 3 != 0 {
        return None;
    }
    xid(text).or_else(|| oom_kill(text))
}

fn xid(text: &str) -> Option<Line> {
    let (device, rest) = text.strip_prefix("NVRM: Xid (PCI:")?.split_once("): ")?;
    let code = rest.split(',').next()?.trim().parse().ok()?;
    Some(Line::Xid { device: pci::parse(device)?, code })
}

fn oom_kill(text: &str) -> Option<Line> {
    let text = text.strip_prefix("oom-kill:")?;
    let field = |name: &str| text.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let scope = match field("constraint")? {
        "CONSTRAINT_MEMCG" => OomScope::Cgroup(field("oom_memcg")?.into()),
        _ => OomScope::Machine,
    };
    // A name may hold commas: the id is the last field but one.
    let (_, pid) = text.rsplit_once(",pid=")?;
    let pid = pid.split(',').next()?.parse().ok()?;
    Some(Line::OomKill { pid, comm: field("task").unwrap_or_default().into(), scope })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xid_names_its_gpu() {
        let line =
            b"4,1042,5071,-;NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008\n";
        let device = pci::parse("0000:cb:00.0").unwrap();
        assert_eq!(parse(line), Some(Line::Xid { device, code: 109 }));
    }

    #[test]
    fn an_oom_kill_tells_whose_memory_ran_out() {
        let line = |constraint: &str| {
            format!(
                "6,977,123,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,\
                 oom_memcg=/vllm.slice,task_memcg=/vllm.slice/a,task=python3,pid=4711,uid=0\n"
            )
        };
        let told = |constraint| parse(line(constraint).as_bytes());
        let kill = |scope| Some(Line::OomKill { pid: 4711, comm: "python3".into(), scope });
        assert_eq!(told("CONSTRAINT_MEMCG"), kill(OomScope::Cgroup("/vllm.slice".into())));
        assert_eq!(told("CONSTRAINT_NONE"), kill(OomScope::Machine));
    }

    #[test]
    fn a_program_cannot_forge_a_line() {
        assert_eq!(parse(b"12,1,2,-;NVRM: Xid (PCI:0000:cb:00): 79, pid=1"), None);
        assert_eq!(parse(b"4,1,2,-;usb 1-1: new device"), None);
        assert_eq!(parse(b""), None);
    }
}
