//! `gpuadmit man`: the manual pages, from the same definitions as `--help`, and that of events from their catalog.

mod events_page;

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_mangen::Man as Page;

use super::{Command, Exit};

/// Write the manual pages into a folder.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The folder; it must exist.
    folder: PathBuf,
}

impl Man {
    /// Runs it.
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        for (name, text) in pages()? {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Exit::Fine)
    }
}

/// File names and contents: the command's page, one for each subcommand that is not hidden, and that of events.
fn pages() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Command::command().disable_help_subcommand(true);
    command.build();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let commands = std::iter::once(&command).chain(subcommands);
    let events = ("gpuadmit-events.7".to_owned(), events_page::page().into_bytes());
    commands
        .map(|one| {
            let page = Page::new(one.clone());
            let name = page.get_filename();
            let mut text = Vec::new();
            page.render(&mut text)?;
            Ok((name, text))
        })
        .chain([Ok(events)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_manual_is_what_the_command_says() {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/man"));
        for (name, text) in pages().unwrap() {
            let committed = fs::read(folder.join(&name)).unwrap_or_default();
            assert!(committed == text, "systemd/man/{name} is outdated: run `gpuadmit man systemd/man`");
        }
    }
}
