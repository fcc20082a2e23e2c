//! What arrives: requests with their true lengths.

mod family;
mod files;
mod pattern;
mod synthetic;

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    random::{Random, hash},
    time::{Nanos, nanos, seconds},
};

pub(crate) use family::{Conversation, Drawn, Family, Lengths};
pub(crate) use pattern::Pattern;
pub(crate) use synthetic::{HOSTILE, Kind};

/// Where a trace comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    Synthetic(Kind),
    /// A family of requests that begin at random times.
    Drawn(Box<Drawn>),
    /// Azure LLM inference trace: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    Azure(PathBuf),
    /// Mooncake: JSON Lines with timestamp in ms, input_length, output_length, hash_ids of 512-token blocks.
    Mooncake(PathBuf),
}

impl Source {
    /// A file's format by its ending.
    pub(crate) fn of_file(path: &std::path::Path) -> Self {
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            Self::Mooncake(path.into())
        } else {
            Self::Azure(path.into())
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Synthetic(kind) => kind.name().into(),
            Self::Drawn(drawn) => format!("{} in {}", drawn.family.name, drawn.pattern.name()),
            Self::Azure(path) | Self::Mooncake(path) => {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                stem.trim_start_matches("AzureLLMInferenceTrace_").to_owned()
            }
        }
    }

    /// Whether prompts share prefixes.
    pub(crate) fn shares_prefixes(&self) -> bool {
        match self {
            Self::Mooncake(_) | Self::Synthetic(Kind::Turns) => true,
            Self::Drawn(drawn) => drawn.family.shares_prefixes(),
            Self::Synthetic(_) | Self::Azure(_) => false,
        }
    }

    /// Requests that arrive within `length`, at `speed` times the trace's pace; a trace that is shorter is repeated.
    pub(crate) fn load(&self, speed: f64, length: Nanos, seed: u64) -> Result<Vec<Arrival>> {
        let span = nanos(seconds(length) * speed);
        let mut arrivals = match self {
            Self::Synthetic(kind) => kind.generate(span, seed),
            Self::Drawn(drawn) => drawn.generate(span, seed),
            Self::Azure(path) => files::azure(path, span)?,
            Self::Mooncake(path) => files::mooncake(path, span)?,
        };
        for arrival in &mut arrivals {
            arrival.at = nanos(seconds(arrival.at) / speed);
        }
        Ok(arrivals)
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Nanos,
    /// Prompt tokens.
    pub(crate) prompt: u64,
    /// Tokens that the model would generate if nothing stopped it.
    pub(crate) output: u64,
    /// As the client set it; `None`: not set.
    pub(crate) max_tokens: Option<u64>,
    pub(crate) tenant: u32,
    pub(crate) content: Content,
}

impl Arrival {
    /// Tokens it will generate.
    pub(crate) fn length(&self) -> u64 {
        self.output.min(self.max_tokens.unwrap_or(u64::MAX)).max(1)
    }
}

/// What a prompt consists of, as far as others share it.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Like no other.
    Own,
    /// A turn of a conversation: its prompt begins with all that was said before.
    Session(u64),
    /// The same, after a system prompt of `shared` tokens that other conversations have as well.
    Conversation { session: u64, system: u64, shared: u64 },
    /// Blocks of `size` tokens by their ids.
    Blocks { ids: Arc<[u32]>, size: u64 },
}

impl Content {
    /// Conversation or document that it belongs to.
    pub(crate) fn session(&self) -> Option<u64> {
        match self {
            Self::Own => None,
            Self::Session(session) | Self::Conversation { session, .. } => Some(*session),
            // The first block is often a system prompt; the second tells conversations apart.
            Self::Blocks { ids, .. } => ids.get(1).or(ids.first()).map(|id| u64::from(*id)),
        }
    }

    /// Token ids `from..to` of request `request`.
    pub(crate) fn tokens(&self, request: u32, from: u64, to: u64) -> Vec<u32> {
        let own = |stream: u64, position: u64| hash(stream, position) as u32;
        match self {
            Self::Own => (from..to).map(|position| own(u64::from(request) | 1 << 40, position)).collect(),
            Self::Session(session) => (from..to).map(|position| own(*session | 1 << 41, position)).collect(),
            Self::Conversation { session, system, shared } => (from..to)
                .map(|position| match position < *shared {
                    true => own(*system | 1 << 43, position),
                    false => own(*session | 1 << 41, position),
                })
                .collect(),
            Self::Blocks { ids, size } => (from..to)
                .map(|position| match ids.get((position / size) as usize) {
                    Some(id) => own(u64::from(*id) | 1 << 42, position % size),
                    None => own(u64::from(request) | 1 << 40, position),
                })
                .collect(),
        }
    }
}

/// max_tokens as clients set them: independent of what the model will say.
pub(crate) fn asked(random: &mut Random) -> u64 {
    random.pick(&[256, 512, 1024, 2048])
}
