//! The `gpuadmit` command.

mod catalog;
mod command;
mod doctor;
mod plan;
mod render;
mod stress;
mod top;

use std::process::ExitCode;

use clap::Parser as _;

/// Exit status of errors, the same as clap's for wrong usage.
const ERROR: u8 = 2;

fn main() -> ExitCode {
    match command::Command::parse().run() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("gpuadmit: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}
