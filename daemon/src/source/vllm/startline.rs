//! A vLLM server's start line: its command line with the file of `--config`, as vLLM's own parser reads them (vLLM 0.32,
//! utils/argparse_utils.py, `FlexibleArgumentParser`, and CPython's argparse).

use std::{collections::BTreeMap, path::Path};

use super::{
    config_file::ConfigError,
    json_options,
    options::{self, Takes, Word},
};

/// Most values kept of one option.
const MAX_VALUES: usize = 64;

/// What the options of a start line say. The last of several counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartLine {
    model: Option<String>,
    given: BTreeMap<&'static str, Given>,
    /// The file of `--config`, and why it tells nothing.
    unread_config: Option<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Given {
    Switch(bool),
    Values(Vec<String>),
}

/// How a server was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// `vllm serve MODEL`.
    Serve,
    /// `python -m vllm.entrypoints.openai.api_server`, which takes no model without `--model`.
    Module,
}

impl StartLine {
    /// Reads a process's arguments; `None` when they are no vLLM server's. `config` reads the file of `--config`.
    #[must_use]
    pub fn read(
        args: &[String],
        config: impl FnOnce(&str) -> Result<Vec<String>, ConfigError>,
    ) -> Option<Self> {
        let (entry, words) = server_arguments(args)?;
        let mut line = Self::default();
        let mut words = if entry == Entry::Serve { model_first(words) } else { words.to_vec() };
        line.pull_config(&mut words, config);
        line.take(&json_options::merge(words.iter().flat_map(|word| spelled(word)).collect()));
        if entry == Entry::Module || line.model.is_none() {
            line.model = line.text("model").map(Into::into);
        }
        Some(line)
    }

    /// Model path or name.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Value of an option, named as in `gpu-memory-utilization`; `None` where it was not given, or as Python's `None`.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values(name).last().map(String::as_str).filter(|value| !value.is_empty() && *value != "None")
    }

    /// Values of an option that takes several.
    #[must_use]
    pub fn values(&self, name: &str) -> &[String] {
        match self.given.get(name) {
            Some(Given::Values(values)) => values,
            _ => &[],
        }
    }

    /// Whether a switch is on.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.given.get(name) == Some(&Given::Switch(true))
    }

    /// Options with a value, and the last value of each.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.given.keys().filter_map(|name| Some((*name, self.text(name)?)))
    }

    /// The file of `--config` that could not be read, and why.
    #[must_use]
    pub fn unread_config(&self) -> Option<(&str, &str)> {
        self.unread_config.as_ref().map(|(file, why)| (file.as_str(), why.as_str()))
    }

    /// Puts the options of the file behind the model and before the others, which win. vLLM knows `--config FILE` alone:
    /// `--config=FILE` is read by nobody.
    fn pull_config(
        &mut self,
        words: &mut Vec<String>,
        config: impl FnOnce(&str) -> Result<Vec<String>, ConfigError>,
    ) {
        let Some(at) = words.iter().position(|word| word == "--config") else { return };
        let Some(file) = words.get(at.saturating_add(1)).cloned() else { return };
        words.drain(at..at.saturating_add(2));
        match config(&file) {
            Ok(options) => {
                let model = usize::from(words.first().is_some_and(|word| !word.starts_with('-')));
                words.splice(model..model, options);
            }
            Err(why) => self.unread_config = Some((file, why.to_string())),
        }
    }

    /// Takes in words as argparse does.
    fn take(&mut self, words: &[String]) {
        let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
        let (before, after) = words.split_at(end);
        let mut rest = before;
        while let Some((word, behind)) = rest.split_first() {
            rest = behind;
            let values = rest.iter().take_while(|word| options::word(word) == Word::Value);
            match options::word(word) {
                Word::Value => self.add_model(word),
                // How many values it takes is not known; in no start line does the model follow them.
                Word::Unknown if word.contains('=') => {}
                Word::Unknown => rest = rest.get(values.count()..).unwrap_or_default(),
                Word::Option(spelling, Some(value)) => {
                    if !matches!(spelling.takes, Takes::Nothing { .. }) {
                        self.given.insert(spelling.name, Given::Values(vec![value.into()]));
                    }
                }
                Word::Option(spelling, None) => {
                    let most = match spelling.takes {
                        Takes::Nothing { .. } => 0,
                        Takes::One | Takes::AtMostOne => 1,
                        Takes::Many => usize::MAX,
                    };
                    let taken = values.take(most).count();
                    let given = match spelling.takes {
                        Takes::Nothing { on } => Given::Switch(on),
                        _ => {
                            let values = rest.iter().take(taken.min(MAX_VALUES)).cloned();
                            Given::Values(values.collect())
                        }
                    };
                    self.given.insert(spelling.name, given);
                    rest = rest.get(taken..).unwrap_or_default();
                }
            }
        }
        after.iter().skip(1).for_each(|word| self.add_model(word));
    }

    fn add_model(&mut self, word: &str) {
        self.model.get_or_insert_with(|| word.into());
    }
}

