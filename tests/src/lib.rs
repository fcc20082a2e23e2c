//! Shared by the tests.

pub mod bench;
pub mod binary;
pub mod load;
pub mod node_kit;
pub mod running;
pub mod served;
pub mod skip;
pub mod talk;
pub mod truth;
