//! The simulated node behind `gpuadmitd --simulate`: GPUs, engines and traffic for those who have no GPU at hand.

#![forbid(unsafe_code)]

pub mod engine;
mod number;
mod pool;
pub mod random;
pub mod stats;
