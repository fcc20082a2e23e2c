//! `gpuadmit release-gpu`

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use gpuadmit_client::{CALL_DEADLINE, Connection, v1::ReleaseGpuRequest, within};

use super::{
    Exit,
    duration::{between, millis, parse},
    output::Output,
};
use crate::render;

/// Let go of the NVIDIA driver for a while, to reset a GPU or change its MIG layout.
///
/// Admission goes on meanwhile; device memory is unknown.
#[derive(Args, Debug)]
pub(crate) struct ReleaseGpu {
    /// For how long, 1s to 1d, such as 10m; 0s takes hold again at once.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Duration,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Ok(Duration::ZERO),
        _ => between(Duration::from_secs(1), Duration::from_hours(24))(text)
            .map_err(|why| format!("0s, or {why}")),
    }
}

impl ReleaseGpu {
    /// Runs it.
    pub(crate) async fn run(self, connection: &Connection, output: &mut Output) -> anyhow::Result<Exit> {
        let duration_ms = millis(self.duration);
        let response = connection
            .node()
            .release_gpu(within(CALL_DEADLINE, ReleaseGpuRequest { duration_ms }))
            .await
            .map_err(|status| connection.explain(&status))?
            .into_inner();
        if self.json {
            output.json(&response)?;
        } else if duration_ms == 0 {
            output.print("the driver is read again\n")?;
        } else if response.released {
            output.print(&format!("the driver is released for {}\n", render::duration(duration_ms)))?;
        }
        if duration_ms > 0 && !response.released {
            bail!(
                "the driver is not released: the process that reads it has not ended, since a call into the driver may \
                 hang; see `gpuadmit status`, and ask again"
            );
        }
        Ok(Exit::Fine)
    }
}
