//! `gpuadmit status`

use std::time::Duration;

use clap::Args;
use gpuadmit_client::{
    CALL_DEADLINE, CallError, Connection,
    v1::{StatusRequest, StatusResponse},
    within,
};
use tokio::time::MissedTickBehavior;

use super::{
    Exit,
    duration::between,
    output::{Output, json_line},
    watch::{Screen, Stop},
};
use crate::render;

/// Show engines, devices, sources and recent events.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Write JSON; with --watch, one line each time.
    #[arg(long)]
    json: bool,
    /// Show it again and again until Ctrl-C, once in this time, 100ms to 1h.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s",
          value_parser = between(Duration::from_millis(100), Duration::from_hours(1)))]
    watch: Option<Duration>,
    /// Events to show, the newest ones; at most 256.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=256))]
    events: u32,
}

impl Status {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        match self.watch {
            None => {
                let status = self.fetch(connection).await?;
                if self.json {
                    output.json(&status)?;
                } else {
                    output.print(&render::status::status(&status, output.canvas()))?;
                }
            }
            Some(every) => {
                let mut stop = Stop::listen()?;
                tokio::select! {
                    () = stop.wanted() => {}
                    result = self.watch(every, connection, output) => result?,
                }
            }
        }
        Ok(Exit::Fine)
    }

    async fn fetch(&self, connection: &Connection) -> Result<StatusResponse, CallError> {
        let request = within(CALL_DEADLINE, StatusRequest { events: Some(self.events) });
        let response = connection.node().status(request).await;
        response.map(tonic::Response::into_inner).map_err(|status| connection.explain(&status))
    }

    /// Until nobody looks any more. The daemon may come and go meanwhile: a person sees why there is nothing to see, a
    /// script gets the error.
    async fn watch(
        &self,
        every: Duration,
        connection: &Connection,
        output: &mut Output,
    ) -> anyhow::Result<()> {
        let mut screen = Screen::open(output, !self.json)?;
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !screen.is_closed() {
            ticks.tick().await;
            let frame = match self.fetch(connection).await {
                Ok(status) if self.json => json_line(&status)?,
                Ok(status) => render::status::status(&status, screen.canvas()) + "\n",
                Err(error) if screen.is_in_place() => format!("gpuadmit: {error}\n"),
                Err(error) => return Err(error.into()),
            };
            screen.draw(&frame)?;
        }
        Ok(())
    }
}
