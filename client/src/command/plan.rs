//! `gpuadmit plan`

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use gpuadmit_client::{CALL_DEADLINE, Connection, connect, v1::StatusRequest, within};

mod values;

use values::{Window, share, size, window};

use super::{Exit, output::Output};
use crate::{
    plan::{
        PlanError,
        budget::{Batch, Budget, Gpu, other_bytes},
        cache_type::cache_bytes,
        config::Config,
        families::Attention,
        fit::{Load, Pool},
        layout::{Layout, Serving},
        model::Model,
        weights::Weights,
    },
    render::plan::{Advice, Report, Row, Running},
};

/// Batches that vLLM schedules before the first of them is settled (0.32: asynchronous scheduling).
const BATCHES_IN_FLIGHT: u64 = 2;
/// Lengths shown where none are asked for, tokens.
const LENGTHS: [u64; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];
/// Most GPUs that the advice considers.
const MOST_GPUS: u64 = 16;
/// Most of a GPU's memory that the advice considers.
const MOST_UTILIZATION: f64 = 0.95;

/// Plan the KV cache of a model on given GPUs, and how many requests fit.
///
/// Needs no daemon, except for --engine. Knows the families of models whose cache was checked against vLLM 0.32; refuses
/// every other one by name. The size of the cache is what vLLM makes of the memory that weights and activations leave;
/// the activations are an estimate unless --other or --kv-memory is given.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 it fits, 1 it does not, 2 an error.")]
pub(crate) struct Plan {
    /// A model's folder, or its config.json.
    path: PathBuf,
    /// Memory of one GPU, such as 80GiB.
    #[arg(long, value_name = "SIZE", value_parser = size, required_unless_present = "kv_memory")]
    gpu_memory: Option<u64>,
    /// Memory of the KV cache on one GPU, instead of what is left of --gpu-memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    kv_memory: Option<u64>,
    /// Share of a GPU's memory that the engine may take.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, value_parser = share)]
    gpu_memory_utilization: f64,
    /// GPUs that share every layer.
    #[arg(long, value_name = "GPUS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    tensor_parallel_size: u64,
    /// Type of the model's values.
    #[arg(long, value_enum, default_value_t = Type::Auto)]
    dtype: Type,
    /// Type of the values in the KV cache; auto: what the checkpoint's quantization says, else the model's.
    #[arg(long, value_enum, default_value_t = CacheType::Auto)]
    kv_cache_dtype: CacheType,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    block_size: u64,
    /// Context window: a number such as 32768 or 32k, or auto for the longest that fits; the model's own where it is
    /// not given.
    #[arg(long, value_name = "TOKENS", value_parser = window, allow_negative_numbers = true)]
    max_model_len: Option<Window>,
    /// Most tokens per step.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    max_num_batched_tokens: u64,
    /// Most sequences per step.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    max_num_seqs: u64,
    /// Prefixes are not cached.
    #[arg(long)]
    no_enable_prefix_caching: bool,
    /// Size of the weights over all GPUs, instead of that of the files or an estimate.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    weights: Option<u64>,
    /// Memory of one GPU that neither weights nor KV cache take, instead of an estimate.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    other: Option<u64>,
    /// Requests that must fit at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    concurrency: u64,
    /// Tokens of each, prompt and output; the context window where it is not given.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    context: Option<u64>,
    /// Compare with what this running engine reports (its id from `status`).
    #[arg(long, value_name = "ID")]
    engine: Option<String>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    /// As config.json says.
    Auto,
    /// 16 bits.
    Bfloat16,
    /// 16 bits.
    Float16,
    /// 32 bits.
    Float32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheType {
    /// The model's.
    Auto,
    /// 16 bits.
    Bfloat16,
    /// 16 bits.
    Float16,
    /// 8 bits.
    Fp8,
    /// 8 bits.
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    /// 8 bits.
    #[value(name = "fp8_e5m2")]
    Fp8E5m2,
    /// 8 bits.
    #[value(name = "fp8_inc")]
    Fp8Inc,
}

/// All that a plan depends on and that advice may change.
#[derive(Clone, Debug)]
struct Question<'a> {
    config: &'a Config,
    model: &'a Model,
    weights: Option<Weights>,
    gpu: Option<Gpu>,
    kv_memory: Option<u64>,
    other: Option<u64>,
    serving: Serving,
    batch: Batch,
    window: u64,
    load: Load,
}

