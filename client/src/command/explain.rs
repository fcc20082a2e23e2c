//! `gpuadmit explain`

use clap::{ArgGroup, Args};
use gpuadmit_client::{
    CALL_DEADLINE, Connection,
    v1::{ExplainRequest, explain_request::What},
    within,
};

use super::{Exit, output::Output, reservation::Reservation};
use crate::render;

/// Show why decisions came out as they did, with the terms of the sum that was compared.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["id", "request_id", "last"]))]
pub(crate) struct Explain {
    #[command(flatten)]
    reservation: Reservation,
    /// Instead of one reservation: the newest N decisions, newest first; at most 256. Without either: the newest one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    last: Option<u32>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let reservation = self.reservation.into_ref();
        let what = reservation.map_or(What::Last(self.last.unwrap_or(1)), What::Reservation);
        let response = connection
            .node()
            .explain(within(CALL_DEADLINE, ExplainRequest { what: Some(what) }))
            .await
            .map_err(|status| connection.explain(&status))?
            .into_inner();
        if self.json {
            output.json(&response)?;
        } else if response.decisions.is_empty() {
            output.print("no decision has been made yet\n")?;
        } else {
            let canvas = output.canvas();
            let text: String =
                response.decisions.iter().map(|record| render::explain::decision(record, canvas)).collect();
            output.print(&text)?;
        }
        Ok(Exit::Fine)
    }
}
