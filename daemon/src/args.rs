//! The command line of `gpuadmitd`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Parser, Subcommand};

/// Node daemon that keeps LLM engines from running out of GPU memory.
///
/// Everything works without options and without a configuration file: engines and GPUs are found, and gateways ask
/// over the Unix socket whether a request may go in.
#[derive(Clone, Debug, Parser)]
#[command(name = "gpuadmitd", version)]
pub struct Args {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Unix socket to serve, instead of `socket.path` of the configuration.
    #[arg(long, value_name = "PATH", env = "GPUADMIT_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Serve a simulated node instead of the real one, by a scenario file where given.
    #[arg(long, value_name = "SCENARIO", num_args = 0..=1, require_equals = true)]
    pub simulate: Option<Option<PathBuf>>,
    /// Check the configuration, print "ok", or why it cannot be read, or every value that is not allowed; and exit.
    #[arg(long)]
    pub check_config: bool,
    /// What else this program can be.
    #[command(subcommand)]
    pub role: Option<Role>,
}

/// Other roles of this program.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Run recorded decisions again, under another policy, and print what would have changed.
    Replay {
        /// Record files; several of one run are taken in their order.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// `recorded`, `worst-case`, `forecast`, or a configuration file.
        #[arg(long, value_name = "POLICY", default_value = "recorded")]
        policy: String,
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Show at most so many of the decisions that differ.
        #[arg(long, value_name = "COUNT", default_value_t = 10)]
        examples: usize,
    },
    /// The process that calls NVML; started by the daemon.
    #[command(hide = true)]
    NvmlChild {
        /// Its options.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}
