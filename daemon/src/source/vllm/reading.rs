//! From the text of `/metrics` to figures by rank. Only families that are needed are looked into; only ranks, output
//! length buckets and model names are allocated, each bounded.

use std::sync::Arc;

use gpuadmit_core::observation::{EngineReading, MAX_RANKS, ScrapeFailure};

use super::{
    exposition::{self, Line, number},
    families::Family,
    rank::{CacheConfig, Rank, undo_pool_sum},
};

/// Largest `/metrics` body read: a full one has 50 KB, times ranks.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// Most model names taken from labels.
pub const MAX_MODELS: usize = 16;
/// Longest model name taken from labels.
pub const MAX_MODEL_BYTES: usize = 256;

/// What a body says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The figures; span, interval and cost are the scraper's to fill in.
    pub reading: EngineReading,
    /// Values of the label `model_name`, for engines that do not list their models to us.
    pub models: Vec<Arc<str>>,
}

/// Reads a body.
///
/// # Errors
/// [`ScrapeFailure::Malformed`] when it is larger than [`MAX_BODY_BYTES`] or no line of it can be understood,
/// [`ScrapeFailure::NoSeries`] when it has no series of an engine. Single bad lines are left out and counted instead.
pub fn read(body: &[u8]) -> Result<Body, ScrapeFailure> {
    if body.len() > MAX_BODY_BYTES {
        return Err(ScrapeFailure::Malformed(format!("the body has more than {MAX_BODY_BYTES} bytes")));
    }
    let mut reader = Reader::default();
    let (mut understood, mut first_fault) = (false, None);
    for line in exposition::lines(body) {
        match line {
            Ok(line) => {
                understood = true;
                reader.line(line);
            }
            Err(fault) => {
                first_fault = first_fault.or(Some(fault));
                reader.fault();
            }
        }
    }
    match first_fault {
        Some(fault) if !understood => Err(ScrapeFailure::Malformed(fault.to_string())),
        _ => reader.finish(),
    }
}

/// The labels that matter; borrowed from the body.
#[derive(Clone, Copy, Default)]
struct Labels<'a> {
    engine: Option<&'a [u8]>,
    model: Option<&'a [u8]>,
    reason: Option<&'a [u8]>,
    sleep_state: Option<&'a [u8]>,
    finished_reason: Option<&'a [u8]>,
    upper_bound: Option<&'a [u8]>,
    cache: CacheConfig<'a>,
}

impl<'a> Labels<'a> {
    fn set(&mut self, name: &[u8], value: &'a [u8]) {
        let place = match name {
            b"engine" => &mut self.engine,
            b"model_name" => &mut self.model,
            b"reason" => &mut self.reason,
            b"sleep_state" => &mut self.sleep_state,
            b"finished_reason" => &mut self.finished_reason,
            b"le" => &mut self.upper_bound,
            b"block_size" => &mut self.cache.block_size,
            b"num_gpu_blocks" => &mut self.cache.num_gpu_blocks,
            b"kv_cache_size_tokens" => &mut self.cache.size_tokens,
            b"kv_cache_memory_bytes" => &mut self.cache.memory_bytes,
            _ => return,
        };
        *place = Some(value);
    }

    /// The rank: the label `engine`; 0 where there is none (0.8).
    fn rank(&self) -> Option<u32> {
        self.engine.map_or(Some(0), |text| std::str::from_utf8(text).ok()?.parse().ok())
    }
}

#[derive(Default)]
struct Reader {
    ranks: Vec<Rank>,
    models: Vec<Arc<str>>,
    asleep: Option<bool>,
    process_start: Option<f64>,
    malformed: u64,
    finished_broken: bool,
}

impl Reader {
    fn line(&mut self, line: Line<'_>) {
        let Some(family) = Family::of(line.name) else { return };
        let mut labels = Labels::default();
        let value = line.read(|name, value| labels.set(name, value));
        let taken = value.ok().and_then(|value| self.sample(family, &labels, value));
        if taken.is_none() {
            self.fault();
            // A sum with a term left out would be a figure that nobody reported.
            self.finished_broken |= family == Family::Finished;
        }
    }

