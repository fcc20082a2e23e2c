//! One rank's figures while its samples come in, and what becomes of them.
//!
//! Several label sets of one family (model names, processes) are one rank: counts add up, the share of the one pool
//! is the highest told.

use gpuadmit_core::{
    observation::{RankReading, SumCount},
    units::Bytes,
};

use super::families::{Family, Timing};

/// Most buckets kept of the output length histogram; vLLM's grows with the context window, by 3 a decade.
const MAX_BUCKETS: usize = 64;

/// The labels of `cache_config_info` that matter, as text.
#[derive(Clone, Copy, Default)]
pub(super) struct CacheConfig<'a> {
    pub block_size: Option<&'a [u8]>,
    pub num_gpu_blocks: Option<&'a [u8]>,
    pub size_tokens: Option<&'a [u8]>,
    pub memory_bytes: Option<&'a [u8]>,
}

/// A share that may be told more than once.
#[derive(Default)]
pub(super) struct Highest(Option<f64>);

impl Highest {
    pub(super) fn highest(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |known| known.max(value)));
    }
}

/// Sum and count of a histogram, each of which may be missing.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    sum: Option<f64>,
    count: Option<u64>,
}

impl Times {
    pub(super) fn add_sum(&mut self, seconds: f64) {
        self.sum = Some(self.sum.unwrap_or(0.0) + seconds);
    }

    pub(super) fn add_count(&mut self, count: u64) {
        self.count = Some(self.count.unwrap_or(0).saturating_add(count));
    }

    fn both(self) -> Option<SumCount> {
        Some(SumCount { sum: self.sum.filter(|sum| sum.is_finite())?, count: self.count? })
    }
}

/// A rank in the making.
#[derive(Default)]
pub(super) struct Rank {
    pub rank: u32,
    /// Whether any sample of it made sense.
    pub told: bool,
    pub usage: Highest,
    pub old_usage: Highest,
    figures: RankReading,
    old_prefix_queries: Option<u64>,
    old_prefix_hits: Option<u64>,
    has_cache_config: bool,
    ttft: Times,
    inter_token: Times,
    output_token: Times,
    request_output_token: Times,
    queue: Times,
    prefill: Times,
}

impl Rank {
    pub(super) fn new(rank: u32) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Adds to a count; `None` for a family that is none.
    pub(super) fn add(&mut self, family: Family, more: u64) -> Option<()> {
        let figures = &mut self.figures;
        let count = match family {
            Family::Running => &mut figures.running,
            Family::Waiting => &mut figures.waiting,
            Family::WaitingByReason => &mut figures.waiting_deferred,
            Family::PromptTokens => &mut figures.prompt_tokens,
            Family::GenerationTokens => &mut figures.generation_tokens,
            Family::Finished => &mut figures.finished,
            Family::Preemptions => &mut figures.preemptions,
            Family::Steps => &mut figures.steps,
            Family::PrefixQueries => &mut figures.prefix_queries,
            Family::PrefixHits => &mut figures.prefix_hits,
            Family::OldPrefixQueries => &mut self.old_prefix_queries,
            Family::OldPrefixHits => &mut self.old_prefix_hits,
            _ => return None,
        };
        *count = Some(count.unwrap_or(0).saturating_add(more));
        Some(())
    }

    /// Of the requests that finished, so many more were cut off at a limit.
    pub(super) fn add_cut(&mut self, more: u64) {
        self.figures.cut = Some(self.figures.cut.unwrap_or(0).saturating_add(more));
    }

    pub(super) fn time(&mut self, timing: Timing) -> &mut Times {
        match timing {
            Timing::Ttft => &mut self.ttft,
            Timing::InterToken => &mut self.inter_token,
            Timing::OutputToken => &mut self.output_token,
            Timing::RequestOutputToken => &mut self.request_output_token,
            Timing::Queue => &mut self.queue,
            Timing::Prefill => &mut self.prefill,
        }
    }

