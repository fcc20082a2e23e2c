//! `gpuadmit report`

use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, Connection, v1::ReportRequest, within};

use super::{Exit, output::Output};
use crate::render;

/// Show what was denied, what observe mode would have denied, and what the engines did meanwhile.
///
/// After a day in observe mode it tells whether enforce mode would have been right: preemptions and queues in the engine
/// belong to the time in which denials were due.
#[derive(Args, Debug)]
pub(crate) struct Report {
    /// Hours back, at most 48, and not before the daemon was started.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=48))]
    hours: u32,
    /// Write JSON, hour by hour.
    #[arg(long)]
    json: bool,
}

impl Report {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let request = within(CALL_DEADLINE, ReportRequest { hours: Some(self.hours) });
        let response = connection.node().report(request).await;
        let report = response.map_err(|status| connection.explain(&status))?.into_inner();
        if self.json {
            output.json(&report)?;
        } else {
            output.print(&render::report::report(&report, self.hours, output.canvas()))?;
        }
        Ok(Exit::Fine)
    }
}