/// `vllm serve … --model X` is `vllm serve X …`.
fn model_first(words: &[String]) -> Vec<String> {
    let names =
        |word: &String| word == "--model" || word.strip_prefix("--model=").is_some_and(|m| !m.is_empty());
    let Some(at) = words.iter().position(names) else { return words.to_vec() };
    let (before, from) = words.split_at(at);
    let (model, rest) = match from {
        [word, rest @ ..] if word != "--model" => (word.trim_start_matches("--model="), rest),
        [_, model, rest @ ..] => (model.as_str(), rest),
        _ => return words.to_vec(),
    };
    [&[model.to_owned()], before, rest].concat()
}

/// A word as argparse is given it: option names with hyphens, `-O3` as `--optimization-level 3`.
fn spelled(word: &str) -> Vec<String> {
    if word.starts_with("--") {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let (name, keys) = name.split_at(name.find('.').unwrap_or(name.len()));
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        return vec![format!("{}{keys}{value}", name.replace('_', "-"))];
    }
    match word.strip_prefix("-O") {
        Some(level) if !level.is_empty() => {
            let level = level.strip_prefix('=').unwrap_or(level);
            vec!["--optimization-level".into(), level.into()]
        }
        _ => vec![word.into()],
    }
}

/// Whether these are the arguments of a vLLM server.
pub(super) fn is_server(args: &[String]) -> bool {
    server_arguments(args).is_some()
}

/// The arguments of the server, behind `vllm serve` or the module's name.
fn server_arguments(args: &[String]) -> Option<(Entry, &[String])> {
    let (program, rest) = args.split_first()?;
    if file_name(program) == "vllm" {
        return serve(rest);
    }
    if !file_name(program).starts_with("python") {
        return None;
    }
    let (target, rest) = python_target(rest)?.split_first()?;
    match target.as_str() {
        "vllm.entrypoints.openai.api_server" | "vllm.entrypoints.launchers.api_server.entry" => {
            Some((Entry::Module, rest))
        }
        "vllm" | "vllm.entrypoints.cli.main" => serve(rest),
        path if path.ends_with("vllm/entrypoints/openai/api_server.py") => Some((Entry::Module, rest)),
        path if path.ends_with("vllm/entrypoints/cli/main.py") || file_name(path) == "vllm" => serve(rest),
        _ => None,
    }
}

fn serve(args: &[String]) -> Option<(Entry, &[String])> {
    let (subcommand, rest) = args.split_first()?;
    (subcommand == "serve").then_some((Entry::Serve, rest))
}

/// Skips the interpreter's own options: what begins with the script or the module's name. `-c` runs neither.
fn python_target(mut args: &[String]) -> Option<&[String]> {
    loop {
        let (word, rest) = args.split_first()?;
        args = match word.as_str() {
            "-m" => return Some(rest),
            "-c" | "-" => return None,
            "-X" | "-W" => rest.split_first()?.1,
            option if option.starts_with('-') => rest,
            _ => return Some(args),
        };
    }
}

