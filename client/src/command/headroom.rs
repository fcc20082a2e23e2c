//! `gpuadmit headroom`

use std::time::Duration;

use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, CallError, Connection, v1::WatchHeadroomRequest};
use tokio::time::timeout;
use tonic::Request;

use super::{
    Exit,
    duration::{between, millis_u32},
    output::{Output, json_line},
    watch::{Screen, Stop},
};
use crate::render;

/// Show how much more each engine can take.
#[derive(Args, Debug)]
pub(crate) struct Headroom {
    /// Only this engine (its id from `status`).
    #[arg(long, value_name = "ID")]
    engine: Option<String>,
    /// Show it again on every change until Ctrl-C, at most once in this time, 10ms to 60s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "100ms",
          value_parser = between(Duration::from_millis(10), Duration::from_mins(1)))]
    watch: Option<Duration>,
    /// Write JSON, one line each time.
    #[arg(long)]
    json: bool,
}

impl Headroom {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let mut stop = Stop::listen()?;
        tokio::select! {
            () = stop.wanted() => {}
            result = self.show(connection, output) => result?,
        }
        Ok(Exit::Fine)
    }

    /// The first answer comes at once, the others on change.
    async fn show(&self, connection: &Connection, output: &mut Output) -> anyhow::Result<()> {
        let request =
            WatchHeadroomRequest { min_interval_ms: self.watch.map(millis_u32), engine: self.engine.clone() };
        let timed_out = |_| CallError::TimedOut { socket: connection.socket().to_owned() };
        let mut node = connection.node();
        let call =
            timeout(CALL_DEADLINE, node.watch_headroom(Request::new(request))).await.map_err(timed_out)?;
        let mut changes = call.map_err(|status| connection.explain(&status))?.into_inner();
        let mut next = timeout(CALL_DEADLINE, changes.message()).await.map_err(timed_out)?;
        let mut screen = Screen::open(output, self.watch.is_some() && !self.json)?;
        while let Some(response) = next.map_err(|status| connection.explain(&status))? {
            let frame = if self.json {
                json_line(&response)?
            } else {
                render::headroom::headroom(&response, screen.canvas())
            };
            screen.draw(&frame)?;
            if self.watch.is_none() || screen.is_closed() {
                break;
            }
            next = changes.message().await;
        }
        Ok(())
    }
}
