//! `gpuadmit top`

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::bail;
use clap::Args;
use gpuadmit_client::{Connection, v1::StatusRequest, within};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use super::{Exit, duration::between, output::Output, watch::Stop};
use crate::{
    render::Paint,
    top::{
        Top,
        terminal::{Taken, wishes},
    },
};

/// Events asked for: as many as one may scroll through.
const EVENTS: u32 = 256;
/// Longest time for an answer: a daemon that hangs is told soon.
const DEADLINE: Duration = Duration::from_secs(2);

/// Watch engines, devices, decisions and events on a live screen.
///
/// Keys: q ends it, s orders engines by name, use or waiting requests, up and down scroll through the events. It stays
/// while the daemon is away, and goes on when it is back.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Time between two looks at the daemon, 100ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "1s",
          value_parser = between(Duration::from_millis(100), Duration::from_mins(1)))]
    every: Duration,
}

impl Watch {
    /// Runs it until it is told to end.
    pub(crate) async fn run(self, connection: &Connection, output: &Output) -> anyhow::Result<Exit> {
        if !output.is_terminal() {
            bail!(
                "standard output is no terminal, and top draws on one; a program uses `gpuadmit status --watch --json`"
            );
        }
        let colour = matches!(output.paint(), Paint::Colour);
        let mut top = Top::new(colour);
        let mut stop = Stop::listen()?;
        let mut answers = ask(connection.clone(), self.every);
        let mut terminal = Taken::take()?;
        let mut wishes = wishes()?;
        let mut stopped = pin!(stop.wanted());
        loop {
            terminal.0.draw(|frame| top.draw(frame, Instant::now()))?;
            tokio::select! {
                () = &mut stopped => return Ok(Exit::Fine),
                wish = wishes.recv() => if !wish.is_some_and(|wish| top.wish(wish)) {
                    return Ok(Exit::Fine);
                },
                Some((at, status)) = answers.recv() => top.take(at, status),
            }
        }
    }
}

type Answer = (Instant, Result<gpuadmit_client::v1::StatusResponse, String>);

/// Asks the daemon again and again, until nobody listens.
fn ask(connection: Connection, every: Duration) -> mpsc::Receiver<Answer> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let request = within(DEADLINE, StatusRequest { events: Some(EVENTS) });
            let status = connection.node().status(request).await.map(tonic::Response::into_inner);
            let status = status.map_err(|status| connection.explain(&status).to_string());
            if sender.send((Instant::now(), status)).await.is_err() {
                return;
            }
        }
    });
    receiver
}