/// Its answer.
struct Answer {
    budget: Budget,
    layout: Layout,
    pool: Pool,
    /// Whether the load fits, and one request of the whole window, without which vLLM does not start.
    fits: bool,
}

impl Question<'_> {
    fn answer(&self) -> Result<Answer, PlanError> {
        let gpus = self.serving.tensor_parallel;
        if !self.model.divides(gpus) {
            return Err(PlanError::TensorParallel { size: gpus, heads: self.model.heads });
        }
        let budget = match (self.kv_memory, &self.gpu, self.weights) {
            (None, Some(gpu), Some(weights)) => {
                let estimated = || other_bytes(self.config, &self.batch, self.serving.value_bytes, gpus);
                Budget::of(gpu, weights, self.other.map_or_else(estimated, Ok)?, gpus)
            }
            (given, ..) => Budget::given(given.unwrap_or(0)),
        };
        let layout = Layout::of(&self.model.layers, &self.serving);
        let pool = Pool::of(&layout, budget.cache_bytes, self.window);
        let whole_window = Load { tokens: self.window, requests: 1 };
        let fits = pool.fits(&layout, &self.load) && pool.fits(&layout, &whole_window);
        Ok(Answer { budget, layout, pool, fits })
    }

    /// Shortens the window to the longest of which one request fits, as vLLM does with --max-model-len auto.
    fn fit_window(&mut self) -> Result<(), PlanError> {
        let Answer { layout, pool, .. } = self.answer()?;
        let longest = pool.longest(&layout, 1, self.window).max(1);
        self.load.tokens = self.load.tokens.min(longest);
        self.window = longest;
        Ok(())
    }

    /// Single changes that make it fit.
    fn advice(&self, answer: &Answer) -> Vec<Advice> {
        let would = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            other.answer().is_ok_and(|answer| answer.fits)
        };
        let mut advice = Vec::new();
        let halves = self.config.family().attention != Attention::Indexed && self.serving.cache_bytes > 1;
        if halves && would(&|other| other.serving.cache_bytes = 1) {
            advice.push(Advice::CacheType);
        }
        let more = |gpus: &u64| would(&|other| other.serving.tensor_parallel = *gpus);
        let doubled = std::iter::successors(Some(self.serving.tensor_parallel * 2), |gpus| Some(gpus * 2));
        advice.extend(doubled.take_while(|gpus| *gpus <= MOST_GPUS).find(more).map(Advice::TensorParallel));
        let utilization = self.gpu.map(|gpu| gpu.utilization).filter(|_| self.kv_memory.is_none());
        let fuller = |other: &mut Self| {
            other.gpu.iter_mut().for_each(|gpu| gpu.utilization = MOST_UTILIZATION);
        };
        if utilization.is_some_and(|share| share < MOST_UTILIZATION) && would(&fuller) {
            advice.push(Advice::Utilization(MOST_UTILIZATION));
        }
        // A smaller window lets shorter requests be served; more of them may then fit.
        let Answer { layout, pool, .. } = answer;
        match pool.longest(layout, self.load.requests, self.load.tokens) {
            0 => {}
            longest => advice.push(Advice::Context { tokens: longest, requests: self.load.requests }),
        }
        match pool.requests(layout, self.load.tokens) {
            0 => {}
            requests => advice.push(Advice::Concurrency { requests, tokens: self.load.tokens }),
        }
        advice
    }
}

impl Plan {
    /// Runs it; asks the daemon behind `socket` only with --engine.
    pub(crate) fn run(self, socket: PathBuf, output: &mut Output) -> anyhow::Result<Exit> {
        let config = Config::read(&self.path)?;
        let model = Model::of(&config)?;
        let mut question = self.question(&config, &model)?;
        if self.max_model_len == Some(Window::Auto) {
            question.fit_window()?;
        }
        let answer = question.answer()?;
        let running = self.engine.as_deref().map(|id| running(socket, id)).transpose()?;
        let report = report(&question, &answer, running);
        if self.json {
            output.print(&format!("{:#}\n", report.json()))?;
        } else {
            output.print(&report.text(output.paint()))?;
        }
        Ok(if answer.fits { Exit::Fine } else { Exit::Denied })
    }

