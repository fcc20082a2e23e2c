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
        /// Which MIG instance of it, where the line names one.
        part: Option<Part>,
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

/// The MIG instance that an Xid line names. Without `compute`, every compute instance of the GPU instance is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// GPU instance id, `GPU-I:05`.
    pub gpu: u32,
    /// Compute instance id, `GPU-CI:00`.
    pub compute: Option<u32>,
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

/// `NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, …`. Old drivers write neither `PCI:` nor the domain.
fn xid(text: &str) -> Option<Line> {
    let (place, rest) = text.strip_prefix("NVRM: Xid (")?.split_once(')')?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    let code = digits.parse().ok()?;
    let mut words = place.split_ascii_whitespace();
    let address = words.next()?;
    let device = log_address(address.strip_prefix("PCI:").unwrap_or(address))?;
    let id = |name: &str| words.clone().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let part = id("GPU-I:").map(|gpu| Part { gpu, compute: id("GPU-CI:") });
    Some(Line::Xid { device, part, code })
}

/// An address of the log, whose domain is 0 where it has none.
fn log_address(text: &str) -> Option<Address> {
    pci::parse(text).or_else(|| pci::parse(&format!("0:{text}")))
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

    fn xid(text: &str) -> Option<Line> {
        parse(format!("4,1042,5071,-;NVRM: Xid {text}\n").as_bytes())
    }

    #[test]
    fn an_xid_names_its_gpu() {
        let device = pci::parse("0000:cb:00.0").unwrap();
        for text in [
            "(PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, intr 0",
            "(PCI:0000:cb:00): 109, pid='<unknown>', name=<unknown>, Timeout after 6s of waiting for RPC",
            "(PCI:0000:cb:00): 109, GPU has fallen off the bus.",
            "(PCI:00000000:CB:00.0): 109, Ch 00000008",
            "(PCI:0000:cb:00):109",
            "(PCI:0000:cb:00) : 109 pid=7",
            "(0000:cb:00): 109, Ch 00000001",
            "(PCI:cb:00): 109, Channel 0000001e",
            "(00cb:00): 109, 0001 00000000 0000902d",
        ] {
            assert_eq!(xid(text), Some(Line::Xid { device, part: None, code: 109 }), "{text}");
        }
        for text in [
            "(PCI:0000:cb:00): none",
            "(PCI:0000:cb:00) 109",
            "(): 109",
            "(PCI:): 109",
            "PCI:0000:cb:00: 109",
        ] {
            assert_eq!(xid(text), None, "{text}");
        }
    }

    #[test]
    fn an_xid_of_a_mig_instance_names_it() {
        let device = pci::parse("0000:01:00.0").unwrap();
        for (place, gpu, compute) in [
            ("PCI:0000:01:00 GPU-I:05", 5, None),
            ("PCI:0000:01:00 GPU-I:13 GPU-CI:02", 13, Some(2)),
            ("PCI:0000:01:00 GPU-CI:00 GPU-I:05", 5, Some(0)),
        ] {
            let line = xid(&format!("({place}): 94, pid=4711, name=python3, Contained: SM (0x1)"));
            assert_eq!(
                line,
                Some(Line::Xid { device, part: Some(Part { gpu, compute }), code: 94 }),
                "{place}"
            );
        }
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
