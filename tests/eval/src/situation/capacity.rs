//! What an engine can do for a family of requests, and which of its resources is the tightest.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{EngineSetup, StepCost, Work},
    random::Random,
    time::seconds,
    trace::{Arrival, Content, Family},
};

/// Conversations, or single requests, over which means are taken.
const SAMPLE: u64 = 3000;
/// Share of the pool that is in use in an engine that preempts nobody.
const USED: f64 = 0.9;

/// Means over a family's requests, with everything said before in the prefix cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Requests in a conversation; 1 where there are none.
    pub(super) turns: f64,
    /// Seconds that a conversation takes.
    pub(super) lasts_s: f64,
    pub(super) output: f64,
    /// Prompt and output together.
    pub(super) whole: f64,
    /// Prompt tokens that are not in the cache.
    pub(super) fresh: f64,
    /// Tokens of context before a fresh prompt token.
    pub(super) before_fresh: f64,
    /// Tokens that a decoding request holds, on average over its life.
    pub(super) context: f64,
    /// Of these, the ones that it shares with nobody.
    pub(super) own: f64,
    /// Nine of ten prompts are no longer.
    pub(super) long_prompt: u64,
}

/// What an engine can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Requests a second.
    pub(super) per_s: f64,
    /// Requests that decode at once then.
    pub(super) decoding: f64,
    /// How long a step takes then, seconds.
    pub(super) step_s: f64,
    pub(super) tightest: Tightest,
}

/// The resource that runs out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tightest {
    Slots,
    Blocks,
    /// Tokens a step.
    Time,
}

impl Tightest {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Blocks => "blocks",
            Self::Time => "time",
        }
    }
}

impl Means {
    /// Of the requests that a context window of `window` tokens can hold.
    pub(super) fn of(family: &Family, window: u64) -> Self {
        let mut random = Random::new(0, 300);
        let mut sums = Sums::default();
        let mut prompts = Vec::new();
        for number in 0..SAMPLE {
            let turns = family.begin(number, 0.0, &mut random);
            let fits = |(_, turn): &&(f64, Arrival)| turn.prompt + 1 < window;
            let (mut said, mut last) = (0, 0.0);
            for (at, turn) in turns.iter().filter(fits) {
                sums.add(turn, said, window);
                said = turn.prompt + turn.length();
                prompts.push(turn.prompt);
                last = *at;
            }
            sums.lasts += last;
        }
        prompts.sort_unstable();
        sums.means(prompts.get(prompts.len() * 9 / 10).copied().unwrap_or(1))
    }
}

#[derive(Default)]
struct Sums {
    count: f64,
    lasts: f64,
    output: f64,
    prompt: f64,
    fresh: f64,
    pairs: f64,
    context: f64,
    own: f64,
}

impl Sums {
    fn add(&mut self, turn: &Arrival, said: u64, window: u64) {
        let shared = match turn.content {
            Content::Conversation { shared, .. } => shared,
            _ => 0,
        };
        let length = turn.length().min(window - turn.prompt) as f64;
        let (prompt, cached) = (turn.prompt as f64, said.max(shared).min(turn.prompt - 1) as f64);
        self.count += 1.0;
        self.output += length;
        self.prompt += prompt;
        self.fresh += prompt - cached;
        self.pairs += (prompt - cached) * (cached + (prompt - cached) / 2.0);
        self.context += length * (prompt + length / 2.0);
        self.own += length * (prompt - shared as f64 + length / 2.0);
    }

    fn means(&self, long_prompt: u64) -> Means {
        let each = |sum: f64| sum / self.count.max(1.0);
        Means {
            turns: self.count / SAMPLE as f64,
            lasts_s: self.lasts / SAMPLE as f64,
            output: each(self.output),
            whole: each(self.prompt + self.output),
            fresh: each(self.fresh),
            before_fresh: self.pairs / self.fresh.max(1.0),
            context: self.context / self.output.max(1.0),
            own: self.own / self.output.max(1.0),
            long_prompt,
        }
    }
}

impl Capacity {
    /// As many requests decode as slots, blocks and tokens a step allow; each step computes as many fresh prompt tokens
    /// as come with those that take the place of ended ones.
    pub(super) fn of(engine: &EngineSetup, means: &Means) -> Self {
        let slots = engine.max_num_seqs as f64;
        let blocks = (engine.pool_tokens() as f64 * USED / means.own).max(1.0);
        let prompt_share = means.fresh / means.output;
        let time = (engine.max_num_batched_tokens as f64 / (1.0 + prompt_share)).max(f64::MIN_POSITIVE);
        let decoding = slots.min(blocks).min(time);
        let tightest = if decoding == slots {
            Tightest::Slots
        } else if decoding == blocks {
            Tightest::Blocks
        } else {
            Tightest::Time
        };
        let step_s = step_s(&engine.cost, decoding, means);
        Self { per_s: decoding / (means.output * step_s), decoding, step_s, tightest }
    }
}

/// How long a step takes with so many decoding, and the prompt tokens that come with as many.
fn step_s(cost: &StepCost, decoding: f64, means: &Means) -> f64 {
    let prompt_tokens = decoding * means.fresh / means.output;
    let milliseconds = cost.base
        + cost.per_sequence * decoding
        + cost.per_context_token * decoding * means.context
        + cost.per_prefill_token * prompt_tokens
        + cost.per_prefill_pair * prompt_tokens * means.before_fresh;
    milliseconds / 1e3
}

/// The longest step that the engine takes by itself: all its tokens are of prompts, beside those that decode; seconds.
pub(super) fn longest_step_s(engine: &EngineSetup, capacity: &Capacity, means: &Means) -> f64 {
    let work = Work {
        decoding: capacity.decoding as u64,
        context: (capacity.decoding * means.context) as u64,
        prefilling: 1,
        prompt_tokens: engine.max_num_batched_tokens,
        prompt_context: means.long_prompt,
    };
    seconds(engine.cost.duration(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means() -> Means {
        Means {
            turns: 1.0,
            lasts_s: 0.0,
            output: 100.0,
            whole: 500.0,
            fresh: 400.0,
            before_fresh: 200.0,
            context: 450.0,
            own: 450.0,
            long_prompt: 800,
        }
    }

    fn engine(slots: u64, pool: u64, chunk: u64) -> EngineSetup {
        let cost = StepCost {
            base: 10.0,
            per_sequence: 0.0,
            per_prefill_token: 0.05,
            per_context_token: 0.0,
            per_prefill_pair: 0.0,
        };
        let engine = EngineSetup::of_pool(pool, false);
        EngineSetup { max_num_seqs: slots, max_num_batched_tokens: chunk, cost, ..engine }
    }

    #[test]
    fn the_scarcest_resource_decides() {
        let of = |engine| Capacity::of(&engine, &means());
        // Eight decode, 32 prompt tokens a step: 10 + 1.6 ms a step, 100 steps each.
        let slots = of(engine(8, 1_000_000, 2048));
        assert_eq!(slots.tightest, Tightest::Slots);
        assert!((slots.per_s - 8.0 / (100.0 * 0.0116)).abs() < 1e-9, "{slots:?}");
        // 0.9 × 4,800 / 450 tokens.
        let blocks = of(engine(256, 4800, 2048));
        assert_eq!(blocks.tightest, Tightest::Blocks);
        assert!((blocks.decoding - 9.6).abs() < 1e-9);
        // Each that decodes brings four prompt tokens a step: 512 / 5.
        let time = of(engine(256, 1_000_000, 512));
        assert_eq!(time.tightest, Tightest::Time);
        assert!((time.decoding - 102.4).abs() < 1e-9);
    }
}
