//! `gpuadmit __complete`: words that a shell offers and only a running daemon knows.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use gpuadmit_client::{connect, v1::StatusRequest, within};

use super::{Exit, output::Output};

/// Longest time for an answer: somebody waits with a finger on the Tab key.
const DEADLINE: Duration = Duration::from_millis(300);

/// Write what may stand at a place of a command line, one word a line; nothing where no daemon answers.
#[derive(Args, Debug)]
pub(crate) struct Candidates {
    /// What is asked for.
    what: What,
    /// The words of the command line, which may name another socket.
    #[arg(last = true)]
    words: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Ids of engines.
    Engines,
}

impl Candidates {
    /// Runs it.
    pub(crate) async fn run(self, socket: PathBuf, output: &mut Output) -> anyhow::Result<Exit> {
        let What::Engines = self.what;
        let socket = named(&self.words).map_or(socket, Path::to_owned);
        let request = within(DEADLINE, StatusRequest { events: Some(0) });
        // An error would be written in the midst of the command line.
        let Ok(connection) = connect(socket) else { return Ok(Exit::Fine) };
        let Ok(Ok(status)) = tokio::time::timeout(DEADLINE, connection.node().status(request)).await else {
            return Ok(Exit::Fine);
        };
        let ids = status.get_ref().engines.iter().map(|engine| engine.id.as_str());
        let lines = ids.filter(|id| !id.contains(char::is_control)).map(|id| format!("{id}\n"));
        output.print(&lines.collect::<String>())?;
        Ok(Exit::Fine)
    }
}

/// The socket that `words` name.
fn named(words: &[OsString]) -> Option<&Path> {
    let place = words.iter().position(|word| word == "--socket")?;
    words.get(place + 1).map(Path::new)
}
