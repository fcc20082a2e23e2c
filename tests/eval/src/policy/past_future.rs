//! Past-Future scheduling (LightLLM, arXiv 2507.10150): output lengths are drawn from those of past requests, given what
//! is already generated; a request may enter when the peak of the memory that all will need stays within the pool.

use std::collections::VecDeque;

use gpuadmit_core::request::Outcome;

use super::{Answer, Ask, End, Policy};
use crate::{engine::RequestId, random::Random, time::Nanos};

/// Past requests remembered.
const PAST: usize = 1000;
/// Fewer tell nothing: max_tokens is taken.
const ENOUGH: usize = 20;

pub(crate) struct PastFuture {
    /// Share of the pool kept free.
    reserve: f64,
    past: VecDeque<u64>,
    /// The same, ascending.
    sorted: Vec<u64>,
    random: Random,
}

impl PastFuture {
    pub(crate) fn new(reserve: f64) -> Self {
        Self { reserve, past: VecDeque::new(), sorted: Vec::new(), random: Random::new(0, 77) }
    }

    /// A length beyond `generated`, never above `most`.
    fn draw(&mut self, generated: u64, most: u64) -> u64 {
        let longer = self.sorted.partition_point(|length| *length <= generated);
        let candidates = self.sorted.len() - longer;
        if self.sorted.len() < ENOUGH || candidates == 0 {
            return most.max(generated + 1);
        }
        let drawn = self.sorted[longer + (self.random.bits() % candidates as u64) as usize];
        drawn.min(most).max(generated + 1)
    }
}

impl Policy for PastFuture {
    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        let window = ask.setup.max_model_len;
        let most = |prompt: u64, max_tokens: Option<u64>| max_tokens.unwrap_or(window).min(window - prompt);
        // (tokens held now, tokens still to come)
        let mut batch = Vec::with_capacity(ask.streams.len() + 1);
        for stream in ask.streams.values() {
            let length = self.draw(stream.generated, most(stream.prompt, stream.max_tokens));
            batch.push((stream.prompt + stream.generated, length - stream.generated));
        }
        let length = self.draw(0, most(ask.request.prompt, ask.request.max_tokens));
        batch.push((ask.request.prompt, length));
        let capacity = ask.setup.pool_tokens() as f64 * (1.0 - self.reserve);
        Answer::because(peak(&mut batch) as f64 <= capacity, "memory")
    }

    fn completed(&mut self, _: Nanos, _: RequestId, end: &End) {
        if end.outcome != Outcome::Ok {
            return;
        }
        let generated = end.generated;
        self.past.push_back(generated);
        let at = self.sorted.partition_point(|length| *length < generated);
        self.sorted.insert(at, generated);
        if self.past.len() > PAST {
            let oldest = self.past.pop_front().unwrap_or_default();
            let at = self.sorted.partition_point(|length| *length < oldest);
            self.sorted.remove(at);
        }
    }
}

/// Equation 2 to 4 of the paper: with the longest remaining first, the memory when the i-th ends is what the first i
/// hold now and i times what it still generates; the peak is the most of these.
fn peak(batch: &mut [(u64, u64)]) -> u64 {
    batch.sort_unstable_by_key(|(_, remaining)| std::cmp::Reverse(*remaining));
    let mut held = 0;
    let ends = batch.iter().zip(1..).map(|((now, remaining), count)| {
        held += now;
        held + remaining * count
    });
    ends.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::peak;

    #[test]
    fn the_peak_is_where_growth_and_ends_balance() {
        // Alone: 10 + 5. Both until the shorter ends: 10 + 20 + 2 × 2 = 34.
        assert_eq!(peak(&mut [(10, 5), (20, 2)]), 34);
        // The longer outgrows both: 10 + 100.
        assert_eq!(peak(&mut [(10, 100), (20, 2)]), 110);
    }
}
