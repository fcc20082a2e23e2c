//! What an engine will do with the requests it has: vLLM's scheduler, from one change to the next instead of step by step.
//!
//! First come, first served. Each step decodes one token of every running request and spends the rest of its token
//! budget on prompts in order. A request starts when a slot and the blocks of its whole prompt are free. Sequences fill
//! half of their last block on average.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::{
    engine::{EngineSetup, Work},
    time::MILLISECOND,
};

/// Standard deviations of the space left in last blocks, uniform each, that are kept beside its mean.
const SURE: f64 = 2.0;

/// A request as the forecast knows it. Times are milliseconds from the start of the forecast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// When it reaches the engine; 0 if it is there.
    pub(super) arrives: f64,
    pub(super) prompt: u64,
    /// Prompt tokens that are computed already or found in the prefix cache.
    pub(super) computed: u64,
    /// Tokens generated so far; a request that has none is not decoding yet.
    pub(super) generated: u64,
    /// Tokens that it will still generate, at least 1.
    pub(super) remaining: u64,
    /// The latest time for its first token.
    pub(super) deadline: f64,
}

/// What the forecast starts from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    pub(super) setup: &'a EngineSetup,
    /// Blocks, those that requests share counted once for each of them.
    pub(super) capacity: u64,
    /// Whether the forecast ends where running requests outgrow the pool.
    pub(super) exact: bool,
    /// When the step under way ends, milliseconds.
    pub(super) step_end: f64,
}

/// What will happen.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    /// Time to first token of each item, milliseconds; infinite where it has none or had it before.
    pub(super) first_tokens: Vec<f64>,
    /// Whether the running requests outgrow the pool.
    pub(super) overflows: bool,
    /// When each item ends; infinite where it does not.
    pub(super) ends: Vec<f64>,
    /// The longest step in which something decoded, milliseconds.
    pub(super) longest_step: f64,
}

/// A prompt in the queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    item: usize,
    /// Prompt tokens left to compute.
    left: u64,
    /// Holds a slot and the blocks of its prompt.
    started: bool,
}

struct Run<'a> {
    start: Start<'a>,
    items: &'a [Item],
    now: f64,
    step: u64,
    /// Running requests: the step after which each ends, its tokens less the steps so far, and its item.
    running: BinaryHeap<Reverse<(u64, i64, usize)>>,
    /// Sum of those.
    base: i64,
    queue: VecDeque<Waiting>,
    /// Items that have not arrived, by time of arrival.
    coming: VecDeque<usize>,
    watched: Option<usize>,
    watched_end: Option<u64>,
    out: Forecast,
}

/// Runs the engine until `items[watched]` has ended and the queue is empty. Items that arrive after that end are left out.
pub(super) fn watching(start: Start<'_>, items: &[Item], watched: usize) -> Forecast {
    let mut run = Run::new(start, items, Some(watched), f64::INFINITY);
    run.play();
    run.out
}

/// The same without a watched item, for everything that arrives before `until`, milliseconds. Overflows do not stop it.
pub(super) fn until(start: Start<'_>, items: &[Item], until: f64) -> Forecast {
    let mut run = Run::new(start, items, None, until);
    run.play();
    run.out
}

impl<'a> Run<'a> {
    fn new(start: Start<'a>, items: &'a [Item], watched: Option<usize>, until: f64) -> Self {
        let mut order: Vec<_> = (0..items.len()).filter(|item| items[*item].arrives <= until).collect();
        order.sort_by(|a, b| items[*a].arrives.total_cmp(&items[*b].arrives));
        let mut run = Self {
            start,
            items,
            now: start.step_end,
            step: 0,
            running: BinaryHeap::with_capacity(items.len()),
            base: 0,
            queue: VecDeque::new(),
            coming: VecDeque::with_capacity(order.len()),
            watched,
            watched_end: None,
            out: Forecast {
                first_tokens: vec![f64::INFINITY; items.len()],
                overflows: false,
                ends: vec![f64::INFINITY; items.len()],
                longest_step: 0.0,
            },
        };
        for item in order {
            if items[item].generated > 0 { run.join(item, 0) } else { run.coming.push_back(item) }
        }
        run
    }

