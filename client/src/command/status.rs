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
    /// Show it again and again, every so many seconds, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=3600))]
    watch: Option<u16>,
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
                    output.print(&render::status::status(&status, output.paint()))?;
                }
            }
            Some(seconds) => {
                let mut stop = Stop::listen()?;
                let every = Duration::from_secs(seconds.into());
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
        let paint = output.paint();
        let mut screen = Screen::open(output, !self.json)?;
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !screen.is_closed() {
            ticks.tick().await;
            let frame = match self.fetch(connection).await {
                Ok(status) if self.json => json_line(&status)?,
                Ok(status) => render::status::status(&status, paint) + "\n",
                Err(error) if screen.is_in_place() => format!("gpuadmit: {error}\n"),
                Err(error) => return Err(error.into()),
            };
            screen.draw(&frame)?;
        }
        Ok(())
    }
}