    fn fault(&mut self) {
        self.malformed = self.malformed.saturating_add(1);
    }

    /// Takes a sample in; `None` when its value or labels make no sense.
    fn sample(&mut self, family: Family, labels: &Labels<'_>, value: f64) -> Option<()> {
        if family == Family::ProcessStart {
            self.process_start = Some(seconds(value)?);
            return Some(());
        }
        let mut asleep = self.asleep;
        let rank = self.rank(labels.rank()?)?;
        match family {
            Family::SleepState => {
                let awake = count(value)? != 0;
                if labels.sleep_state? == b"awake" {
                    asleep = Some(asleep.unwrap_or(false) || !awake);
                }
            }
            Family::Usage => rank.usage.highest(share(value)?),
            Family::OldUsage => rank.old_usage.highest(share(value)?),
            Family::WaitingByReason => {
                let waiting = count(value)?;
                if labels.reason? == b"deferred" {
                    rank.add(family, waiting)?;
                }
            }
            Family::Finished => {
                let finished = count(value)?;
                rank.add(family, finished)?;
                rank.add_cut(if labels.finished_reason == Some(b"length") { finished } else { 0 });
            }
            Family::CacheConfig => rank.set_cache(&labels.cache)?,
            Family::GenerationLengths => rank.add_length(number(labels.upper_bound?)?, count(value)?)?,
            Family::TimeSum(timing) => rank.time(timing).add_sum(seconds(value)?),
            Family::TimeCount(timing) => rank.time(timing).add_count(count(value)?),
            _ => rank.add(family, count(value)?)?,
        }
        rank.told = true;
        self.asleep = asleep;
        self.model(labels.model);
        Some(())
    }

    /// The rank's figures so far; `None` when there are too many ranks.
    fn rank(&mut self, rank: u32) -> Option<&mut Rank> {
        let place = match self.ranks.iter().position(|known| known.rank == rank) {
            Some(place) => place,
            None if self.ranks.len() >= MAX_RANKS => return None,
            None => {
                self.ranks.push(Rank::new(rank));
                self.ranks.len() - 1
            }
        };
        self.ranks.get_mut(place)
    }

    fn model(&mut self, name: Option<&[u8]>) {
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else { return };
        let fits = !name.is_empty() && name.len() <= MAX_MODEL_BYTES && !name.contains('\\');
        if fits && self.models.len() < MAX_MODELS && !self.models.iter().any(|known| **known == *name) {
            self.models.push(name.into());
        }
    }

    fn finish(mut self) -> Result<Body, ScrapeFailure> {
        self.ranks.retain(|rank| rank.told);
        if self.ranks.is_empty() {
            return Err(ScrapeFailure::NoSeries);
        }
        self.ranks.sort_by_key(|rank| rank.rank);
        undo_pool_sum(&mut self.ranks);
        let mut malformed = self.malformed;
        let ranks = self.ranks.into_iter().map(|rank| {
            let (mut reading, faults) = rank.finish();
            malformed = malformed.saturating_add(faults);
            if self.finished_broken {
                (reading.finished, reading.cut) = (None, None);
            }
            reading
        });
        let reading = EngineReading {
            ranks: ranks.collect(),
            asleep: self.asleep,
            process_start: self.process_start,
            malformed,
            ..EngineReading::default()
        };
        Ok(Body { reading, models: self.models })
    }
}

/// A count: a whole number from 0 to 2^53, below which a double is exact.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole and in range"
)]
fn count(value: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    ((0.0..=EXACT).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// A time or a sum of times: finite and not negative.
fn seconds(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// A share from 0 to 1.
fn share(value: f64) -> Option<f64> {
    (0.0..=1.0).contains(&value).then_some(value)
}
