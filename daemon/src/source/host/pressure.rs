//! Pressure stall information (Documentation/accounting/psi.rst): its figures, and the kernel's word when it passes a bound.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::fd::AsFd as _,
    path::Path,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Wake when some process waited for memory 150 ms within 2 s. Who has no CAP_SYS_RESOURCE may ask for windows of whole
/// multiples of 2 s only.
const TRIGGER: &[u8] = b"some 150000 2000000\0";
/// Between two wakes at least this: the kernel tells once a window, but a poll error would not wait.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// A trigger on the machine's memory pressure.
#[derive(Debug)]
pub struct Trigger(File);

impl Trigger {
    /// Sets it.
    ///
    /// # Errors
    /// The kernel has no pressure stall information, or does not let us.
    pub fn set(proc: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(proc.join("pressure/memory"))?;
        file.write_all(TRIGGER)?;
        Ok(Self(file))
    }

    /// Waits until it fires, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        std::thread::sleep(SHORTEST_WAIT);
        let mut waited_for = [PollFd::new(self.0.as_fd(), PollFlags::POLLPRI)];
        let left = longest.saturating_sub(SHORTEST_WAIT);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        if poll(&mut waited_for, timeout).is_err() {
            std::thread::sleep(left);
        }
    }
}

/// Shares of the last 10 seconds in which some and all processes waited, percent; `None`: not to be understood.
#[must_use]
pub fn parse(text: &str) -> Option<(f64, f64)> {
    let average = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let value = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
        value.parse().ok().filter(|percent: &f64| (0.0..=100.0).contains(percent))
    };
    Some((average("some")?, average("full")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "some avg10=1.74 avg60=1.02 avg300=0.50 total=11027077\nfull avg10=1.41 avg60=0.86 avg300=0.27 total=2987284\n";
        assert_eq!(parse(text), Some((1.74, 1.41)));
        assert_eq!(parse("some avg10=1.74\n"), None);
        assert_eq!(parse("some avg10=x\nfull avg10=nan\n"), None);
    }
}
