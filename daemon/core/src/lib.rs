//! The node as a pure state machine: facts in, admission decisions out. No I/O, no clock, no threads.

pub mod event;
pub mod explain;
pub mod node;
pub mod observation;
pub mod request;
pub mod settings;
pub mod snapshot;
pub mod units;
