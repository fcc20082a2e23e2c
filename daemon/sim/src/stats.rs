//! What an engine counts, by the rules of vLLM's `v1/metrics/stats.py` and `loggers.py`.

use std::time::Duration;

use crate::number::{float, len};

/// A Prometheus histogram.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    /// Per bound, not cumulative; the last is +Inf.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &[f64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    fn observe_time(&mut self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// Upper bounds with cumulative counts, ascending; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }

    /// Observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// At its token limit.
    Length,
    /// Its client went away, or the engine was put to sleep.
    Abort,
}

impl Finish {
    /// As vLLM spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Gauges; set at the end of a step, as vLLM does, and stale in between.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// `1 - free / (blocks - 1)`.
    pub kv_usage: f64,
}

/// Times and sizes of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) prompt: u64,
    pub(crate) generated: u64,
    pub(crate) max_tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) arrived: Duration,
    pub(crate) scheduled: Duration,
    pub(crate) first_token: Duration,
    pub(crate) last_token: Duration,
}

/// Everything that `/metrics` tells of the scheduler.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Gauges of the last step.
    pub gauges: Gauges,
    /// Prompt tokens of requests that have passed prefill.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Preemptions, counted when the preempted request produces its next token.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache (this engine never finds any).
    pub prefix_queries: u64,
    /// Ended by themselves.
    pub stopped: u64,
    /// Ended at their limit.
    pub length_limited: u64,
    /// Tokens per step.
    pub iteration_tokens: Histogram,
    /// Prompt lengths.
    pub request_prompt_tokens: Histogram,
    /// Output lengths.
    pub request_generation_tokens: Histogram,
    /// Output limits.
    pub request_max_tokens: Histogram,
    /// Preemptions per request.
    pub request_preemptions: Histogram,
    /// Arrival to first token.
    pub ttft: Histogram,
    /// Token to token.
    pub inter_token: Histogram,
    /// Arrival to end.
    pub e2e: Histogram,
    /// Arrival to first step.
    pub queue: Histogram,
    /// First step to end.
    pub inference: Histogram,
    /// First step to first token.
    pub prefill: Histogram,
    /// First token to last.
    pub decode: Histogram,
}

impl Stats {
    pub(crate) fn new(max_model_len: u64) -> Self {
        let lengths = Histogram::new(&one_two_five(max_model_len));
        let phase = Histogram::new(&PHASE_SECONDS);
        Self {
            gauges: Gauges::default(),
            prompt_tokens: 0,
            generation_tokens: 0,
            preemptions: 0,
            prefix_queries: 0,
            stopped: 0,
            length_limited: 0,
            iteration_tokens: Histogram::new(&ITERATION_TOKENS),
            request_prompt_tokens: lengths.clone(),
            request_generation_tokens: lengths.clone(),
            request_max_tokens: lengths,
            request_preemptions: Histogram::new(&PREEMPTIONS),
            ttft: Histogram::new(&TTFT_SECONDS),
            inter_token: Histogram::new(&INTER_TOKEN_SECONDS),
            e2e: phase.clone(),
            queue: phase.clone(),
            inference: phase.clone(),
            prefill: phase.clone(),
            decode: phase,
        }
    }

    /// A step that produced something has ended.
    pub(crate) fn step(&mut self, tokens: u64) {
        self.iteration_tokens.observe(float(tokens));
    }

    /// A request's first token came `after` its arrival.
    pub(crate) fn first_token(&mut self, prompt: u64, after: Duration) {
        self.prompt_tokens += prompt;
        self.ttft.observe_time(after);
    }

    /// A request's next token came `after` the one before.
    pub(crate) fn next_token(&mut self, after: Duration) {
        self.inter_token.observe_time(after);
    }

    /// A request has produced its last token. Aborted ones are not counted anywhere, as in vLLM.
    pub(crate) fn ended(&mut self, of: &Ended, finish: Finish) {
        match finish {
            Finish::Stop => self.stopped += 1,
            Finish::Length => self.length_limited += 1,
            Finish::Abort => return,
        }
        self.request_prompt_tokens.observe(float(of.prompt));
        self.request_generation_tokens.observe(float(of.generated));
        self.request_max_tokens.observe(float(of.max_tokens));
        self.request_preemptions.observe(float(of.preemptions));
        self.e2e.observe_time(of.last_token.saturating_sub(of.arrived));
        self.queue.observe_time(of.scheduled.saturating_sub(of.arrived));
        self.inference.observe_time(of.last_token.saturating_sub(of.scheduled));
        self.prefill.observe_time(of.first_token.saturating_sub(of.scheduled));
        self.decode.observe_time(of.last_token.saturating_sub(of.first_token));
    }

    /// Steps that produced something.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.iteration_tokens.count()
    }
}

/// Bounds 1, 2, 5, 10, 20, 50, … up to `max`.
fn one_two_five(max: u64) -> Vec<f64> {
    let decades = std::iter::successors(Some(1u64), |decade| decade.checked_mul(10));
    decades
        .flat_map(|decade| [1, 2, 5].map(|digit| decade.saturating_mul(digit)))
        .take_while(|bound| *bound <= max)
        .map(float)
        .collect()
}

impl Gauges {
    pub(crate) fn new(running: usize, waiting: usize, kv_usage: f64) -> Self {
        Self { running: len(running), waiting: len(waiting), kv_usage }
    }
}

const ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const TTFT_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const INTER_TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const PHASE_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [1.0, 1.5, 2.0, 9.0] {
            histogram.observe(value);
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(1.0, 1), (2.0, 3), (f64::INFINITY, 4)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 13.5));
    }

    #[test]
    fn length_bounds_are_those_of_a_real_engine_with_a_window_of_2048() {
        let real = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0];
        assert_eq!(one_two_five(2048), real);
    }
}
