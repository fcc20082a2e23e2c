//! `gpuadmit headroom`

use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, CallError, Connection, v1::WatchHeadroomRequest};
use tokio::time::timeout;
use tonic::Request;

use super::{
    Exit,
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
    /// Show it again on every change, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// With --watch: at most once in so many milliseconds, 10 to 60000.
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "watch",
          value_parser = clap::value_parser!(u32).range(10..=60_000))]
    min_interval_ms: u32,
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
        let paint = output.paint();
        let request =
            WatchHeadroomRequest { min_interval_ms: Some(self.min_interval_ms), engine: self.engine.clone() };
        let timed_out = |_| CallError::TimedOut { socket: connection.socket().to_owned() };
        let mut node = connection.node();
        let call =
            timeout(CALL_DEADLINE, node.watch_headroom(Request::new(request))).await.map_err(timed_out)?;
        let mut changes = call.map_err(|status| connection.explain(&status))?.into_inner();
        let mut next = timeout(CALL_DEADLINE, changes.message()).await.map_err(timed_out)?;
        let mut screen = Screen::open(output, self.watch && !self.json)?;
        while let Some(response) = next.map_err(|status| connection.explain(&status))? {
            let frame =
                if self.json { json_line(&response)? } else { render::headroom::headroom(&response, paint) };
            screen.draw(&frame)?;
            if !self.watch || screen.is_closed() {
                break;
            }
            next = changes.message().await;
        }
        Ok(())
    }
}