    fn play(&mut self) {
        while !(self.finished() || self.out.overflows && self.watched.is_some() && self.start.exact) {
            self.arrive();
            if self.running.is_empty() && self.queue.is_empty() {
                let Some(next) = self.coming.front() else { return };
                self.now = self.items[*next].arrives;
                continue;
            }
            let budget = self.budget();
            match self.queue.front().copied() {
                Some(head) if budget > 0 && self.may_start(&head, 0, 0) => {
                    if head.left > budget {
                        self.chunks(budget);
                    } else {
                        self.pack(budget);
                    }
                }
                // Nothing will make room for it.
                Some(_) if self.running.is_empty() => drop(self.queue.pop_front()),
                _ => self.decode(),
            }
        }
    }

    fn finished(&self) -> bool {
        self.watched_ended() && self.queue.is_empty()
    }

    fn watched_ended(&self) -> bool {
        self.watched_end.is_some_and(|end| end <= self.step)
    }

    fn arrive(&mut self) {
        while let Some(item) =
            self.coming.front().copied().filter(|item| self.items[*item].arrives <= self.now)
        {
            self.coming.pop_front();
            if !self.watched_ended() {
                let Item { prompt, computed, .. } = self.items[item];
                let left = prompt.saturating_sub(computed).max(1);
                self.queue.push_back(Waiting { item, left, started: false });
            }
        }
    }

    /// Prompt tokens of a step.
    fn budget(&self) -> u64 {
        self.start.setup.max_num_batched_tokens.saturating_sub(self.running.len() as u64)
    }

    /// Whether a prompt has, or can have, a slot and blocks, when `others` with `held` tokens start in the same step.
    fn may_start(&self, head: &Waiting, others: u64, held: u64) -> bool {
        let prompt = self.items[head.item].prompt;
        let slot = self.running.len() as u64 + others < self.start.setup.max_num_seqs;
        head.started || (slot && self.blocks(held + prompt) <= self.start.capacity)
    }

    /// Blocks in use with `more` tokens beside what runs.
    fn blocks(&self, more: u64) -> u64 {
        let held = self.tokens() + more;
        let (count, size) = (self.running.len() as f64, self.start.setup.block_size as f64);
        let rounding = count * size / 2.0 + SURE * (count / 12.0).sqrt() * size;
        (held + rounding as u64).div_ceil(self.start.setup.block_size)
    }

    /// Tokens that running requests hold.
    fn tokens(&self) -> u64 {
        (self.base + self.running.len() as i64 * self.step as i64).max(0) as u64
    }

    /// Steps until the first running request ends.
    fn next_end(&self) -> u64 {
        self.running.peek().map_or(u64::MAX, |Reverse((end, ..))| (end - self.step).max(1))
    }

    /// Milliseconds of `steps` steps for what they decode.
    fn decode_time(&self, steps: u64) -> f64 {
        let cost = &self.start.setup.cost;
        let (count, steps) = (self.running.len() as f64, steps as f64);
        let context = steps * self.tokens() as f64 + count * steps * (steps - 1.0) / 2.0;
        steps * (cost.base + cost.per_sequence * count) + cost.per_context_token * context
    }

    /// Steps in which no prompt can run, until a request ends or one arrives.
    fn decode(&mut self) {
        let mut steps = self.next_end();
        if let (true, Some(next)) = (self.queue.is_empty(), self.coming.front()) {
            let wait = self.items[*next].arrives - self.now;
            steps = steps.min((wait / self.decode_time(1)).ceil().max(1.0) as u64);
        }
        let time = self.decode_time(steps);
        self.advance(steps, time);
    }

    /// Whole steps of a prompt that needs more than one; its last step is left to [`Self::pack`].
    fn chunks(&mut self, budget: u64) {
        let next_end = self.next_end();
        let Some(head) = self.queue.front_mut() else { return };
        let steps = ((head.left - 1) / budget).min(next_end);
        let before = (self.items[head.item].prompt - head.left) as f64;
        (head.left, head.started) = (head.left - steps * budget, true);
        let (tokens, cost) = ((steps * budget) as f64, &self.start.setup.cost);
        let prefill = cost.per_prefill_token * tokens
            + cost.per_prefill_pair * tokens * (before + tokens / 2.0)
            + cost.per_sequence * steps as f64;
        let time = self.decode_time(steps) + prefill;
        self.advance(steps, time);
    }

