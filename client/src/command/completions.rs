//! `gpuadmit completions`

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{Command, Exit, output::Output};

/// Adds the ids of a running daemon's engines to bash's completion of options, which is left as it is otherwise.
const BASH: &str = r#"
_gpuadmit_engines() {
    local id current="${COMP_WORDS[COMP_CWORD]}"
    while IFS= read -r id; do
        [[ $id == "$current"* ]] && COMPREPLY+=("$(printf %q "$id")")
    done < <("${COMP_WORDS[0]}" __complete engines -- "${COMP_WORDS[@]}" 2>/dev/null)
}

_gpuadmit_all() {
    if [[ ${COMP_WORDS[COMP_CWORD-1]} == --engine ]]; then
        COMPREPLY=()
        _gpuadmit_engines
        return
    fi
    _gpuadmit "$@"
    if [[ ${COMP_WORDS[COMP_CWORD-1]} == stress ]]; then _gpuadmit_engines; fi
}

complete -F _gpuadmit_all -o nosort -o bashdefault -o default gpuadmit
"#;

/// The same for zsh: a function that `_arguments` calls where it would offer files.
const ZSH: &str = r#"
_gpuadmit_engines() {
    local -a ids
    ids=(${(f)"$(gpuadmit __complete engines -- "${words[@]}" 2>/dev/null)"})
    compadd -a ids
}
"#;

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
        output.print(&with_engines(self.shell, String::from_utf8(script)?))?;
        Ok(Exit::Fine)
    }
}

/// `script` with the ids of engines where one is asked for.
fn with_engines(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => {
            let asks = |line: &str| line.contains("--engine=[") || line.starts_with("'::engine --");
            let line = |line: &str| {
                let line = if asks(line) {
                    line.replace(":_default'", ":_gpuadmit_engines'")
                } else {
                    line.to_owned()
                };
                line + "\n"
            };
            let (head, rest) = script.split_once('\n').unwrap_or((&script, ""));
            // `#compdef gpuadmit` has to be the first line.
            format!("{head}\n{ZSH}{}", rest.lines().map(line).collect::<String>())
        }
        Shell::Fish => {
            let ids = "(gpuadmit __complete engines -- (commandline -xpc) 2>/dev/null)";
            let takes_one = |name: &str| {
                let option = if name == "stress" { "" } else { " -l engine -x" };
                format!(
                    "complete -c gpuadmit -n '__fish_seen_subcommand_from {name}'{option} -f -a \"{ids}\"\n"
                )
            };
            script + &engine_commands().iter().map(|name| takes_one(name)).collect::<String>()
        }
        _ => script,
    }
}

/// Commands that take the id of an engine.
fn engine_commands() -> Vec<String> {
    let takes =
        |command: &&clap::Command| command.get_arguments().any(|argument| argument.get_id() == "engine");
    Command::command().get_subcommands().filter(takes).map(|command| command.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_takes_an_engine_offers_those_there_are() {
        let script = |shell| {
            let mut script = Vec::new();
            generate(shell, &mut Command::command(), "gpuadmit", &mut script);
            with_engines(shell, String::from_utf8(script).unwrap())
        };
        assert_eq!(engine_commands(), ["admit", "headroom", "guard", "stress", "plan"]);
        assert_eq!(script(Shell::Zsh).matches(":_gpuadmit_engines'").count(), 5);
        assert!(script(Shell::Zsh).starts_with("#compdef gpuadmit\n"));
        assert_eq!(script(Shell::Fish).matches("__complete engines").count(), 5);
        assert!(
            script(Shell::Bash)
                .ends_with("complete -F _gpuadmit_all -o nosort -o bashdefault -o default gpuadmit\n")
        );
    }
}
