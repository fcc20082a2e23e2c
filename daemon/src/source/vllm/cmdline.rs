//! A vLLM server's command line and environment: whether it is one, and what it was told.

use std::path::Path;

use super::model_source::Places;

/// What an engine was told when it was started. `None` where it was not told, or not understandably.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Command {
    /// Model path or name.
    pub model: Option<String>,
    /// Names that clients may send, where given.
    pub served_names: Vec<String>,
    /// Address to listen on.
    pub host: Option<String>,
    /// Port to listen on; vLLM's default is [`DEFAULT_PORT`].
    pub port: Option<u16>,
    /// Unix socket to listen on instead.
    pub uds: Option<String>,
    /// Prefix of all paths; vLLM answers with and without.
    pub root_path: Option<String>,
    /// Context window, tokens.
    pub max_model_len: Option<u64>,
    /// Tokens per block.
    pub block_size: Option<u64>,
    /// Share of device memory, above 0 to 1.
    pub gpu_memory_utilization: Option<f64>,
    /// Tensor-parallel ranks.
    pub tensor_parallel_size: Option<u32>,
    /// Data-parallel ranks.
    pub data_parallel_size: Option<u32>,
    /// Most running sequences.
    pub max_num_seqs: Option<u64>,
    /// Most tokens per step.
    pub max_num_batched_tokens: Option<u64>,
    /// Whether clients need a key. The key itself is not kept.
    pub wants_api_key: bool,
    /// Whether adapters may be served.
    pub adapters: bool,
    /// Whether its statistics are switched off.
    pub statistics_off: bool,
    /// Where its tokenizer is from.
    pub places: Places,
}

/// Port of a server that was not told one.
pub const DEFAULT_PORT: u16 = 8000;
/// Most served names kept.
const MAX_NAMES: usize = 64;

impl Command {
    /// What a process was told; `None` when its command line is no vLLM server's.
    #[must_use]
    pub fn parse(args: &[String]) -> Option<Self> {
        let rest = server_arguments(args)?;
        let mut command = Self::default();
        let mut rest = rest.iter().map(String::as_str).peekable();
        // `vllm serve MODEL …`: vLLM takes the model first.
        command.model = rest.next_if(|word| !word.starts_with('-')).map(Into::into);
        while let Some(word) = rest.next() {
            let Some((flag, given)) = flag(word) else { continue };
            if flag == "served-model-name" {
                // Given twice, the last counts.
                command.served_names = given.map(Into::into).into_iter().collect();
                while let Some(name) = rest.next_if(|word| !word.starts_with('-')) {
                    command.served_names.push(name.into());
                }
                command.served_names.truncate(MAX_NAMES);
                continue;
            }
            let value = given.or_else(|| rest.next_if(|word| !word.starts_with("--")));
            command.set(&flag, value);
        }
        Some(command)
    }

    /// Adds what the environment tells.
    pub fn add_environment<'a>(&mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (name, value) in variables {
            match name {
                "VLLM_API_KEY" => self.wants_api_key |= !value.is_empty(),
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING" => self.adapters |= matches!(value, "1" | "true" | "True"),
                _ => self.places.add_variable(name, value),
            }
        }
    }

    /// Names clients may send: the served ones, else the model.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        if self.served_names.is_empty() {
            return self.model.iter().map(String::as_str).collect();
        }
        self.served_names.iter().map(String::as_str).collect()
    }

    fn set(&mut self, flag: &str, value: Option<&str>) {
        let text = || value.map(String::from);
        match flag {
            "model" => self.model = text(),
            "host" => self.host = text(),
            "port" => self.port = value.and_then(|value| value.parse().ok()).filter(|port| *port != 0),
            "uds" => self.uds = text(),
            "root-path" => self.root_path = text(),
            "max-model-len" => self.max_model_len = value.and_then(tokens),
            "block-size" => self.block_size = value.and_then(tokens),
            "gpu-memory-utilization" => {
                let share = value.and_then(|value| value.parse().ok());
                self.gpu_memory_utilization = share.filter(|share| *share > 0.0 && *share <= 1.0);
            }
            "tensor-parallel-size" | "tp" => self.tensor_parallel_size = value.and_then(ranks),
            "data-parallel-size" | "dp" => self.data_parallel_size = value.and_then(ranks),
            "max-num-seqs" => self.max_num_seqs = value.and_then(tokens),
            "max-num-batched-tokens" => self.max_num_batched_tokens = value.and_then(tokens),
            "api-key" => self.wants_api_key = true,
            "enable-lora" | "lora-modules" => self.adapters = true,
            "disable-log-stats" => self.statistics_off = true,
            "no-disable-log-stats" => self.statistics_off = false,
            _ => self.places.set(flag, value),
        }
    }
}