    /// One step that ends the head's prompt, and those of others after it while they fit.
    fn pack(&mut self, mut budget: u64) {
        let mut work =
            Work { decoding: self.running.len() as u64, context: self.tokens(), ..Work::default() };
        let (mut done, mut held) = (Vec::new(), 0);
        while let Some(head) = self.queue.front().copied() {
            if budget == 0 || !self.may_start(&head, done.len() as u64, held) {
                break;
            }
            let (prompt, piece) = (self.items[head.item].prompt, head.left.min(budget));
            work.prefilling += 1;
            work.prompt_tokens += piece;
            work.prompt_context += prompt - head.left;
            budget -= piece;
            if piece < head.left {
                self.queue[0] = Waiting { left: head.left - piece, started: true, ..head };
                break;
            }
            held += prompt;
            done.push(head.item);
            self.queue.pop_front();
        }
        self.advance(1, self.start.setup.cost.duration(work) as f64 / MILLISECOND as f64);
        for item in done {
            self.out.first_tokens[item] = self.now;
            self.join(item, 1);
        }
    }

    /// `item` decodes from now on, `fresh` of its tokens having just come.
    fn join(&mut self, item: usize, fresh: u64) {
        let Item { prompt, generated, remaining, .. } = self.items[item];
        let end = self.step + remaining.saturating_sub(fresh);
        if self.watched == Some(item) {
            self.watched_end = Some(end);
        }
        if end == self.step {
            self.out.ends[item] = self.now;
            return;
        }
        let base = (prompt + generated + fresh) as i64 - self.step as i64;
        self.running.push(Reverse((end, base, item)));
        self.base += base;
    }

    fn advance(&mut self, steps: u64, time: f64) {
        if !self.running.is_empty() {
            self.out.longest_step = self.out.longest_step.max(time / steps as f64);
        }
        self.step += steps;
        self.now += time;
        let starting = self.queue.front().filter(|head| head.started);
        let prompt = starting.map_or(0, |head| self.items[head.item].prompt);
        self.out.overflows |= self.blocks(prompt) > self.start.capacity;
        while let Some(Reverse((_, base, item))) =
            self.running.peek().copied().filter(|top| top.0.0 <= self.step)
        {
            self.running.pop();
            self.base -= base;
            self.out.ends[item] = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StepCost;

    /// Steps of 10 ms, 1 ms more for each prompt token.
    fn setup(slots: u64, blocks: u64) -> EngineSetup {
        let cost = StepCost {
            base: 10.0,
            per_sequence: 0.0,
            per_prefill_token: 1.0,
            per_context_token: 0.0,
            per_prefill_pair: 0.0,
        };
        EngineSetup {
            max_num_seqs: slots,
            max_num_batched_tokens: 100,
            cost,
            ..EngineSetup::with_window(blocks, 16, false)
        }
    }

    fn start(setup: &EngineSetup) -> Start<'_> {
        Start { setup, capacity: setup.blocks, exact: true, step_end: 0.0 }
    }

    fn item(prompt: u64, remaining: u64) -> Item {
        Item { arrives: 0.0, prompt, computed: 0, generated: 0, remaining, deadline: f64::INFINITY }
    }

    #[test]
    fn a_prompt_is_computed_in_pieces_and_the_next_shares_its_last_step() {
        let setup = setup(8, 1000);
        let out = watching(start(&setup), &[item(250, 5), item(30, 1)], 1);
        // 100 + 100 tokens, then 50 and the 30 of the other: 110 + 110 + 90 ms.
        assert_eq!(out.first_tokens, [310.0, 310.0]);
        assert_eq!(out.ends[1], 310.0);
    }

    #[test]
    fn one_that_finds_no_slot_waits_for_the_first_end() {
        let setup = setup(2, 1000);
        let running = |remaining| Item { generated: 3, ..item(40, remaining) };
        let out = watching(start(&setup), &[running(7), running(20), item(50, 4)], 2);
        // Seven steps of 10 ms, then 10 + 50.
        assert_eq!(out.first_tokens[2], 130.0);
        // Three more tokens.
        assert_eq!(out.ends[2], 160.0);
        assert!(!out.overflows);
    }

    #[test]
    fn a_prompt_waits_for_its_blocks_and_growth_overflows() {
        let setup = setup(8, 10);
        let running = Item { generated: 10, ..item(90, 20) };
        // 100 tokens and half a block, 6.7 of 10 blocks: a prompt of 80 waits for its end after 20 steps.
        let out = watching(start(&setup), &[running, item(80, 2)], 1);
        assert_eq!(out.first_tokens[1], 20.0 * 10.0 + 90.0);
        // A prompt of 40 goes in at once, and both grow past the pool.
        assert!(watching(start(&setup), &[running, item(40, 30)], 1).overflows);
        assert!(!watching(start(&setup), &[running, item(16, 6)], 1).overflows);
    }
}
