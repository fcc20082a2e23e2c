//! What Xid numbers mean for an engine (NVIDIA's "Xid Errors" catalogue).

use std::time::Duration;

use crate::event::EventKind;

/// An engine whose processes the error ends is held for so long, for the news of it: whoever lives on then is used again.
const UNTIL_IT_DIES: Duration = Duration::from_secs(10);
/// And so long where the GPU itself is not to be used.
const UNTIL_IT_IS_USED: Duration = Duration::from_mins(1);

/// What an Xid error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XidClass {
    /// The process that used the GPU is dead; starting it again helps.
    ProcessDead,
    /// Double-bit memory error: the process is dead, the GPU is to be drained.
    Drain,
    /// A hardware blemish that is still contained.
    Watch,
    /// A memory row cannot be repaired.
    RepairFailed,
    /// A link to other GPUs failed.
    LinkLost,
    /// The GPU is off the bus.
    DeviceLost,
    /// An error in memory that one process used, contained.
    Contained,
    /// An error in memory that may have reached any process.
    Uncontained,
    /// The GPU needs a reset; the driver may hang.
    Reset,
    /// What the driver recommends to do has changed.
    ActionChanged,
    /// There is less memory than before.
    LessMemory,
    /// Not in the list.
    Other,
}

/// Class of an Xid number.
pub(crate) const fn class(code: u64) -> XidClass {
    match code {
        13 | 31 | 43 | 45 => XidClass::ProcessDead,
        48 | 171 | 172 => XidClass::Drain,
        63 | 92 => XidClass::Watch,
        64 => XidClass::RepairFailed,
        74 | 144..=150 => XidClass::LinkLost,
        79 => XidClass::DeviceLost,
        94 => XidClass::Contained,
        95 => XidClass::Uncontained,
        109 | 119 | 120 | 140 | 143 | 158 => XidClass::Reset,
        154 => XidClass::ActionChanged,
        168 => XidClass::LessMemory,
        _ => XidClass::Other,
    }
}

impl XidClass {
    /// For sentences.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ProcessDead => "an error of the process on it",
            Self::Drain => "double-bit memory error: drain the GPU",
            Self::Watch => "a memory error that was repaired: watch it",
            Self::RepairFailed => "a memory row could not be repaired: take the GPU out of use",
            Self::LinkLost => "a link to another GPU failed",
            Self::DeviceLost => "the GPU has fallen off the bus",
            Self::Contained => "contained memory error",
            Self::Uncontained => "uncontained memory error: no process on it can go on",
            Self::Reset => "the GPU needs a reset; calls into the driver may hang",
            Self::ActionChanged => "the driver recommends another recovery action",
            Self::LessMemory => "the GPU has less memory than before",
            Self::Other => "see NVIDIA's list of Xid errors",
        }
    }

    /// The event it is told by: critical, or worth a look.
    pub(crate) const fn event(self) -> EventKind {
        match self {
            Self::Watch | Self::ActionChanged | Self::LessMemory | Self::Other => EventKind::XidNotice,
            _ => EventKind::Xid,
        }
    }

    /// How long an engine that uses the GPU, and `several` of them where it does, takes no requests; `None`: it goes on.
    pub(crate) const fn hold(self, several: bool) -> Option<Duration> {
        match self {
            Self::Drain | Self::Uncontained => Some(UNTIL_IT_DIES),
            // A link matters to those who talk over it.
            Self::LinkLost if several => Some(UNTIL_IT_DIES),
            Self::RepairFailed | Self::DeviceLost | Self::Reset => Some(UNTIL_IT_IS_USED),
            // What ends one process is told by its end; the rest ends nothing.
            _ => None,
        }
    }

    /// Whether processes that use the GPU end by it.
    pub(crate) const fn ends_processes(self) -> bool {
        !matches!(
            self,
            Self::Watch | Self::RepairFailed | Self::ActionChanged | Self::LessMemory | Self::Other
        )
    }
}
