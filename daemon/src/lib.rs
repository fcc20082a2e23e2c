//! gpuadmitd: sources, servers and wiring around the pure core. The daemon is I/O only.

pub mod args;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod handle;
pub mod listen;
pub mod log;
mod metrics;
pub mod notify;
mod outputs;
pub mod page;
pub mod promises;
pub mod records;
mod regular;
pub mod reload;
pub mod rpc;
pub mod simulate;
pub mod source;
pub mod sources;
pub mod state;
mod threads;
pub mod tokens;
