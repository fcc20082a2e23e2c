//! The core's types as plain JSON: each is its list of fields, so that a field the core gains is missing here until it is
//! named. What is empty, absent or zero by default is left out of a line.

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    count::TextSize,
    explain::{Peak, Terms},
    observation::{
        DeviceMemory, DeviceProcess, DeviceProcesses, DeviceReading, EngineFacts, EngineProcess,
        EngineReading, MigInstance, ModelSource, Obstacle, ProcessRole, RankReading, ServedModel, SumCount,
    },
    prompts::Prompts,
    units::{Blocks, Bytes, Mono, Span, Tokens},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A type that a line can hold.
pub(crate) trait Wire: Sized {
    /// As JSON sees it.
    type Plain: Serialize + DeserializeOwned + Default + PartialEq + Clone + std::fmt::Debug;

    fn to_plain(&self) -> Self::Plain;
    fn from_plain(plain: Self::Plain) -> Self;
}

/// Whether a field may be left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

macro_rules! as_they_are {
    ($($type:ty),*) => { $(
        impl Wire for $type {
            type Plain = Self;

            fn to_plain(&self) -> Self {
                self.clone()
            }

            fn from_plain(plain: Self) -> Self {
                plain
            }
        }
    )* };
}
as_they_are!(u32, u64, bool, String);

macro_rules! newtypes {
    ($($type:ident),*) => { $(
        impl Wire for $type {
            type Plain = u64;

            fn to_plain(&self) -> u64 {
                self.0
            }

            fn from_plain(plain: u64) -> Self {
                Self(plain)
            }
        }
    )* };
}
newtypes!(Blocks, Bytes, Mono, Tokens);

/// JSON has no infinity, which the last bucket of a histogram ends at: it is null.
impl Wire for f64 {
    type Plain = Option<Self>;

    fn to_plain(&self) -> Option<Self> {
        Some(*self).filter(|value| value.is_finite())
    }

    fn from_plain(plain: Option<Self>) -> Self {
        plain.unwrap_or(Self::INFINITY)
    }
}

impl Wire for Arc<str> {
    type Plain = String;

    fn to_plain(&self) -> String {
        self.as_ref().into()
    }

    fn from_plain(plain: String) -> Self {
        plain.into()
    }
}

/// Nanoseconds.
impl Wire for Arc<ModelSource> {
    type Plain = Box<PlainSource>;

    fn to_plain(&self) -> Box<PlainSource> {
        Box::new(self.as_ref().to_plain())
    }

    fn from_plain(plain: Box<PlainSource>) -> Self {
        Self::new(ModelSource::from_plain(*plain))
    }
}

impl Wire for Duration {
    type Plain = u64;

    fn to_plain(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }

    fn from_plain(plain: u64) -> Self {
        Self::from_nanos(plain)
    }
}

impl Wire for Span {
    type Plain = (u64, u64);

    fn to_plain(&self) -> (u64, u64) {
        (self.not_before.0, self.not_after.0)
    }

    fn from_plain((not_before, not_after): (u64, u64)) -> Self {
        Self { not_before: Mono(not_before), not_after: Mono(not_after) }
    }
}

impl Wire for Obstacle {
    type Plain = u32;

    fn to_plain(&self) -> u32 {
        match self {
            Self::Tls => 0,
            Self::Grpc => 1,
            Self::Headless => 2,
            Self::RelativeSocket => 3,
        }
    }

    fn from_plain(plain: u32) -> Self {
        match plain {
            0 => Self::Tls,
            1 => Self::Grpc,
            2 => Self::Headless,
            _ => Self::RelativeSocket,
        }
    }
}

impl Wire for ProcessRole {
    type Plain = u32;

    fn to_plain(&self) -> u32 {
        match self {
            Self::ApiServer => 0,
            Self::EngineCore => 1,
            Self::Worker => 2,
            Self::Helper => 3,
        }
    }

