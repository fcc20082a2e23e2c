//! Shared by the tests.

pub mod bench;
pub mod binary;
pub mod node_kit;
pub mod running;
pub mod served;
pub mod talk;
