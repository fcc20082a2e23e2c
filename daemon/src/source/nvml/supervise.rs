//! Sees to it that a child runs, except while it was told to stay away.

use std::time::Duration;

use gpuadmit_core::observation::SourceHealth;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    super::Observe,
    Control,
    intake::Intake,
    lines::Line,
    process::{Abandoned, ChildCommand, MAX_RELEASE, Running},
    wire::{Bye, Reason},
};

/// A child that says nothing for this long is ended: its main thread never calls NVML and reports every second.
const SILENCE: Duration = Duration::from_secs(10);

/// A child that sends this many messages that cannot be used is ended.
const MAX_UNUSABLE: u32 = 64;

/// Runs children one after the other.
pub(super) struct Supervisor {
    command: ChildCommand,
    controls: mpsc::Receiver<Control>,
    intake: Intake,
    abandoned: Abandoned,
    pause: Duration,
}

/// What to do after a child.
enum Next {
    /// Start another after the pause.
    Pause,
    /// Stay away this long.
    Away(Duration),
    /// All handles are gone.
    Stop,
}

/// How watching a child came to an end.
enum Seen {
    Closed(Option<Bye>),
    Broken(&'static str),
    Release(Duration, oneshot::Sender<bool>),
    Stop,
}

impl Supervisor {
    pub(super) fn new(command: ChildCommand, controls: mpsc::Receiver<Control>, observe: Observe) -> Self {
        let pause = command.pauses.first;
        Self { command, controls, intake: Intake::new(observe), abandoned: Abandoned::default(), pause }
    }

    /// Runs until all handles are gone.
    pub(super) async fn run(mut self) {
        loop {
            let started = Instant::now();
            let next = self.child().await;
            if started.elapsed() > self.command.pauses.longest {
                self.pause = self.command.pauses.first;
            }
            let pause = match next {
                Next::Pause => self.next_pause(),
                Next::Away(duration) => duration,
                Next::Stop => return,
            };
            if !self.away(pause).await {
                return;
            }
        }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(self.command.pauses.longest);
        pause
    }

    /// Runs one child to its end.
    async fn child(&mut self) -> Next {
        if self.abandoned.full() {
            self.intake.report(SourceHealth::Failed, "too many children are stuck in the driver".to_owned());
            return Next::Pause;
        }
        let mut running = match Running::start(&self.command) {
            Ok(running) => running,
            Err(error) => {
                let program = self.command.program.display();
                self.intake.report(SourceHealth::Failed, format!("{program} cannot be started: {error}"));
                return Next::Pause;
            }
        };
        let seen = self.watch(&mut running).await;
        let next = self.finish(running, seen).await;
        self.intake.child_ended();
        next
    }

    /// Takes what the child says until something ends it.
    async fn watch(&mut self, running: &mut Running) -> Seen {
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                line = running.lines.next() => {
                    heard = Instant::now();
                    if let Some(seen) = self.line(line) {
                        return seen;
                    }
                }
                control = self.controls.recv() => match control {
                    Some(Control::Release(duration, answer)) if duration.is_zero() => drop(answer.send(false)),
                    Some(Control::Release(duration, answer)) => return Seen::Release(duration, answer),
                    Some(Control::Processes) => running.hint_processes().await,
                    None => return Seen::Stop,
                },
                () = sleep_until(heard + SILENCE) => return Seen::Broken("it was silent for ten seconds"),
            }
        }
    }

    fn line(&mut self, line: std::io::Result<Option<Line<'_>>>) -> Option<Seen> {
        match line {
            Ok(Some(line)) => {
                if let Some(bye) = self.intake.line(&line) {
                    return Some(Seen::Closed(Some(bye)));
                }
                (self.intake.unusable() >= MAX_UNUSABLE).then_some(Seen::Broken("its output is garbage"))
            }
            Ok(None) => Some(Seen::Closed(None)),
            Err(_) => Some(Seen::Broken("its output cannot be read")),
        }
    }

    async fn finish(&mut self, running: Running, seen: Seen) -> Next {
        match seen {
            Seen::Closed(Some(bye)) => {
                running.ended(&self.abandoned).await;
                let health = match bye.reason {
                    Reason::Absent | Reason::Unbind => SourceHealth::Absent,
                    Reason::Stopped | Reason::Failed => SourceHealth::Failed,
                };
                self.intake.report(health, bye.detail);
                Next::Pause
            }
            Seen::Closed(None) => {
                let status = running.ended(&self.abandoned).await;
                self.intake.report(SourceHealth::Failed, format!("the NVML child ended unasked: {status}"));
                Next::Pause
            }
            Seen::Broken(how) => {
                running.end(&self.abandoned).await;
                self.intake.report(SourceHealth::Failed, format!("the NVML child was ended: {how}"));
                Next::Pause
            }
            Seen::Release(duration, answer) => {
                running.end(&self.abandoned).await;
                self.released(duration, answer);
                Next::Away(duration.min(MAX_RELEASE))
            }
            Seen::Stop => {
                running.end(&self.abandoned).await;
                Next::Stop
            }
        }
    }

    fn released(&self, duration: Duration, answer: oneshot::Sender<bool>) {
        let seconds = duration.min(MAX_RELEASE).as_secs();
        self.intake.report(SourceHealth::Absent, format!("let go of the driver for {seconds} s as asked"));
        let _gone = answer.send(self.abandoned.none());
    }

    /// Keeps away from the driver for `duration`; a release in between sets it anew. False: all handles are gone.
    async fn away(&mut self, duration: Duration) -> bool {
        let mut until = Instant::now() + duration;
        loop {
            match timeout_at(until, self.controls.recv()).await {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(Control::Processes)) => {}
                Ok(Some(Control::Release(duration, answer))) if duration.is_zero() => {
                    let _gone = answer.send(false);
                    return true;
                }
                Ok(Some(Control::Release(duration, answer))) => {
                    self.released(duration, answer);
                    until = Instant::now() + duration.min(MAX_RELEASE);
                }
            }
        }
    }
}
