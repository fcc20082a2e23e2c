//! The simulated node.
