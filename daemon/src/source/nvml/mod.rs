//! Device memory, processes and errors through NVML.

pub mod translate;
pub mod wire;
