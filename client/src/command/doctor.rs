//! `gpuadmit doctor`

use std::path::{Path, PathBuf};

use clap::Args;
use gpuadmit_client::{
    CALL_DEADLINE, CallError, Connection, connect, v1::StatusRequest, v1::StatusResponse, within,
};

use super::{Exit, output::Output};
use crate::{
    doctor::{Case, Level, Machine, Service, check, examine},
    render,
};

/// Check this machine: what is wrong, and the command that mends it.
///
/// Driver and NVML, what the kernel can tell, clocks, the daemon with its rights, user and socket, its configuration and
/// its disk, and the settings of the engines that it sees. Nothing is changed. Run it as root, or as a member of the
/// socket's group: what this user may not see is not checked, and said so.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 all is well (notes included), 1 warnings, 2 errors.")]
pub(crate) struct Doctor {
    /// Write JSON, with all checks.
    #[arg(long)]
    json: bool,
    /// Show what is well, too.
    #[arg(long)]
    all: bool,
    /// Check the system below this folder instead, its socket included: a container's file system, for example.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

impl Doctor {
    /// Runs it; the daemon need not run.
    pub(crate) async fn run(self, socket: &Path, output: &mut Output) -> anyhow::Result<Exit> {
        anyhow::ensure!(
            self.root.is_dir(),
            "--root: {:?} is no folder; name one with a system below it",
            self.root
        );
        let machine = Machine::new(self.root);
        let connection = connect(if machine.is_this() { socket.to_owned() } else { machine.path(socket) })?;
        let status = ask(&connection).await;
        let service = Service::find(&machine, status.as_ref().ok());
        let checked = check(&machine, &service).await;
        let socket = std::path::absolute(socket)?.display().to_string();
        let version = env!("CARGO_PKG_VERSION");
        let findings = examine(&Case { machine, service, status, socket, checked, version });
        if self.json {
            output.print(&format!("{:#}\n", render::doctor::json(&findings)))?;
        } else {
            let least = if self.all { Level::Ok } else { Level::Note };
            output.print(&render::doctor::findings(&findings, least, output.canvas()))?;
        }
        Ok(match findings.iter().map(|finding| finding.level).max() {
            Some(Level::Error) => Exit::Broken,
            Some(Level::Warning) => Exit::Warned,
            _ => Exit::Fine,
        })
    }
}

async fn ask(connection: &Connection) -> Result<StatusResponse, CallError> {
    let answer = connection.node().status(within(CALL_DEADLINE, StatusRequest::default())).await;
    answer.map(tonic::Response::into_inner).map_err(|status| connection.explain(&status))
}
