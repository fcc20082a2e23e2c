//! `gpuadmit complete`

use clap::{ArgGroup, Args, ValueEnum};
use gpuadmit_client::{
    CALL_DEADLINE, Connection,
    v1::{self, CompleteRequest},
    within,
};

use super::{Exit, output::Output, reservation::Reservation};

/// Report that an admitted request has ended, however it ended.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").args(["id", "request_id"]).required(true))]
pub(crate) struct Complete {
    #[command(flatten)]
    reservation: Reservation,
    /// How it ended.
    #[arg(long, value_enum, default_value_t = Outcome::Ok)]
    outcome: Outcome,
    /// Output tokens, all sequences together.
    #[arg(long, value_name = "N")]
    output_tokens: Option<u64>,
    /// Prompt tokens as the engine counted them.
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u64>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Outcome {
    /// The engine finished it.
    Ok,
    /// The client hung up, or it was cancelled.
    Cancelled,
    /// The engine answered with an error.
    EngineError,
    /// It never reached the engine.
    NotSent,
}

impl From<Outcome> for v1::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Ok => Self::Ok,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::EngineError => Self::EngineError,
            Outcome::NotSent => Self::NotSent,
        }
    }
}

impl Complete {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let request = CompleteRequest {
            reservation: self.reservation.into_ref(),
            outcome: v1::Outcome::from(self.outcome).into(),
            output_tokens: self.output_tokens,
            prompt_tokens: self.prompt_tokens,
        };
        let response = connection
            .admission()
            .complete(within(CALL_DEADLINE, request))
            .await
            .map_err(|status| connection.explain(&status))?
            .into_inner();
        if self.json {
            output.json(&response)?;
        } else {
            output.print(if response.was_held { "released\n" } else { "had ended before\n" })?;
        }
        Ok(Exit::Fine)
    }
}
