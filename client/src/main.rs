//! The `gpuadmit` command.

mod catalog;
mod command;
mod doctor;
mod plan;
mod render;
mod stress;
mod top;

use std::process::ExitCode;

/// Exit status of errors, the same as clap's for wrong usage.
const ERROR: u8 = 2;

fn main() -> ExitCode {
    match command::Command::from_arguments().run() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("gpuadmit: {}", said(&error));
            ExitCode::from(ERROR)
        }
    }
}

/// `error` with its causes, each said once: many messages contain their cause.
fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match &*text {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read /x: {source}")]
    struct Read {
        source: std::io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let read = || Read { source: std::io::Error::other("it is gone") };
        assert_eq!(said(&read().into()), "cannot read /x: it is gone");
        let error = Err::<(), _>(read().source).context("cannot read /y").unwrap_err();
        assert_eq!(said(&error), "cannot read /y: it is gone");
    }
}