/// The arguments of the server, behind `vllm serve` or the module's name.
fn server_arguments(args: &[String]) -> Option<&[String]> {
    let (program, rest) = args.split_first()?;
    if file_name(program) == "vllm" {
        return serve(rest);
    }
    if !file_name(program).starts_with("python") {
        return None;
    }
    let rest = python_target(rest)?;
    let (target, rest) = rest.split_first()?;
    match target.as_str() {
        "vllm.entrypoints.openai.api_server" => Some(rest),
        "vllm" | "vllm.entrypoints.cli.main" => serve(rest),
        path if path.ends_with("vllm/entrypoints/openai/api_server.py") => Some(rest),
        path if file_name(path) == "vllm" => serve(rest),
        _ => None,
    }
}

fn serve(args: &[String]) -> Option<&[String]> {
    let (subcommand, rest) = args.split_first()?;
    (subcommand == "serve").then_some(rest)
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

/// `--max_model_len=8` and `--max-model-len` are one flag: its name with hyphens, and its value if it is in the word.
fn flag(word: &str) -> Option<(String, Option<&str>)> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
    Some((name.replace('_', "-"), value))
}

fn ranks(text: &str) -> Option<u32> {
    text.parse().ok().filter(|ranks| *ranks > 0)
}

/// A count as vLLM takes it: `4096`, `4k` = 4,000, `4K` = 4,096, `1.5k` (arg_utils.py, human_readable_int).
fn tokens(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1))?;
    let (decimal, binary): (u64, u64) = match unit {
        "k" => (1_000, 0),
        "m" => (1_000_000, 0),
        "g" => (1_000_000_000, 0),
        "K" => (0, 1 << 10),
        "M" => (0, 1 << 20),
        "G" => (0, 1 << 30),
        _ => return text.parse().ok().filter(|count| *count > 0),
    };
    if binary > 0 {
        return digits.parse::<u64>().ok()?.checked_mul(binary).filter(|count| *count > 0);
    }
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let scale = 10u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let part = part.parse::<u64>().ok()?.checked_mul(decimal)?.checked_div(scale)?;
    whole.parse::<u64>().ok()?.checked_mul(decimal)?.checked_add(part).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(Into::into).collect()
    }

    fn parse(line: &str) -> Command {
        Command::parse(&words(line)).expect(line)
    }

    #[test]
    fn servers_are_known_by_their_command_line() {
        for line in [
            "/opt/venv/bin/python /opt/venv/bin/vllm serve m",
            "vllm serve m",
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            "/usr/bin/python3.11 -u -X dev -m vllm.entrypoints.openai.api_server --model=m",
            "python -m vllm.entrypoints.cli.main serve m",
            "python /site-packages/vllm/entrypoints/openai/api_server.py --model m",
        ] {
            assert_eq!(parse(line).model.as_deref(), Some("m"), "{line}");
        }
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
            assert_eq!(Command::parse(&words(line)), None, "{line}");
        }
    }

    #[test]
    fn flags_are_understood_in_every_spelling() {
        let one = "vllm serve /models/tiny --served-model-name tiny small --host 127.0.0.1 --port 8032 \
            --max-model-len 2k --block_size=32 --gpu-memory-utilization 0.9 --tensor-parallel-size 2 -dp 4 \
            --max-num-seqs=64 --max_num_batched_tokens 8K --api-key secret --root-path /x --enable-lora --uds /s \
            --disable-log-stats";
        let command = parse(one);
        let expected = Command {
            model: Some("/models/tiny".into()),
            served_names: vec!["tiny".into(), "small".into()],
            host: Some("127.0.0.1".into()),
            port: Some(8032),
            uds: Some("/s".into()),
            root_path: Some("/x".into()),
            max_model_len: Some(2000),
            block_size: Some(32),
            gpu_memory_utilization: Some(0.9),
            tensor_parallel_size: Some(2),
            data_parallel_size: Some(4),
            max_num_seqs: Some(64),
            max_num_batched_tokens: Some(8192),
            wants_api_key: true,
            adapters: true,
            statistics_off: true,
            places: Places::default(),
        };
        assert_eq!(command, expected);
        assert!(!format!("{command:?}").contains("secret"));
    }

    #[test]
    fn what_is_not_understood_is_unknown() {
        let command =
            parse("vllm serve m --port 70000 --max-model-len auto --gpu-memory-utilization 7 --port");
        assert_eq!(command, Command { model: Some("m".into()), ..Command::default() });
        assert_eq!(command.names(), ["m"]);
        assert_eq!(parse("vllm serve --max-model-len -1 --port 9").port, Some(9));
        assert_eq!(parse("vllm serve m --served-model-name a b --served-model-name c").names(), ["c"]);
    }

    #[test]
    fn counts_are_read_as_vllm_reads_them() {
        let counts = ["16", "1k", "1K", "25.6k", "1.5K", "0", "-1", "k", "", "18446744073709551615K", "é"];
        let expected =
            [Some(16), Some(1000), Some(1024), Some(25_600), None, None, None, None, None, None, None];
        assert_eq!(counts.map(tokens), expected);
    }

    #[test]
    fn the_environment_tells_of_keys_and_adapters() {
        let mut command = Command::default();
        command.add_environment([
            ("VLLM_API_KEY", "secret"),
            ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),
            ("PORT", "1"),
        ]);
        assert_eq!(command, Command { wants_api_key: true, adapters: true, ..Command::default() });
    }
}