    /// Adds to a bucket of the output lengths; `None` when its bound is no length or there are too many.
    pub(super) fn add_length(&mut self, upper_bound: f64, more: u64) -> Option<()> {
        let buckets = &mut self.figures.generation_lengths;
        // Not `>= 0.0` alone: NaN must not get in.
        if upper_bound.is_nan() || upper_bound < 0.0 {
            return None;
        }
        if let Some((_, count)) = buckets.iter_mut().find(|(bound, _)| bound.total_cmp(&upper_bound).is_eq())
        {
            *count = count.saturating_add(more);
            return Some(());
        }
        (buckets.len() < MAX_BUCKETS).then(|| buckets.push((upper_bound, more)))
    }

    /// Takes `cache_config_info` in; `None` when one of its figures is neither a number nor Python's `None`.
    pub(super) fn set_cache(&mut self, config: &CacheConfig<'_>) -> Option<()> {
        let parsed =
            [config.block_size, config.num_gpu_blocks, config.size_tokens, config.memory_bytes].map(positive);
        let [block_size, num_gpu_blocks, size_tokens, memory] = parsed;
        self.has_cache_config = true;
        self.figures.block_size = block_size?;
        self.figures.num_gpu_blocks = num_gpu_blocks?;
        self.figures.kv_cache_size_tokens = size_tokens?;
        self.figures.kv_cache_memory = memory?.map(Bytes);
        Some(())
    }

    /// The reading, and how many of its parts made no sense and were left out.
    pub(super) fn finish(self) -> (RankReading, u64) {
        let mut reading = self.figures;
        reading.rank = self.rank;
        reading.kv_usage = self.usage.0.or(self.old_usage.0);
        reading.prefix_queries = reading.prefix_queries.or(self.old_prefix_queries);
        reading.prefix_hits = reading.prefix_hits.or(self.old_prefix_hits);
        reading.ttft = self.ttft.both();
        reading.inter_token =
            self.inter_token.both().or(self.output_token.both()).or(self.request_output_token.both());
        reading.queue_time = self.queue.both();
        reading.prefill_time = self.prefill.both();
        let lengths = &mut reading.generation_lengths;
        lengths.sort_by(|one, other| one.0.total_cmp(&other.0));
        let whole = lengths.is_sorted_by_key(|(_, count)| *count)
            && lengths.last().is_none_or(|(bound, _)| *bound == f64::INFINITY);
        if !whole {
            lengths.clear();
        }
        (reading, u64::from(!whole))
    }
}

/// A figure above zero from a label; `Some(None)` where the engine does not tell it.
#[expect(clippy::option_option, reason = "malformed and not told are different things")]
fn positive(label: Option<&[u8]>) -> Option<Option<u64>> {
    match label {
        None | Some(b"None" | b"" | b"0") => Some(None),
        Some(text) => Some(Some(std::str::from_utf8(text).ok()?.parse().ok()?)),
    }
}

/// Undoes the sum: with data parallelism every row's `num_gpu_blocks` is the sum over the engines of this API server
/// (vLLM v1/engine/core_client.py). Where the pool's size in tokens is told, per engine, and multiplies out for some
/// number of engines, that decides; hybrid models' does not, and then the number of engines seen divides.
pub(super) fn undo_pool_sum(ranks: &mut [Rank]) {
    let engines = u64::try_from(ranks.len()).unwrap_or(u64::MAX).max(1);
    for rank in ranks.iter_mut().filter(|rank| rank.has_cache_config) {
        let figures = &mut rank.figures;
        let Some(sum) = figures.num_gpu_blocks else { continue };
        let told = figures.kv_cache_size_tokens.zip(figures.block_size).map(|(tokens, size)| tokens / size);
        let multiplies_out = |one: &u64| {
            let exact =
                figures.kv_cache_size_tokens == figures.block_size.and_then(|size| size.checked_mul(*one));
            exact && *one > 0 && sum % *one == 0
        };
        let blocks = told.filter(multiplies_out).unwrap_or(sum / engines);
        figures.num_gpu_blocks = (blocks > 0).then_some(blocks);
    }
}
