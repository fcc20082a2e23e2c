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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use gpuadmit_core::observation::Observation;

    use super::{
        super::{Nvml, Origin, spawn},
        *,
    };

    fn health(detail: &str) -> wire::Message {
        let span = wire::Span { not_before_ns: 1, not_after_ns: 1 };
        wire::Message::Health(wire::Health {
            span,
            state: wire::State::Ok,
            detail: detail.to_owned(),
            busy_us: 0,
        })
    }

    fn replayed() -> (Nvml, mpsc::Sender<wire::Message>, mpsc::UnboundedReceiver<String>) {
        let (messages, theirs) = mpsc::channel(4);
        let (see, seen) = mpsc::unbounded_channel();
        let observe: Observe = Arc::new(move |observation| {
            if let Observation::Source(report) = observation {
                see.send(report.detail).unwrap();
            }
        });
        (spawn(Origin::Messages(theirs), observe), messages, seen)
    }

    #[tokio::test]
    async fn messages_of_a_simulated_node_become_observations_unless_released() {
        let (nvml, messages, mut seen) = replayed();
        messages.send(health("one")).await.unwrap();
        assert_eq!(seen.recv().await.as_deref(), Some("one"));
        assert!(nvml.release(Duration::from_secs(3600)).await);
        messages.send(health("while released")).await.unwrap();
        while messages.capacity() < messages.max_capacity() {
            tokio::task::yield_now().await;
        }
        assert!(!nvml.release(Duration::ZERO).await);
        messages.send(health("two")).await.unwrap();
        assert_eq!(seen.recv().await.as_deref(), Some("two"));
    }
}
