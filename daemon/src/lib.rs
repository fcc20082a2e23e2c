//! gpuadmitd: sources, servers and wiring around the pure core. The daemon is I/O only.

pub mod clock;
pub mod handle;
pub mod source;
