//! The node as a pure state machine: facts in, admission decisions out.
//!
//! There is no I/O, no clock, no thread and no randomness here: time is an argument ([`units::Mono`]), so that every run
//! can be replayed. [`node::Node`] is the door; the rest is what it consists of:
//!
//! - [`observation`], [`request`], [`settings`]: what comes in.
//! - `need`: what one request may need. `ledger`: what was promised. `pool`: one KV cache, its last reading, and the sum
//!   that both make. `liveness`: is the engine alive. `engine`: all of these for one engine, and how a reading is set
//!   against the ledger. `decision`: the order of the checks. `device`: device memory and who has it. `observe` and `show`:
//!   the node's two other sides.
//! - [`event`], [`explain`], [`snapshot`]: what comes out besides the decisions.

mod affinity;
mod band;
pub mod book;
mod decision;
mod device;
mod engine;
pub mod event;
pub mod explain;
mod figures;
mod forecast;
mod idempotency;
mod ledger;
pub mod lengths;
mod liveness;
mod need;
pub mod node;
pub mod observation;
mod observe;
mod pool;
mod prefill;
mod rate;
pub mod request;
pub mod settings;
mod show;
pub mod snapshot;
#[cfg(test)]
mod testing;
pub mod units;
