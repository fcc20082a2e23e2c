//! The node as a pure state machine: facts in, admission decisions out.
//!
//! There is no I/O, no clock, no thread and no randomness here: time is an argument ([`units::Mono`]), so that every run
//! can be replayed. [`node::Node`] is the door; the rest is what it consists of:
//!
//! - [`observation`] and [`host`], [`request`], [`settings`]: what comes in.
//! - [`count`]: how many tokens a text has, at least and at most.
//! - `need`: what one request may need. `ledger`: what was promised. `figures`: an engine's last reading. `pool`: one KV
//!   cache, and what is learned from its readings: `rate`, `prefill` (the queue of prompts), `strangers` (who comes by
//!   other ways), `band` (how wrong we are), `caution` (how much more careful that makes it wise to be), `forecast` (the
//!   future of all requests together), which rests on `lengths` and `book` (how long outputs get).
//! - `engine`: all of these for one engine. `matching`: which of our requests a reading shows. `showing`: what they hold.
//!   `liveness`: is the engine alive. `device`: device memory and who has it.
//! - `deaths` (whose process ended), `inquest` and `omen` (what is known of it) and [`verdict`] (who did it), [`guard`] (what kept
//!   killing an engine), `xid`.
//! - `precursor` and `squeeze` (`leak`): what comes before trouble, told by `alarm`, with hysteresis.
//! - `tenants`: who pays. [`queue`]: who waits, and in which order.
//! - `demand`: what is asked of an engine against what it can do. `decision`: the order of the checks. `admit`, `wait`,
//!   `observe` and `show`: the node's four other sides. `retry`: when those who were denied should come back; `expected`: who
//!   was told so, and the room that is kept for them.
//! - [`promise`]: what the next run takes over.
//! - [`event`], [`explain`], [`report`], [`counts`], [`snapshot`]: what comes out besides the decisions.

mod admit;
mod affinity;
mod alarm;
mod band;
mod blame;
pub mod book;
mod caution;
mod cost;
pub mod count;
pub mod counts;
mod deaths;
mod decision;
mod demand;
mod device;
mod engine;
pub mod event;
mod expected;
pub mod explain;
mod figures;
mod forecast;
pub mod guard;
pub mod host;
mod idempotency;
mod inquest;
mod leak;
mod ledger;
pub mod lengths;
mod liveness;
mod margin;
mod matching;
mod need;
pub mod node;
pub mod observation;
mod observe;
mod omen;
pub mod parts;
mod pool;
mod precursor;
mod prefill;
pub mod promise;
pub mod prompts;
#[cfg(test)]
mod prompts_tests;
pub mod queue;
mod rate;
pub mod report;
pub mod request;
mod retry;
pub mod settings;
mod show;
mod showing;
pub mod snapshot;
mod squeeze;
mod strangers;
mod tenants;
#[cfg(test)]
mod testing;
pub mod units;
pub mod verdict;
mod wait;
mod xid;
