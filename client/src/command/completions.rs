//! `gpuadmit completions`

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{Command, Exit, output::Output};

/// Write the completions of a shell to standard output.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    /// Runs it.
    pub(crate) fn run(&self, output: &mut Output) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        generate(self.shell, &mut Command::command(), "gpuadmit", &mut script);
        output.print(&String::from_utf8(script)?)?;
        Ok(Exit::Fine)
    }
}
