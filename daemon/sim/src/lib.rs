//! The simulated node behind `gpuadmitd --simulate`, for those who have no GPU at hand: GPUs, engines with a vLLM-like
//! scheduler behind real HTTP, traffic, and incidents.
//!
//! ```text
//!   scenario ──▶ node ──▶ live ──▶ engine (pure) ──▶ pool, stats
//!                 │        └──▶ http ──▶ exposition, completion
//!                 ├──▶ traffic ──▶ whoever implements Gate
//!                 └──▶ device, mishap (pure)
//! ```

#![forbid(unsafe_code)]

mod completion;
pub mod device;
pub mod engine;
mod exposition;
mod http;
mod live;
pub mod mishap;
pub mod node;
mod number;
mod pool;
mod random;
pub mod scenario;
mod sse;
pub mod stats;
pub mod traffic;

pub use live::{Progress, SimEnd, SubmitError};
pub use node::{Error, SimEngine, SimNode, SimProcess, SimRole};
pub use scenario::{End, Scenario, ScenarioError};
