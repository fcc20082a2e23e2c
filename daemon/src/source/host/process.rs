//! What the scheduler says of a process (proc(5)).

use std::path::Path;

use gpuadmit_core::{
    host::{ProcessState, Scheduled},
    observation::EngineProcess,
};

use super::{keyed, read};

/// State of a process; `None` when it is gone, or its id is another's now.
#[must_use]
pub fn state(proc: &Path, process: &EngineProcess) -> Option<ProcessState> {
    let folder = proc.join(process.pid.to_string());
    let (letter, start_ticks) = parse(&read(&folder.join("stat"))?)?;
    if start_ticks != process.start_ticks {
        return None;
    }
    let dumping = || keyed(&read(&folder.join("status")).unwrap_or_default(), "CoreDumping") == Some(1);
    let state = match letter {
        'Z' | 'X' | 'x' => Scheduled::Ending,
        _ if dumping() => Scheduled::Ending,
        'T' | 't' => Scheduled::Stopped,
        'D' => Scheduled::Uninterruptible,
        _ => Scheduled::Normal,
    };
    Some(ProcessState { pid: process.pid, start_ticks, state })
}

/// State and start time in a `stat` line: fields 3 and 22. The name in parentheses may contain anything.
#[must_use]
pub fn parse(stat: &str) -> Option<(char, u64)> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use gpuadmit_core::observation::ProcessRole;

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let line = "7 (a) R (b) D 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(parse(line), Some(('D', 4711)));
        assert_eq!(parse("7 (a) D 1"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_is_there_and_one_with_another_start_is_not() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (_, start_ticks) = parse(&stat).unwrap();
        let mut own = EngineProcess { pid: std::process::id(), start_ticks, role: ProcessRole::Worker };
        assert!(state(Path::new("/proc"), &own).is_some());
        own.start_ticks += 1;
        assert_eq!(state(Path::new("/proc"), &own), None);
    }

    #[test]
    fn a_stopped_process_is_seen_to_be_stopped() {
        use nix::{sys::signal, unistd::Pid};
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, start_ticks) = parse(&stat).unwrap();
        let process = EngineProcess { pid: child.id(), start_ticks, role: ProcessRole::Worker };
        signal::kill(pid, signal::Signal::SIGSTOP).unwrap();
        let stopped = || state(Path::new("/proc"), &process).map(|state| state.state);
        let seen = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            stopped() == Some(Scheduled::Stopped)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen);
        assert_eq!(stopped(), None, "it is gone");
    }
}
