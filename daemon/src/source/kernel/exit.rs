//! How a process ended.

use gpuadmit_core::observation::ProcessChange;

/// The status of an ended process as wait(2) encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub i32);

impl Status {
    /// As an observation: the low seven bits are the signal, the second byte is the exit code.
    #[must_use]
    pub const fn change(self) -> ProcessChange {
        match self.0 & 0x7f {
            0 => ProcessChange::Exit { code: Some((self.0 >> 8) & 0xff), signal: None },
            signal => ProcessChange::Exit { code: None, signal: Some(signal) },
        }
    }
}

/// It ended, nobody knows how.
pub const UNKNOWN: ProcessChange = ProcessChange::Exit { code: None, signal: None };
