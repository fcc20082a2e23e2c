//! `gpuadmit progress`

use clap::{ArgGroup, Args};
use gpuadmit_client::{CALL_DEADLINE, Connection, v1::ProgressRequest, within};

use super::{Exit, output::Output, reservation::Reservation};
use crate::render;

/// Report how far an admitted request has come; this renews its lease.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["id", "request_id"]).required(true))]
pub(crate) struct Progress {
    #[command(flatten)]
    reservation: Reservation,
    /// Output tokens generated so far, all sequences together.
    #[arg(long, value_name = "N")]
    generated_tokens: u64,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

impl Progress {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let request = ProgressRequest {
            reservation: self.reservation.into_ref(),
            generated_tokens: self.generated_tokens,
        };
        let response = connection
            .admission()
            .progress(within(CALL_DEADLINE, request))
            .await
            .map_err(|status| connection.explain(&status))?
            .into_inner();
        if self.json {
            output.json(&response)?;
        } else {
            output.print(&format!("lease renewed for {}\n", render::duration(response.lease_ms)))?;
        }
        Ok(Exit::Fine)
    }
}
