//! What a vLLM server was told by its start line and its environment, as far as it is of use here.

use super::{
    config_file::ConfigError,
    model_source::Places,
    numbers::{float, human_readable, int},
    startline::StartLine,
};

/// What an engine was told when it was started. `None` where it was not told, or not understandably.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Command {
    /// Model path or name.
    pub model: Option<String>,
    /// Names that clients may send, where given.
    pub served_names: Vec<String>,
    /// Address to listen on.
    pub host: Option<String>,
    /// Port to listen on; 0: any. vLLM's default is [`DEFAULT_PORT`].
    pub port: Option<u16>,
    /// Unix socket to listen on instead.
    pub uds: Option<String>,
    /// What it speaks there.
    pub speaks: Speaks,
    /// Context window, tokens.
    pub max_model_len: Option<u64>,
    /// Tokens per block.
    pub block_size: Option<u64>,
    /// Share of device memory, above 0 to 1.
    pub gpu_memory_utilization: Option<f64>,
    /// Data-parallel ranks behind its address.
    pub data_parallel_size: Option<u32>,
    /// Most running sequences.
    pub max_num_seqs: Option<u64>,
    /// Most tokens per step.
    pub max_num_batched_tokens: Option<u64>,
    /// Whether adapters may be served.
    pub adapters: bool,
    /// Whether its statistics are switched off.
    pub statistics_off: bool,
    /// Whether each data-parallel rank has a port of its own, from [`port`](Self::port) on.
    pub port_per_rank: bool,
    /// Of a server without an API: its first data-parallel rank, or its node's rank.
    pub first_rank: u32,
    /// Why the file of its `--config` tells nothing, with its name.
    pub unread_config: Option<String>,
    /// Where its tokenizer is from.
    pub places: Places,
}

/// What a server speaks at its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP, in which it can be asked.
    #[default]
    Http,
    /// HTTP over TLS.
    Tls,
    /// gRPC alone.
    Grpc,
    /// Nothing: it has no API server.
    Nothing,
}

/// Port of a server that was not told one.
pub const DEFAULT_PORT: u16 = 8000;

impl Command {
    /// What a process was told; `None` when its command line is no vLLM server's. `config` reads the file of `--config`.
    #[must_use]
    pub fn parse(
        args: &[String],
        config: impl FnOnce(&str) -> Result<Vec<String>, ConfigError>,
    ) -> Option<Self> {
        let line = StartLine::read(args, config)?;
        let text = |name| line.text(name).map(String::from);
        let count = |name| line.text(name).and_then(count);
        let mut places = Places::default();
        line.texts().for_each(|(name, value)| places.set(name, Some(value)));
        Some(Self {
            model: line.model().map(Into::into),
            served_names: line.values("served-model-name").to_vec(),
            host: text("host"),
            port: line.text("port").and_then(int).and_then(|port| port.try_into().ok()),
            uds: text("uds"),
            speaks: speaks(&line),
            max_model_len: count("max-model-len"),
            block_size: count("block-size"),
            gpu_memory_utilization: line
                .text("gpu-memory-utilization")
                .and_then(float)
                .filter(|share| *share > 0.0 && *share <= 1.0),
            data_parallel_size: ranks(&line),
            max_num_seqs: count("max-num-seqs"),
            max_num_batched_tokens: count("max-num-batched-tokens"),
            adapters: line.is_on("enable-lora") || !line.values("lora-modules").is_empty(),
            statistics_off: line.is_on("disable-log-stats"),
            port_per_rank: line.is_on("data-parallel-multi-port-external-lb"),
            first_rank: first_rank(&line),
            unread_config: line.unread_config().map(|(file, why)| format!("{file}: {why}")),
            places,
        })
    }

    /// Adds what the environment tells (vLLM 0.32, envs.py).
    pub fn add_environment<'a>(&mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (name, value) in variables {
            match name {
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING" => {
                    self.adapters |= matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true");
                }
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
}

/// What it speaks (vLLM 0.32, entrypoints/cli/serve.py; uvicorn speaks TLS as soon as it has a key or a certificate).
fn speaks(line: &StartLine) -> Speaks {
    let servers = line.text("api-server-count").and_then(int);
    if line.is_on("grpc") {
        Speaks::Grpc
    } else if line.is_on("headless") || servers.is_some_and(|servers| servers < 1) {
        Speaks::Nothing
    } else if line.text("ssl-keyfile").or(line.text("ssl-certfile")).is_some() {
        Speaks::Tls
    } else {
        Speaks::Http
    }
}

