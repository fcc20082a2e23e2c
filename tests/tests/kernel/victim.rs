//! Processes that come to an end on command.

use std::{
    env,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use gpuadmit_core::observation::{EngineProcess, ProcessRole};
use gpuadmitd::source::vllm::process::Proc;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{ForkResult, Pid},
};

const FATE: &str = "GPUADMIT_VICTIM_FATE";

/// How a process is to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// By a signal of ours.
    Signal(i32),
    /// By itself, with this code.
    Exit(u8),
    /// By a fault in a thread that is not the first.
    SegfaultInThread,
    /// By taking memory in several threads until there is none.
    EatMemory,
    /// By itself, after so many children that exec and exit with code 5.
    Children(u32),
    /// By itself, after so many children that exit at once.
    Forks(u32),
}

/// Such a process. Killed and reaped when dropped.
pub(crate) struct Victim {
    child: Child,
    fate: Fate,
    process: EngineProcess,
}

impl Victim {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(fate: Fate) -> Self {
        let words = match fate {
            Fate::Signal(_) => "wait".into(),
            Fate::Exit(code) => format!("exit {code}"),
            Fate::SegfaultInThread => "segfault".into(),
            Fate::EatMemory => "eat".into(),
            Fate::Children(count) => format!("children {count}"),
            Fate::Forks(count) => format!("forks {count}"),
        };
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "victim_process", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(FATE, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = vec![];
        while !said.ends_with(b"ready\n") {
            let mut byte = [0];
            child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            said.extend(byte);
        }
        let stat = Proc::new("/proc").stat(child.id()).unwrap();
        let process = EngineProcess {
            pid: child.id(),
            start_ticks: stat.identity.start_ticks,
            role: ProcessRole::Worker,
        };
        Self { child, fate, process }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }

    pub(crate) fn process(&self) -> EngineProcess {
        self.process
    }

    /// Has it come to its end.
    pub(crate) fn end(&self) {
        if let Fate::Signal(number) = self.fate {
            let pid = Pid::from_raw(self.pid().try_into().unwrap());
            kill(pid, Signal::try_from(number).unwrap()).unwrap();
        } else {
            self.child.stdin.as_ref().unwrap().write_all(b"g").unwrap();
        }
    }

    /// Waits for its end.
    pub(crate) fn reap(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it runs.
pub(crate) fn run() {
    let Ok(fate) = env::var(FATE) else { return };
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let (what, number) = fate.split_once(' ').unwrap_or((&fate, "0"));
    match what {
        "exit" => std::process::exit(number.parse().unwrap()),
        "segfault" => thread::spawn(segfault).join().unwrap(),
        "eat" => (0..4).map(|_| thread::spawn(eat)).for_each(drop),
        "children" => children(number.parse().unwrap()),
        "forks" => forks(number.parse().unwrap()),
        other => panic!("{other}"),
    }
    thread::sleep(Duration::from_secs(60));
}

fn segfault() {
    // SAFETY: none: the process is to be killed for it.
    unsafe { std::ptr::null_mut::<u8>().wrapping_add(8).write_volatile(1) };
}

fn eat() {
    let mut eaten = vec![];
    loop {
        eaten.push(vec![1_u8; 1 << 20]);
        thread::sleep(Duration::from_millis(1));
    }
}

fn children(count: u32) {
    for _ in 0..count {
        Command::new("sh").args(["-c", "exit 5"]).status().unwrap();
    }
    std::process::exit(0);
}

fn forks(count: u32) {
    for _ in 0..count {
        // SAFETY: the child does nothing but exit, which may be done after a fork of a process with threads.
        match unsafe { nix::unistd::fork() }.unwrap() {
            // SAFETY: the same.
            ForkResult::Child => unsafe { nix::libc::_exit(0) },
            ForkResult::Parent { child } => drop(nix::sys::wait::waitpid(child, None).unwrap()),
        }
    }
    std::process::exit(0);
}
