//! `[tokens]` and `[[tokenizer]]`: how prompts are counted.

use std::path::PathBuf;

use gpuadmit_core::{observation::ModelSource, request::MAX_MODEL_BYTES};
use serde::{Deserialize, Serialize};

use super::{Config, check::Found};

/// Most `[[tokenizer]]` entries.
const MAX_TOKENIZERS: usize = 64;

/// `[tokens]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {
    /// Whether texts are counted exactly where a decision depends on it.
    pub exact: bool,
    /// Tokenizers loaded at once.
    pub loaded: u32,
    /// Texts counted at once.
    pub at_once: u32,
    /// A text that is not counted after this time counts by its upper bound.
    pub deadline_ms: u64,
    /// Tokens that a picture or another medium is taken for.
    pub media_tokens: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { exact: true, loaded: 2, at_once: 2, deadline_ms: 50, media_tokens: 1_024 }
    }
}

/// `[[tokenizer]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenizer {
    /// Model name as clients send it.
    pub model: String,
    /// Folder with a tokenizer.json, or that file.
    pub path: PathBuf,
}

impl Tokenizer {
    /// Where it is.
    #[must_use]
    pub fn source(&self) -> ModelSource {
        ModelSource {
            name: self.path.to_string_lossy().as_ref().into(),
            folder: None,
            caches: Vec::new(),
            revision: None,
            chat_template: None,
            template_kwargs: None,
            content_format: None,
            root: None,
        }
    }
}

pub(super) fn check(config: &Config, found: &mut Found) {
    let tokens = &config.tokens;
    found.range("tokens.loaded", tokens.loaded, 1..=64);
    found.range("tokens.at_once", tokens.at_once, 1..=64);
    found.range("tokens.deadline_ms", tokens.deadline_ms, 1..=10_000);
    found.range("tokens.media_tokens", tokens.media_tokens, 0..=1_000_000);
    let most = format!("at most {MAX_TOKENIZERS} entries");
    found.unless(config.tokenizer.len() <= MAX_TOKENIZERS, "tokenizer", config.tokenizer.len(), &most);
    for (i, tokenizer) in config.tokenizer.iter().enumerate() {
        found.name(&format!("tokenizer[{i}].model"), &tokenizer.model, MAX_MODEL_BYTES);
        let path = &tokenizer.path;
        found.unless(path.is_absolute(), &format!("tokenizer[{i}].path"), path, "an absolute path");
    }
}
