//! How many tokens of KV cache a model has on given GPUs, computed as vLLM does when it starts.
//!
//! [`config`] reads a Hugging Face `config.json`; [`families`] says which keys of it count for which models; [`layers`]
//! and [`model`] derive what each layer keeps, [`weights`] how large the model is; [`layout`] puts the layers into the
//! groups that share blocks; [`budget`] says what memory is left for them; [`fit`] how many requests fit, and what to
//! change.

pub(crate) mod budget;
pub(crate) mod cache_type;
pub(crate) mod config;
mod decoders;
pub(crate) mod families;
pub(crate) mod fit;
mod hybrids;
pub(crate) mod layers;
pub(crate) mod layout;
pub(crate) mod model;
#[cfg(test)]
mod shapes;
pub(crate) mod weights;

use std::{io, path::PathBuf};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The model's configuration cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what a config.json is.
    #[error("{path}: {why}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A key that is needed is not there.
    #[error("config.json: {key} is absent; it is needed for {needed_for}")]
    Absent {
        /// Its name.
        key: String,
        /// What for.
        needed_for: &'static str,
    },
    /// A key has a value that it cannot have.
    #[error("config.json: {key}: {value} is not allowed; {allowed}")]
    OutOfRange {
        /// Its name.
        key: String,
        /// What is there.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Layers whose cache is not known here.
    #[error(
        "config.json: {0}: this program does not know its KV cache; start vLLM with it and read its line \"KV cache size\""
    )]
    Unknown(String),
    /// Neither files nor configuration give the size of the weights.
    #[error("config.json: the size of the weights is not known for {0}; give it with --weights")]
    Weights(String),
    /// The heads cannot be divided among the GPUs.
    #[error(
        "--tensor-parallel-size: {size} is not allowed; a divisor of the model's {heads} attention heads, and a divisor or \
         a multiple of its KV heads"
    )]
    TensorParallel {
        /// GPUs.
        size: u64,
        /// Attention heads.
        heads: u64,
    },
}
