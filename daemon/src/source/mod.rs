//! Sources: each watches one part of the world and says what it saw as [`Observation`]s. None knows of admission.

pub mod host;
pub mod kernel;
pub mod vllm;

use std::sync::Arc;

use gpuadmit_core::observation::Observation;

pub mod nvml;

/// Takes an observation into the node at once (it locks the node for some microseconds; never blocks on I/O).
pub type Observe = Arc<dyn Fn(Observation) + Send + Sync>;
