//! Families of requests: how long prompts and outputs are, and what they share.

use serde::{Deserialize, Serialize};

use super::{Arrival, Content};
use crate::{
    random::Random,
    time::{Nanos, nanos, seconds},
};

/// A log-normal length, cut at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lengths {
    pub(crate) median: f64,
    /// Deviation of the logarithm.
    pub(crate) sigma: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Lengths {
    fn draw(&self, random: &mut Random) -> u64 {
        random.log_normal(self.median, self.sigma).clamp(self.least, self.most) as u64
    }
}

/// A family of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Family {
    pub(crate) name: String,
    /// Of prompts; in conversations of what a turn adds.
    pub(crate) prompt: Lengths,
    /// A share of prompts is from here instead.
    pub(crate) long: Option<(f64, Lengths)>,
    /// What the model would generate; `None`: it runs to max_tokens.
    pub(crate) output: Option<Lengths>,
    /// max_tokens is one of these, independent of the output.
    pub(crate) max_tokens: Vec<u64>,
    pub(crate) conversation: Option<Conversation>,
}

/// Turns, each of whose prompts begins with all that was said before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Conversation {
    /// Mean number of turns.
    pub(crate) turns: f64,
    /// So many system prompts …
    pub(crate) systems: u64,
    /// … of so many tokens; conversations with the same one share it.
    pub(crate) system_tokens: u64,
    /// Median seconds between an answer's end and the next turn.
    pub(crate) pause_s: f64,
    /// Seconds that an output token is taken to need.
    pub(crate) token_s: f64,
    /// A conversation ends before a prompt gets longer than this.
    pub(crate) most: u64,
}

/// Deviation of the logarithm of pauses.
const PAUSE_SIGMA: f64 = 0.8;

impl Family {
    /// What begins at `at`: one request, or a conversation. Times may be negative: seconds.
    pub(crate) fn begin(&self, number: u64, at: f64, random: &mut Random) -> Vec<(f64, Arrival)> {
        let Some(conversation) = self.conversation else {
            return vec![(at, self.one(self.prompt(random), Content::Own, random))];
        };
        let system = random.bits() % conversation.systems;
        let content =
            || Content::Conversation { session: number + 1, system, shared: conversation.system_tokens };
        let (mut turns, mut at) = (Vec::new(), at);
        let mut prompt = conversation.system_tokens + self.prompt(random);
        loop {
            let turn = self.one(prompt, content(), random);
            let length = turn.length();
            turns.push((at, turn));
            prompt += length + self.prompt(random);
            at += length as f64 * conversation.token_s + random.log_normal(conversation.pause_s, PAUSE_SIGMA);
            if random.chance(1.0 / conversation.turns) || prompt > conversation.most {
                return turns;
            }
        }
    }

    fn prompt(&self, random: &mut Random) -> u64 {
        match &self.long {
            Some((share, long)) if random.chance(*share) => long.draw(random),
            _ => self.prompt.draw(random),
        }
    }

    fn one(&self, prompt: u64, content: Content, random: &mut Random) -> Arrival {
        let max_tokens = random.pick(&self.max_tokens);
        let output = self.output.map_or(max_tokens, |lengths| lengths.draw(random));
        Arrival { at: 0, prompt, output, max_tokens: Some(max_tokens), tenant: 0, content }
    }

    /// Whether prompts share prefixes.
    pub(crate) const fn shares_prefixes(&self) -> bool {
        self.conversation.is_some()
    }
}

/// Requests of a family that begin at random times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Drawn {
    pub(crate) family: Family,
    pub(crate) pattern: super::Pattern,
    /// Requests, or conversations, that begin in a second on average.
    pub(crate) begin_per_s: f64,
    /// Conversations began so many seconds before the situation does.
    pub(crate) before_s: f64,
}

impl Drawn {
    /// Requests that arrive within `span`.
    pub(super) fn generate(&self, span: Nanos, seed: u64) -> Vec<Arrival> {
        let mut random = Random::new(seed, 200);
        let span = seconds(span);
        let starts = self.pattern.times((-self.before_s, span), self.begin_per_s, &mut random);
        let mut arrivals: Vec<Arrival> = Vec::with_capacity(starts.len());
        for (number, start) in starts.into_iter().enumerate() {
            let turns = self.family.begin(number as u64, start, &mut random);
            let there = turns.into_iter().filter(|(at, _)| (0.0..span).contains(at));
            arrivals.extend(there.map(|(at, turn)| Arrival { at: nanos(at), ..turn }));
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_begins_with_all_that_was_said() {
        let family = Family {
            name: "test".into(),
            prompt: Lengths { median: 50.0, sigma: 0.5, least: 10.0, most: 100.0 },
            long: None,
            output: Some(Lengths { median: 20.0, sigma: 0.5, least: 1.0, most: 100.0 }),
            max_tokens: vec![200],
            conversation: Some(Conversation {
                turns: 10.0,
                systems: 1,
                system_tokens: 300,
                pause_s: 1.0,
                token_s: 0.01,
                most: 2000,
            }),
        };
        let mut random = Random::new(3, 1);
        let both: Vec<_> = (0..2).map(|number| family.begin(number, 0.0, &mut random)).collect();
        let tokens = |turn: &Arrival, to: u64| turn.content.tokens(0, 0, to);
        for turns in &both {
            for pair in turns.windows(2) {
                let (one, next) = (&pair[0].1, &pair[1].1);
                let said = one.prompt + one.length();
                assert!(next.prompt > said && pair[1].0 > pair[0].0);
                assert_eq!(tokens(one, said), tokens(next, said));
            }
        }
        // Two conversations share their system prompt and nothing else.
        let (one, other) = (&both[0][0].1, &both[1][0].1);
        assert_eq!(tokens(one, 300), tokens(other, 300));
        assert_ne!(tokens(one, 310)[300..], tokens(other, 310)[300..]);
    }
}