/// Data-parallel ranks behind the address: one where a load balancer outside chooses the rank, those of this machine where
/// it chooses the machine.
fn ranks(line: &StartLine) -> Option<u32> {
    let ranks = |name| {
        line.text(name).and_then(int).and_then(|ranks| ranks.try_into().ok()).filter(|ranks| *ranks > 0)
    };
    let outside = ["data-parallel-external-lb", "data-parallel-multi-port-external-lb"];
    if outside.iter().any(|name| line.is_on(name)) || line.text("data-parallel-rank").is_some() {
        return Some(1);
    }
    if line.is_on("data-parallel-hybrid-lb") || line.text("data-parallel-start-rank").is_some() {
        return Some(ranks("data-parallel-size-local").unwrap_or(1));
    }
    ranks("data-parallel-size")
}

fn first_rank(line: &StartLine) -> u32 {
    let options = ["data-parallel-start-rank", "data-parallel-rank", "node-rank"];
    let rank = |name: &&str| line.text(name).and_then(int).and_then(|rank| rank.try_into().ok());
    options.iter().find_map(rank).unwrap_or(0)
}

/// A count above zero.
fn count(text: &str) -> Option<u64> {
    human_readable(text).and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Command {
        let words: Vec<String> = line.split(' ').map(Into::into).collect();
        Command::parse(&words, |_| Err(ConfigError::Form)).expect(line)
    }

    #[test]
    fn what_is_told_is_known_in_every_spelling() {
        let one = "vllm serve /models/tiny --served-model-name tiny small --host 127.0.0.1 --port 8032 \
            --max-model-len 2k --block_size=32 --gpu-memory-util 0.9 --tensor-parallel-size 2 -dp 4 \
            --max-num-seqs=64 --max_num_batched_tokens 8K --api-key secret --root-path /x --enable-lora --uds /s \
            --disable-log-stats";
        let command = parse(one);
        let expected = Command {
            model: Some("/models/tiny".into()),
            served_names: vec!["tiny".into(), "small".into()],
            host: Some("127.0.0.1".into()),
            port: Some(8032),
            uds: Some("/s".into()),
            max_model_len: Some(2000),
            block_size: Some(32),
            gpu_memory_utilization: Some(0.9),
            data_parallel_size: Some(4),
            max_num_seqs: Some(64),
            max_num_batched_tokens: Some(8192),
            adapters: true,
            statistics_off: true,
            ..Command::default()
        };
        assert_eq!(command, expected);
        assert!(!format!("{command:?}").contains("secret"));
    }

    #[test]
    fn what_is_not_understood_is_unknown() {
        let command = parse(
            "vllm serve m --port 70000 --max-model-len auto --gpu-memory-utilization 7 --max-num-seqs 0",
        );
        assert_eq!(command, Command { model: Some("m".into()), ..Command::default() });
        assert_eq!(command.names(), ["m"]);
        assert_eq!(parse("vllm serve --max-model-len -1 --port 9").port, Some(9));
        assert_eq!(parse("vllm serve m --served-model-name a b --served-model-name c").names(), ["c"]);
        let unread = parse("vllm serve m --config /etc/vllm.yaml").unread_config.unwrap();
        assert!(unread.starts_with("/etc/vllm.yaml: it is no YAML table"), "{unread}");
    }

    #[test]
    fn what_it_speaks_follows_from_its_options() {
        for (options, speaks) in [
            ("", Speaks::Http),
            ("--ssl-certfile c.pem --ssl-keyfile k.pem", Speaks::Tls),
            ("--ssl-k k.pem", Speaks::Tls),
            ("--ssl-keyfile None", Speaks::Http),
            ("--ssl-ca-certs a.pem", Speaks::Http),
            ("--headless", Speaks::Nothing),
            ("--headl --ssl-certfile c.pem", Speaks::Nothing),
            ("-asc 0", Speaks::Nothing),
            ("--grpc", Speaks::Grpc),
        ] {
            assert_eq!(parse(format!("vllm serve m {options}").trim()).speaks, speaks, "{options}");
        }
    }

    #[test]
    fn ranks_are_those_behind_the_address() {
        for (options, ranks) in [
            ("--port 1", None),
            ("-dp 4", Some(4)),
            ("-dp 4 --data-parallel-rank 2", Some(1)),
            ("-dp 4 -dpe", Some(1)),
            ("-dp 4 -dpm", Some(1)),
            ("-dp 4 --data-parallel-size-local 2", Some(4)),
            ("-dp 4 -dpl 2 -dph", Some(2)),
            ("-dp 4 -dpl 2 --data-parallel-start-rank 2", Some(2)),
        ] {
            assert_eq!(parse(&format!("vllm serve m {options}")).data_parallel_size, ranks, "{options}");
        }
    }

    #[test]
    fn the_environment_tells_of_adapters() {
        let mut command = Command::default();
        // VLLM_PORT is that of its processes among themselves.
        command.add_environment([("VLLM_ALLOW_RUNTIME_LORA_UPDATING", " True"), ("VLLM_PORT", "1")]);
        assert_eq!(command, Command { adapters: true, ..Command::default() });
    }
}