fn file_name(path: &str) -> &str {
    Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(Into::into).collect()
    }

    fn read(line: &str) -> StartLine {
        StartLine::read(&words(line), |_| Err(ConfigError::Form)).expect(line)
    }

    #[test]
    fn servers_are_known_by_their_command_line() {
        for line in [
            "/opt/venv/bin/python /opt/venv/bin/vllm serve m",
            "vllm serve m",
            "vllm serve --port 1 --model m",
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            "python3 -m vllm.entrypoints.launchers.api_server.entry --model m",
            "/usr/bin/python3.11 -u -X dev -m vllm.entrypoints.openai.api_server --model=m",
            "python -m vllm.entrypoints.cli.main serve m",
            "python /site-packages/vllm/entrypoints/openai/api_server.py --model m",
        ] {
            assert_eq!(read(line).model(), Some("m"), "{line}");
        }
        assert_eq!(read("python -m vllm.entrypoints.openai.api_server m").model(), None, "vLLM ignores it");
    }

    #[test]
    fn programs_that_only_mention_vllm_are_no_servers() {
        for line in [
            "",
            "bash -c vllm serve m",
            "grep vllm serve",
            "vim /opt/vllm/serve.py",
            "vllm bench serve",
            "vllm chat",
            "python -c vllm serve",
            "python train.py vllm serve",
            "python -m http.server 8000",
            "uv run vllm serve m",
            "tail -f vllm serve",
        ] {
            assert_eq!(StartLine::read(&words(line), |_| Ok(vec![])), None, "{line}");
        }
    }

    #[test]
    fn options_are_understood_in_every_spelling() {
        let line = read(
            "vllm serve m --gpu-memory-util 0.5 --max_model_len=8k -tp 2 -O3 --no-enable-lora --api-key a b --por 9 \
             --kv-transfer-config.kv_role both --kv-transfer-config.sizes+ 1,2 --seed -1",
        );
        let of = |name| line.text(name);
        assert_eq!(line.model(), Some("m"));
        assert_eq!((of("gpu-memory-utilization"), of("max-model-len")), (Some("0.5"), Some("8k")));
        assert_eq!((of("tensor-parallel-size"), of("optimization-level")), (Some("2"), Some("3")));
        assert_eq!((of("port"), of("seed")), (Some("9"), Some("-1")));
        assert_eq!(line.values("api-key"), ["a", "b"]);
        assert_eq!(of("kv-transfer-config"), Some(r#"{"kv_role":"both","sizes":["1","2"]}"#));
        assert!(!line.is_on("enable-lora") && read("vllm serve m --enable_lora").is_on("enable-lora"));
    }

    #[test]
    fn what_is_ambiguous_or_of_another_version_is_passed_over() {
        let line = read("vllm serve m --max-num 5 --swap-space 4 --disable-log-requests --port 9 --guided=x");
        assert_eq!((line.text("port"), line.model()), (Some("9"), Some("m")));
        assert_eq!(line.given.len(), 1);
        assert_eq!(read("vllm serve m --port 1 --port").values("port"), [""; 0]);
    }

    #[test]
    fn a_configuration_file_comes_before_the_other_options() {
        let file = |line: &str| {
            let config = |name: &str| match name {
                "c.yaml" => Ok(words("--port 1 --model x --served-model-name a b")),
                _ => Err(ConfigError::Name),
            };
            StartLine::read(&words(line), config).expect(line)
        };
        let line = file("vllm serve m --port 2 --config c.yaml");
        assert_eq!((line.model(), line.text("port")), (Some("m"), Some("2")));
        let line = file("vllm serve --config c.yaml --served-model-name c");
        assert_eq!((line.model(), line.text("port")), (Some("x"), Some("1")));
        assert_eq!(line.values("served-model-name"), ["c"]);
        assert_eq!(file("python -m vllm.entrypoints.openai.api_server --config c.yaml").model(), Some("x"));
        // vLLM passes these over.
        assert_eq!(file("vllm serve m --config=c.yaml").text("port"), None);
        assert_eq!(file("vllm serve m --conf c.yaml").text("port"), None);
        let (name, why) = ("c.json", "its name ends neither in .yaml nor in .yml");
        assert_eq!(file("vllm serve m --config c.json").unread_config(), Some((name, why)));
    }
}
