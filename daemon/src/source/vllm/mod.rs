//! vLLM engines: found by their processes or configured, asked who they are, and scraped.

pub mod exposition;
mod families;
mod rank;
pub mod reading;
