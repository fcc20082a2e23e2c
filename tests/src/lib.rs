//! Shared by the tests.

pub mod node_kit;
