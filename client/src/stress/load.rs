//! What is asked for: sizes of prompts and outputs, fixed in advance so that two runs are alike.

use std::time::Duration;

/// Bounds of a load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests of the mixed load.
    pub(crate) requests: u32,
    /// Of those, at once.
    pub(crate) concurrency: u32,
    /// Requests of the burst, all at once.
    pub(crate) burst: u32,
    /// Longest time for all of it.
    pub(crate) time: Duration,
    /// How long each waits for room.
    pub(crate) wait: Duration,
    /// Whether each output gets as long as it may.
    pub(crate) ignore_eos: bool,
}

/// Part of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Many small and middling requests.
    Mixed,
    /// One that takes most of the window.
    Long,
    /// Many at once.
    Burst,
}

impl Phase {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Mixed, Self::Long, Self::Burst];

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Long => "long",
            Self::Burst => "burst",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) phase: Phase,
    /// Distinct, so that no two prompts share a prefix.
    pub(super) seed: u64,
    /// Tokens.
    pub(super) prompt: u64,
    pub(super) max_tokens: u64,
}

/// Prompt and output tokens, in turn.
const MIX: [(u64, u64); 6] = [(32, 16), (128, 64), (256, 128), (64, 256), (512, 64), (128, 512)];
/// Output of the long request.
const LONG_OUTPUT: u64 = 16;
/// Token ids that every model's vocabulary has, and no tokenizer keeps for a special use.
const TOKEN_IDS: (u64, u64) = (100, 400);

impl Load {
    /// The mixed load for a model of that window, to be taken from the end.
    pub(super) fn mixed(&self, window: u64) -> Vec<Work> {
        works(Phase::Mixed, 0, self.requests, window)
    }

    /// The burst.
    pub(super) fn burst(&self, window: u64) -> Vec<Work> {
        works(Phase::Burst, self.requests.into(), self.burst, window)
    }

    /// The request with nine tenths of the window in its prompt.
    #[expect(clippy::unused_self, reason = "it is part of the load")]
    pub(super) fn long(&self, window: u64) -> Work {
        let prompt = (window.saturating_mul(9) / 10).saturating_sub(LONG_OUTPUT).max(1);
        Work { phase: Phase::Long, seed: u64::MAX, prompt, max_tokens: LONG_OUTPUT.min(window / 10).max(1) }
    }
}

/// Requests that each take at most half of the window.
fn works(phase: Phase, first: u64, number: u32, window: u64) -> Vec<Work> {
    let most = (window / 4).max(1);
    let sizes = MIX.iter().cycle().zip(0..u64::from(number));
    let works = sizes.map(|((prompt, output), index)| Work {
        phase,
        seed: first + index,
        prompt: *prompt.min(&most),
        max_tokens: *output.min(&most),
    });
    works.collect()
}

impl Work {
    /// Token ids of its prompt (splitmix64 from its seed).
    pub(super) fn tokens(&self) -> Vec<u64> {
        let (first, number) = TOKEN_IDS;
        let mut state = self.seed;
        let next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            first + (mixed ^ (mixed >> 31)) % number
        };
        std::iter::repeat_with(next).take(usize::try_from(self.prompt).unwrap_or(usize::MAX)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_fits_the_window_and_no_two_prompts_begin_alike() {
        let load = Load {
            requests: 100,
            concurrency: 50,
            burst: 50,
            time: Duration::from_secs(1),
            wait: Duration::ZERO,
            ignore_eos: false,
        };
        for window in [64, 2_048, 131_072] {
            let mut works = load.mixed(window);
            works.extend(load.burst(window));
            works.push(load.long(window));
            assert_eq!(works.len(), 151);
            assert!(works.iter().all(|work| work.prompt > 0 && work.max_tokens > 0));
            assert!(works.iter().all(|work| work.prompt + work.max_tokens <= window), "{window}");
            let mut beginnings: Vec<_> =
                works.iter().map(|work| work.tokens()[..8.min(work.tokens().len())].to_vec()).collect();
            beginnings.sort();
            beginnings.dedup();
            assert_eq!(beginnings.len(), 151, "{window}");
        }
        // Nine tenths of 2,048 tokens less the output.
        assert_eq!(load.long(2_048).prompt, 1_827);
    }
}
