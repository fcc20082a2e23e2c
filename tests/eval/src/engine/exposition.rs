//! What a real vLLM would expose of the engine: gauges set once per step, counters and histograms, and a preemption
//! counter that moves only when the preempted request produces its next token.

use std::collections::HashMap;

use gpuadmit_core::observation::{RankReading, SumCount};

use super::{EngineSetup, Event, Gauges, RequestId, Step};
use crate::time::{Nanos, seconds};

/// The engine's `/metrics`, as far as gpuadmit reads them.
pub(crate) struct Exposition {
    num_gpu_blocks: u64,
    block_size: u64,
    capacity: u64,
    gauges: Gauges,
    prompt_tokens: u64,
    generation_tokens: u64,
    finished: u64,
    preemptions: u64,
    steps: u64,
    prefix_queries: u64,
    prefix_hits: u64,
    ttft: SumCount,
    inter_token: SumCount,
    queue_time: SumCount,
    prefill_time: SumCount,
    /// Upper bounds 1, 2, 5, 10, … up to the context window, then +Inf; counts not cumulative.
    lengths: Vec<(f64, u64)>,
    requests: HashMap<RequestId, Tracked>,
}

/// One request in the engine.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    prompt: u64,
    arrived: Nanos,
    scheduled: Option<Nanos>,
    first_token: Option<Nanos>,
    last_token: Nanos,
    generated: u64,
    /// Preemptions that are not counted yet.
    preempted: u64,
}

impl Exposition {
    pub(crate) fn new(setup: &EngineSetup) -> Self {
        Self {
            num_gpu_blocks: setup.blocks + 1,
            block_size: setup.block_size,
            capacity: setup.blocks,
            gauges: Gauges::default(),
            prompt_tokens: 0,
            generation_tokens: 0,
            finished: 0,
            preemptions: 0,
            steps: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            ttft: SumCount::default(),
            inter_token: SumCount::default(),
            queue_time: SumCount::default(),
            prefill_time: SumCount::default(),
            lengths: buckets(setup.max_model_len),
            requests: HashMap::new(),
        }
    }

    /// A request came over HTTP.
    pub(crate) fn arrived(&mut self, at: Nanos, id: RequestId, prompt: u64) {
        let tracked = Tracked {
            prompt,
            arrived: at,
            scheduled: None,
            first_token: None,
            last_token: at,
            generated: 0,
            preempted: 0,
        };
        self.requests.insert(id, tracked);
    }

    /// A client left: vLLM counts it as finished, with what it had generated.
    pub(crate) fn aborted(&mut self, at: Nanos, id: RequestId) {
        self.finish(at, id);
    }

    /// A step that began at `from` and ended at `to`.
    pub(crate) fn stepped(&mut self, from: Nanos, to: Nanos, step: &Step) {
        self.steps += 1;
        self.gauges = step.gauges;
        for event in &step.events {
            match *event {
                Event::Scheduled { id, cached } => self.scheduled(from, id, cached),
                Event::Preempted { id } => {
                    if let Some(request) = self.requests.get_mut(&id) {
                        request.preempted += 1;
                    }
                }
                Event::Token { id } => self.token(to, id),
                Event::Finished { id } => self.finish(to, id),
                Event::Rejected { id } => {
                    self.requests.remove(&id);
                }
            }
        }
    }

    fn scheduled(&mut self, at: Nanos, id: RequestId, cached: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.scheduled.is_none() {
            request.scheduled = Some(at);
            self.prefix_queries += request.prompt;
            self.prefix_hits += cached;
        }
    }

    fn token(&mut self, at: Nanos, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        self.generation_tokens += 1;
        request.generated += 1;
        if request.first_token.is_none() {
            request.first_token = Some(at);
            self.prompt_tokens += request.prompt;
            add(&mut self.ttft, at - request.arrived);
        } else {
            add(&mut self.inter_token, at - request.last_token);
        }
        request.last_token = at;
        self.preemptions += std::mem::take(&mut request.preempted);
    }

