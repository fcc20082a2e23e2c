//! Messages of a simulated node, on the same path as a child's.

use tokio::{sync::mpsc, time::Instant};

use super::{super::Observe, Control, intake::Intake, process::MAX_RELEASE, wire};

/// Passes messages on until the simulated node or the last handle is gone. While released, messages are dropped.
pub(super) async fn run(
    mut messages: mpsc::Receiver<wire::Message>,
    mut controls: mpsc::Receiver<Control>,
    observe: Observe,
) {
    let mut intake = Intake::new(observe);
    let mut away_until: Option<Instant> = None;
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(_) if away_until.is_some_and(|until| Instant::now() < until) => {}
                Some(message) => drop(intake.message(message)),
                None => return,
            },
            control = controls.recv() => match control {
                Some(Control::Release(duration, answer)) => {
                    away_until = Instant::now().checked_add(duration.min(MAX_RELEASE));
                    let _gone = answer.send(!duration.is_zero());
                }
                Some(Control::Processes) => {}
                None => return,
            },
        }
    }
}
