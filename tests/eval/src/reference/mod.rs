//! What gpuadmit is compared with: rules that know more than any rule can.
//!
//! `forecast`: what the engine will do. `outlook`: the forecast of an engine with one request more. `clairvoyant`:
//! rules that know every length and arrival. `state`: a rule that knows the engine's true state, but no future.
//! `plan`: who is let in where everything is known beforehand.
//! `growth`: what requests of unknown length will hold.
//! `exhaustive`: the clairvoyant rules beside the best of all subsets.

mod clairvoyant;
#[cfg(test)]
mod exhaustive;
mod forecast;
mod growth;
mod outlook;
mod plan;
mod state;

pub(crate) use clairvoyant::{Clairvoyant, ORDERS, Order};
pub(crate) use outlook::fits;
pub(crate) use plan::{PLANS, Planned};
pub(crate) use state::{MARGINS, State};
