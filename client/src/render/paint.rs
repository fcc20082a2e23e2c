//! Colour, where the reader wants it.

use gpuadmit_client::v1::{EngineState, Severity, SourceHealth};

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paint {
    /// Plain text.
    Plain,
    /// ANSI colours.
    Colour,
}

/// What a colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Nothing in particular.
    Neutral,
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// Look at it.
    Warning,
    /// Act.
    Bad,
}

impl Paint {
    /// `text` in the colour of `mood`.
    pub(crate) fn text(self, mood: Mood, text: &str) -> String {
        let code = match (self, mood) {
            (Self::Plain, _) | (_, Mood::Neutral) => return text.to_owned(),
            (Self::Colour, Mood::Strong) => "1",
            (Self::Colour, Mood::Good) => "32",
            (Self::Colour, Mood::Warning) => "33",
            (Self::Colour, Mood::Bad) => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

impl From<EngineState> for Mood {
    fn from(state: EngineState) -> Self {
        match state {
            EngineState::Ready => Self::Good,
            EngineState::Down | EngineState::Stalled => Self::Bad,
            _ => Self::Warning,
        }
    }
}

impl From<SourceHealth> for Mood {
    fn from(health: SourceHealth) -> Self {
        match health {
            SourceHealth::Ok => Self::Good,
            SourceHealth::Failed => Self::Bad,
            _ => Self::Warning,
        }
    }
}

impl From<Severity> for Mood {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Critical => Self::Bad,
            Severity::Warning => Self::Warning,
            _ => Self::Neutral,
        }
    }
}
