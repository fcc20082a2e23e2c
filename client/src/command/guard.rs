//! `gpuadmit guard`

use clap::{Args, ValueEnum};
use gpuadmit_client::{
    CALL_DEADLINE, Connection,
    v1::{ClearGuardsRequest, ListGuardsRequest},
    within,
};

use super::{Exit, output::Output};
use crate::render;

/// Show or lift learned guards.
///
/// When an engine has twice run out of device memory with prompts of one size in flight, and nothing else explains it,
/// prompts of that size are held back from it for 24 hours. From time to time one is let through, and lifts the guard if
/// it ends well.
#[derive(Args, Debug)]
pub(crate) struct Guard {
    /// What to do.
    #[arg(value_enum)]
    action: Action,
    /// Only the guards of this engine (its id from `status`).
    #[arg(long, value_name = "ID")]
    engine: Option<String>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    /// Show what is held back.
    List,
    /// Hold it back no more.
    Clear,
}

impl Guard {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        match self.action {
            Action::List => self.list(connection, output).await?,
            Action::Clear => self.clear(connection, output).await?,
        }
        Ok(Exit::Fine)
    }

    async fn list(self, connection: &Connection, output: &mut Output) -> anyhow::Result<()> {
        let request = within(CALL_DEADLINE, ListGuardsRequest { engine: self.engine });
        let call = connection.node().list_guards(request).await;
        let response = call.map_err(|status| connection.explain(&status))?.into_inner();
        if self.json {
            return output.json(&response);
        }
        Ok(output.print(&render::guard::guards(&response.guards, output.canvas()))?)
    }

    async fn clear(self, connection: &Connection, output: &mut Output) -> anyhow::Result<()> {
        let request = within(CALL_DEADLINE, ClearGuardsRequest { engine: self.engine });
        let call = connection.node().clear_guards(request).await;
        let response = call.map_err(|status| connection.explain(&status))?.into_inner();
        if self.json {
            return output.json(&response);
        }
        let guards = if response.cleared == 1 { "guard" } else { "guards" };
        Ok(output.print(&format!("{} {guards} lifted\n", response.cleared))?)
    }
}