    fn finish(&mut self, at: Nanos, id: RequestId) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.finished += 1;
        if let Some(bucket) = self.lengths.iter_mut().find(|(upper, _)| request.generated as f64 <= *upper) {
            bucket.1 += 1;
        }
        let scheduled = request.scheduled.unwrap_or(at);
        add(&mut self.queue_time, scheduled - request.arrived);
        if let Some(first) = request.first_token {
            add(&mut self.prefill_time, first.saturating_sub(scheduled));
        }
    }

    /// A scrape's figures.
    pub(crate) fn reading(&self) -> RankReading {
        let mut sum = 0;
        let cumulative = self.lengths.iter().map(|(upper, count)| {
            sum += count;
            (*upper, sum)
        });
        RankReading {
            rank: 0,
            kv_usage: Some(self.gauges.used as f64 / self.capacity as f64),
            running: Some(self.gauges.running),
            waiting: Some(self.gauges.waiting),
            waiting_deferred: Some(0),
            num_gpu_blocks: Some(self.num_gpu_blocks),
            block_size: Some(self.block_size),
            kv_cache_size_tokens: Some(self.num_gpu_blocks * self.block_size),
            kv_cache_memory: None,
            prompt_tokens: Some(self.prompt_tokens),
            generation_tokens: Some(self.generation_tokens),
            finished: Some(self.finished),
            cut: None,
            preemptions: Some(self.preemptions),
            steps: Some(self.steps),
            prefix_queries: Some(self.prefix_queries),
            prefix_hits: Some(self.prefix_hits),
            ttft: Some(self.ttft),
            inter_token: Some(self.inter_token),
            queue_time: Some(self.queue_time),
            prefill_time: Some(self.prefill_time),
            generation_lengths: cumulative.collect(),
        }
    }
}

fn add(to: &mut SumCount, time: Nanos) {
    to.sum += seconds(time);
    to.count += 1;
}

/// vLLM's `build_1_2_5_buckets` (0.32 v1/metrics/loggers.py).
fn buckets(window: u64) -> Vec<(f64, u64)> {
    let steps = (0..).flat_map(|exponent| [1, 2, 5].map(|mantissa| mantissa * 10_u64.pow(exponent)));
    let mut buckets: Vec<_> =
        steps.take_while(|upper| *upper <= window).map(|upper| (upper as f64, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::StepCost, time::SECOND};

    fn exposition() -> Exposition {
        Exposition::new(&EngineSetup {
            blocks: 100,
            block_size: 16,
            max_num_seqs: 8,
            max_num_batched_tokens: 512,
            max_model_len: 60,
            prefix_caching: false,
            cost: StepCost::default(),
        })
    }

    fn step(events: Vec<Event>, used: u64) -> Step {
        Step { duration: SECOND, prompt_tokens: 0, events, gauges: Gauges { used, running: 1, waiting: 0 } }
    }

    #[test]
    fn a_preemption_is_counted_with_the_next_token_of_its_request() {
        let mut exposition = exposition();
        exposition.arrived(0, 1, 20);
        let token = Event::Token { id: 1 };
        exposition.stepped(0, SECOND, &step(vec![Event::Scheduled { id: 1, cached: 0 }, token], 2));
        exposition.stepped(SECOND, 2 * SECOND, &step(vec![Event::Preempted { id: 1 }], 0));
        assert_eq!(exposition.reading().preemptions, Some(0));
        exposition.stepped(2 * SECOND, 3 * SECOND, &step(vec![token], 2));
        assert_eq!(exposition.reading().preemptions, Some(1));
        assert_eq!(exposition.reading().inter_token, Some(SumCount { sum: 2.0, count: 1 }));
    }

    #[test]
    fn counters_move_as_vllms_do() {
        let mut exposition = exposition();
        exposition.arrived(0, 1, 20);
        let events =
            vec![Event::Scheduled { id: 1, cached: 16 }, Event::Token { id: 1 }, Event::Finished { id: 1 }];
        exposition.stepped(SECOND, 2 * SECOND, &step(events, 25));
        let reading = exposition.reading();
        assert_eq!(reading.kv_usage, Some(0.25));
        assert_eq!((reading.prompt_tokens, reading.generation_tokens), (Some(20), Some(1)));
        assert_eq!((reading.finished, reading.steps), (Some(1), Some(1)));
        assert_eq!((reading.prefix_queries, reading.prefix_hits), (Some(20), Some(16)));
        assert_eq!(reading.ttft, Some(SumCount { sum: 2.0, count: 1 }));
        assert_eq!(reading.queue_time, Some(SumCount { sum: 1.0, count: 1 }));
        let bounds: Vec<f64> = reading.generation_lengths.iter().map(|bucket| bucket.0).collect();
        assert_eq!(bounds, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, f64::INFINITY]);
        assert!(reading.generation_lengths.iter().all(|bucket| bucket.1 == 1));
    }
}