    fn from_plain(plain: u32) -> Self {
        match plain {
            0 => Self::ApiServer,
            1 => Self::EngineCore,
            2 => Self::Worker,
            _ => Self::Helper,
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    type Plain = Option<T::Plain>;

    fn to_plain(&self) -> Self::Plain {
        self.as_ref().map(T::to_plain)
    }

    fn from_plain(plain: Self::Plain) -> Self {
        plain.map(T::from_plain)
    }
}

impl<T: Wire> Wire for Vec<T> {
    type Plain = Vec<T::Plain>;

    fn to_plain(&self) -> Self::Plain {
        self.iter().map(T::to_plain).collect()
    }

    fn from_plain(plain: Self::Plain) -> Self {
        plain.into_iter().map(T::from_plain).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    type Plain = (A::Plain, B::Plain);

    fn to_plain(&self) -> Self::Plain {
        (self.0.to_plain(), self.1.to_plain())
    }

    fn from_plain(plain: Self::Plain) -> Self {
        (A::from_plain(plain.0), B::from_plain(plain.1))
    }
}

macro_rules! structs {
    ($($plain:ident for $type:ident { $($field:ident: $of:ty),* $(,)? })*) => { $(
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub(crate) struct $plain {
            $(#[serde(skip_serializing_if = "is_default")] $field: <$of as Wire>::Plain,)*
        }

        impl Wire for $type {
            type Plain = $plain;

            fn to_plain(&self) -> $plain {
                $plain { $($field: self.$field.to_plain()),* }
            }

            fn from_plain(plain: $plain) -> Self {
                Self { $($field: Wire::from_plain(plain.$field)),* }
            }
        }
    )* };
}

impl PlainFacts {
    /// Engine id.
    pub(crate) fn id(&self) -> &str {
        &self.engine
    }
}

structs! {
    PlainFacts for EngineFacts {
        engine: Arc<str>, address: Arc<str>, obstacle: Option<Obstacle>, span: Span, version: Option<String>, version_known: bool,
        models: Vec<ServedModel>, adapters_at_runtime: bool, processes: Vec<EngineProcess>,
        block_size: Option<u64>, max_num_seqs: Option<u64>, max_num_batched_tokens: Option<u64>,
        gpu_memory_utilization: Option<f64>, data_parallel_size: u32, model_source: Option<Arc<ModelSource>>,
        statistics_off: bool, metrics_filtered: Option<bool>,
    }
    PlainSource for ModelSource {
        name: Arc<str>, folder: Option<Arc<str>>, caches: Vec<Arc<str>>, revision: Option<Arc<str>>,
        chat_template: Option<Arc<str>>, template_kwargs: Option<Arc<str>>, content_format: Option<Arc<str>>,
        root: Option<Arc<str>>,
    }
    PlainModel for ServedModel { name: Arc<str>, max_model_len: Option<Tokens> }
    PlainProcess for EngineProcess { pid: u32, start_ticks: u64, role: ProcessRole }
    PlainReading for EngineReading {
        span: Span, ranks: Vec<RankReading>, asleep: Option<bool>, process_start: Option<f64>,
        interval: Duration, cpu_cost: Duration, malformed: u64,
    }
    PlainRank for RankReading {
        rank: u32, kv_usage: Option<f64>, running: Option<u64>, waiting: Option<u64>,
        waiting_deferred: Option<u64>, num_gpu_blocks: Option<u64>, block_size: Option<u64>,
        kv_cache_size_tokens: Option<u64>, kv_cache_memory: Option<Bytes>, prompt_tokens: Option<u64>,
        generation_tokens: Option<u64>, finished: Option<u64>, cut: Option<u64>, preemptions: Option<u64>,
        steps: Option<u64>,
        prefix_queries: Option<u64>, prefix_hits: Option<u64>, ttft: Option<SumCount>,
        inter_token: Option<SumCount>, queue_time: Option<SumCount>, prefill_time: Option<SumCount>,
        generation_lengths: Vec<(f64, u64)>,
    }
    PlainSum for SumCount { sum: f64, count: u64 }
    PlainDevice for DeviceReading {
        span: Span, uuid: Arc<str>, index: u32, name: String, pci: String, parent: Option<Arc<str>>,
        instance: Option<MigInstance>, memory: Option<DeviceMemory>, utilisation_percent: Option<u32>,
        problem: String,
    }
    PlainInstance for MigInstance { gpu: u32, compute: u32 }
    PlainMemory for DeviceMemory { total: Bytes, reserved: Option<Bytes>, used: Bytes, free: Bytes }
    PlainListed for DeviceProcesses { span: Span, uuid: Arc<str>, processes: Vec<DeviceProcess> }
    PlainOnDevice for DeviceProcess { pid: u32, used: Option<Bytes> }
    PlainText for TextSize {
        bytes: u64, wide_bytes: u64, symbol_bytes: u64, space_bytes: u64, optional_bytes: u64, words: u64,
        messages: u64, known: Tokens, assumed: Tokens, prompts: u32, longest: Tokens,
        longest_least: Tokens, cut: Option<Tokens>,
    }
    PlainPrompts for Prompts { count: u32, total: Tokens, longest: Tokens }
    PlainTerms for Terms {
        rank: u32, reported: Option<Blocks>, age: Option<Duration>, growth: Blocks, unseen: Blocks,
        ended: Blocks, bypass: Blocks, need: Blocks, limit: Option<Blocks>, peak: Option<Peak>,
        prompt: Tokens, output: Tokens, reservations: u64,
    }
    PlainPeak for Peak { mean: Blocks, spread: Blocks, tokens: Tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_survives_its_line_and_takes_no_room_for_what_it_has_not() {
        let rank = RankReading {
            kv_usage: Some(1.0 / 3.0),
            running: Some(0),
            ttft: Some(SumCount { sum: 0.1, count: 3 }),
            generation_lengths: vec![(1.0, 2), (f64::INFINITY, 4)],
            ..RankReading::default()
        };
        let reading = EngineReading {
            span: Span { not_before: Mono(1), not_after: Mono(2) },
            ranks: vec![rank],
            interval: Duration::from_millis(200),
            ..EngineReading::default()
        };
        let text = serde_json::to_string(&reading.to_plain()).unwrap();
        let expected = concat!(
            r#"{"span":[1,2],"ranks":[{"kv_usage":0.3333333333333333,"running":0,"#,
            r#""ttft":{"sum":0.1,"count":3},"generation_lengths":[[1.0,2],[null,4]]}],"interval":200000000}"#
        );
        assert_eq!(text, expected);
        assert_eq!(EngineReading::from_plain(serde_json::from_str(&text).unwrap()), reading);
    }
}
