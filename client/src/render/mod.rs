//! What the command shows: pure functions from messages to text.

mod canvas;
pub(crate) mod decision;
mod device;
pub(crate) mod doctor;
mod engine;
pub(crate) mod event;
pub(crate) mod explain;
pub(crate) mod guard;
pub(crate) mod headroom;
mod names;
mod numbers;
mod paint;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod stress;
mod text;

pub(crate) use canvas::Canvas;
pub(crate) use engine::state_word;
pub(crate) use names::Names;
pub(crate) use numbers::{bytes, count, duration, or_unknown, or_unknown_short, percent, rate};
pub(crate) use paint::Paint;
pub(crate) use text::{WIDTH, bar, fitted, safe};
