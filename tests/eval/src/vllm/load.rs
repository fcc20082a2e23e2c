//! What is sent to both engines, and how both are set up.

use clap::ValueEnum;

use crate::random::Random;

/// A sequence of requests, and the limits that the real engine was started with: `/metrics` does not tell them, and
/// `tests/eval/check-vllm` starts it with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// Chats that overflow a small pool.
    FullPool,
    /// Prompts of several steps, four slots.
    FewSlots,
}

/// One request of the sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) prompt: u64,
    pub(super) output: u64,
}

impl Load {
    /// Stem of the names of what is written.
    pub(super) const fn stem(self) -> &'static str {
        match self {
            Self::FullPool => "vllm",
            Self::FewSlots => "vllm-few-slots",
        }
    }

    /// The engine's max_num_seqs.
    pub(super) const fn slots(self) -> u64 {
        match self {
            Self::FullPool => 64,
            Self::FewSlots => 4,
        }
    }

    /// Mean pause between two requests, milliseconds.
    pub(super) const fn pause_ms(self) -> f64 {
        match self {
            Self::FullPool => 350.0,
            Self::FewSlots => 700.0,
        }
    }

    /// The requests.
    pub(super) fn sequence(self, random: &mut Random) -> Vec<Sent> {
        let mut lengths = |(median, sigma): (f64, f64), (least, most): (f64, f64)| {
            random.log_normal(median, sigma).clamp(least, most) as u64
        };
        let mut sent = || match self {
            Self::FullPool => Sent {
                prompt: lengths((120.0, 0.7), (8.0, 700.0)),
                output: lengths((130.0, 0.6), (8.0, 600.0)),
            },
            Self::FewSlots => Sent {
                prompt: lengths((900.0, 0.5), (100.0, 1800.0)),
                output: lengths((60.0, 0.6), (4.0, 200.0)),
            },
        };
        let count = match self {
            Self::FullPool => 60,
            Self::FewSlots => 40,
        };
        (0..count).map(|_| sent()).collect()
    }
}