    fn question<'a>(&self, config: &'a Config, model: &'a Model) -> anyhow::Result<Question<'a>> {
        let value_bytes = self.value_bytes();
        let cache_bytes = match self.kv_cache_dtype {
            CacheType::Auto => cache_bytes(config)?.unwrap_or(value_bytes),
            CacheType::Bfloat16 | CacheType::Float16 => 2,
            CacheType::Fp8 | CacheType::Fp8E4m3 | CacheType::Fp8E5m2 | CacheType::Fp8Inc => 1,
        };
        if cache_bytes == 1 && config.family().attention == Attention::Indexed {
            let why = "vLLM keeps 576 or 656 bytes per token, depending on the GPU";
            return Err(anyhow!("--kv-cache-dtype: 8 bits with sparse attention are not planned: {why}"));
        }
        let window = match self.max_model_len {
            Some(Window::Tokens(tokens)) => Some(tokens),
            Some(Window::Auto) | None => model.window,
        };
        let window = window.context("config.json does not give the context window; give --max-model-len")?;
        let tokens = self.context.unwrap_or(window);
        if tokens > window {
            return Err(anyhow!("--context: {tokens} is not allowed; at most the context window, {window}"));
        }
        let weights = match (self.weights, self.kv_memory) {
            (Some(bytes), _) => Some(Weights::Given(bytes)),
            (None, Some(_)) => None,
            (None, None) => Some(Weights::find(&self.path, config, value_bytes)?),
        };
        let utilization = self.gpu_memory_utilization;
        Ok(Question {
            config,
            model,
            weights,
            gpu: self.gpu_memory.map(|memory_bytes| Gpu { memory_bytes, utilization }),
            kv_memory: self.kv_memory,
            other: self.other,
            serving: Serving {
                tensor_parallel: self.tensor_parallel_size,
                value_bytes,
                cache_bytes,
                block_size: self.block_size,
                in_flight: BATCHES_IN_FLIGHT * self.max_num_batched_tokens,
                prefix_caching: !self.no_enable_prefix_caching,
            },
            batch: Batch { tokens: self.max_num_batched_tokens, sequences: self.max_num_seqs },
            window,
            load: Load { tokens, requests: self.concurrency },
        })
    }

    /// vLLM serves float32 models in 16 bits by `auto`.
    const fn value_bytes(&self) -> u64 {
        match self.dtype {
            Type::Float32 => 4,
            Type::Auto | Type::Bfloat16 | Type::Float16 => 2,
        }
    }
}

fn report(question: &Question<'_>, answer: &Answer, running: Option<Running>) -> Report {
    let Answer { budget, layout, pool, fits } = answer;
    let mut lengths: Vec<u64> = LENGTHS.into_iter().filter(|tokens| *tokens < question.window).collect();
    lengths.extend([question.load.tokens, question.window]);
    lengths.sort_unstable();
    lengths.dedup();
    let rows = lengths.into_iter().map(|tokens| Row {
        tokens,
        blocks: layout.blocks_for(tokens),
        requests: pool.requests(layout, tokens),
    });
    Report {
        model: question.model.kind.clone(),
        layers: question.model.layers.clone(),
        gpus: question.serving.tensor_parallel,
        budget: question.kv_memory.is_none().then_some(*budget),
        weights: question.weights,
        other_given: question.other.is_some(),
        cache_bytes: budget.cache_bytes,
        bytes_per_token: Layout::bytes_per_token(&question.model.layers, &question.serving),
        layout: layout.clone(),
        pool: *pool,
        window: question.window,
        rows: rows.collect(),
        load: question.load,
        fits: *fits,
        advice: if *fits { Vec::new() } else { question.advice(answer) },
        running,
    }
}

/// What the engine `id` reports.
fn running(socket: PathBuf, id: &str) -> anyhow::Result<Running> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection = connect(socket)?;
        ask(&connection, id).await
    })
}

async fn ask(connection: &Connection, id: &str) -> anyhow::Result<Running> {
    let request = within(CALL_DEADLINE, StatusRequest { events: Some(0) });
    let answer = connection.node().status(request).await.map_err(|status| connection.explain(&status))?;
    let engines = answer.into_inner().engines;
    let known: Vec<&str> = engines.iter().map(|engine| engine.id.as_str()).collect();
    let none = || anyhow!("--engine: {id:?} is not allowed; one of {known:?}");
    let engine = engines.iter().find(|engine| engine.id == id).ok_or_else(none)?;
    let pool = engine.pools.first();
    Ok(Running {
        id: id.into(),
        blocks: pool.and_then(|pool| pool.blocks_total),
        block_size: pool.and_then(|pool| pool.block_size),
        window: engine.max_model_len,
    })
}
