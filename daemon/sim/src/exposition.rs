//! `/metrics` in the text format of Prometheus, as vLLM 0.32's Python client writes it: label names in order of the
//! alphabet, counters with a `_created` gauge, floats as Python prints them.

use std::fmt::Write as _;

use crate::{
    number::float,
    scenario::EngineSpec,
    stats::{Finish, Histogram, Stats},
};

/// Keys and values of one token in a model of 32 layers, 8 heads of 128, in 16 bits: 2 × 32 × 8 × 128 × 2.
const BYTES_PER_TOKEN: u64 = 131_072;

/// Content type of the answer.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is told besides the scheduler's figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Start of the process and of its counters, seconds since 1970.
    pub(crate) start: f64,
    /// Whether the engine sleeps.
    pub(crate) asleep: bool,
}

/// Renders all series, or those whose names are wanted.
pub(crate) fn render(spec: &EngineSpec, stats: &Stats, process: Process, wanted: &[String]) -> String {
    let mut page = Page { text: String::new(), model: &spec.model, wanted, created: process.start };
    page.plain(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        process.start,
    );
    gauges(&mut page, stats, process.asleep);
    counters(&mut page, stats);
    lengths(&mut page, stats);
    times(&mut page, stats);
    cache_config(&mut page, spec);
    page.text
}

fn gauges(page: &mut Page<'_>, stats: &Stats, asleep: bool) {
    let gauges = stats.gauges;
    let (running, waiting) = (float(gauges.running), float(gauges.waiting));
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running);
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting);
    page.gauges(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = \
         deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals \
         vllm:num_requests_waiting.",
        "reason",
        &[("capacity", waiting), ("deferred", 0.0)],
    );
    let asleep = if asleep { 1.0 } else { 0.0 };
    page.gauges(
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = \
         1 means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        &[("awake", 1.0 - asleep), ("weights_offloaded", asleep), ("discard_all", 0.0)],
    );
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", gauges.kv_usage);
}

fn counters(page: &mut Page<'_>, stats: &Stats) {
    let queries = "Prefix cache queries, in terms of number of queried tokens.";
    page.counter("vllm:prefix_cache_queries", queries, stats.prefix_queries);
    page.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", 0);
    let preemptions = "Cumulative number of preemption from the engine.";
    page.counter("vllm:num_preemptions", preemptions, stats.preemptions);
    page.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens);
    page.counter("vllm:generation_tokens", "Number of generation tokens processed.", stats.generation_tokens);
    page.counters(
        "vllm:request_success",
        "Count of successfully processed requests.",
        "finished_reason",
        &[
            (Finish::Stop.as_str(), stats.stopped),
            (Finish::Length.as_str(), stats.length_limited),
            (Finish::Abort.as_str(), 0),
            ("error", 0),
            ("repetition", 0),
        ],
    );
}

fn lengths(page: &mut Page<'_>, stats: &Stats) {
    let steps = "Histogram of number of tokens per engine_step.";
    let limits = "Histogram of the max_tokens request parameter.";
    let preempted = "Histogram of the number of times a request was preempted.";
    page.histogram(
        "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.",
        &stats.request_prompt_tokens,
    );
    page.histogram(
        "vllm:request_generation_tokens",
        "Number of generation tokens processed.",
        &stats.request_generation_tokens,
    );
    page.histogram("vllm:iteration_tokens_total", steps, &stats.iteration_tokens);
    page.histogram("vllm:request_params_max_tokens", limits, &stats.request_max_tokens);
    page.histogram("vllm:request_num_preemptions", preempted, &stats.request_preemptions);
}

fn times(page: &mut Page<'_>, stats: &Stats) {
    let all = [
        ("vllm:time_to_first_token_seconds", "time to first token in seconds", &stats.ttft),
        ("vllm:inter_token_latency_seconds", "inter-token latency in seconds", &stats.inter_token),
        ("vllm:e2e_request_latency_seconds", "e2e request latency in seconds", &stats.e2e),
        ("vllm:request_queue_time_seconds", "time spent in WAITING phase for request", &stats.queue),
        ("vllm:request_inference_time_seconds", "time spent in RUNNING phase for request", &stats.inference),
        ("vllm:request_prefill_time_seconds", "time spent in PREFILL phase for request", &stats.prefill),
        ("vllm:request_decode_time_seconds", "time spent in DECODE phase for request", &stats.decode),
    ];
    for (name, of, histogram) in all {
        page.histogram(name, &format!("Histogram of {of}."), histogram);
    }
}

fn cache_config(page: &mut Page<'_>, spec: &EngineSpec) {
    let name = "vllm:cache_config_info";
    let EngineSpec { blocks, block_size, .. } = spec;
    let tokens = blocks * block_size;
    let bytes = tokens * BYTES_PER_TOKEN;
    let windows = python_float(float(tokens) / float(spec.max_model_len));
    let labels = format!(
        "block_size=\"{block_size}\",cache_dtype=\"auto\",enable_prefix_caching=\"False\",engine=\"0\",\
         gpu_memory_utilization=\"0.9\",kv_cache_max_concurrency=\"{windows}\",kv_cache_memory_bytes=\"{bytes}\",\
         kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{blocks}\",num_gpu_blocks_override=\"{blocks}\",\
         sliding_window=\"None\""
    );
    page.family(name, "gauge", "Information of the LLMEngine CacheConfig", |page| {
        page.sample(name, &labels, 1.0);
    });
}

struct Page<'a> {
    text: String,
    model: &'a str,
    /// Names of the series to tell; empty: all.
    wanted: &'a [String],
    created: f64,
}

impl Page<'_> {
    /// A family's head and body; nothing when no series of it is wanted.
    fn family(&mut self, name: &str, kind: &str, help: &str, body: impl FnOnce(&mut Self)) {
        let start = self.text.len();
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let head = self.text.len();
        body(self);
        if self.text.len() == head {
            self.text.truncate(start);
        }
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        if self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == name) {
            let _ = writeln!(self.text, "{name}{{{labels}}} {}", python_float(value));
        }
    }

    /// The labels of this engine, with one more in its place in the alphabet.
    fn labels(&self, extra: Option<(&str, &str)>) -> String {
        let mut labels = vec![("engine", "0"), ("model_name", self.model)];
        labels.extend(extra);
        labels.sort_unstable();
        labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect::<Vec<_>>().join(",")
    }

    fn plain(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, |page| {
            if page.wanted.is_empty() || page.wanted.iter().any(|wanted| wanted == name) {
                let _ = writeln!(page.text, "{name} {}", python_float(value));
            }
        });
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let labels = self.labels(None);
        self.family(name, "gauge", help, |page| page.sample(name, &labels, value));
    }

    fn gauges(&mut self, name: &str, help: &str, label: &str, values: &[(&str, f64)]) {
        self.family(name, "gauge", help, |page| {
            for (key, value) in values {
                page.sample(name, &page.labels(Some((label, key))), *value);
            }
        });
    }

    fn counter(&mut self, base: &str, help: &str, value: u64) {
        let labels = self.labels(None);
        let (name, created, since) = (format!("{base}_total"), format!("{base}_created"), self.created);
        self.family(&name, "counter", help, |page| page.sample(&name, &labels, float(value)));
        self.family(&created, "gauge", help, |page| page.sample(&created, &labels, since));
    }

    fn counters(&mut self, base: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        let (name, created, since) = (format!("{base}_total"), format!("{base}_created"), self.created);
        self.family(&name, "counter", help, |page| {
            for (key, value) in values {
                page.sample(&name, &page.labels(Some((label, key))), float(*value));
            }
        });
        self.family(&created, "gauge", help, |page| {
            for (key, _) in values {
                page.sample(&created, &page.labels(Some((label, key))), since);
            }
        });
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let labels = self.labels(None);
        self.family(name, "histogram", help, |page| {
            let bucket = format!("{name}_bucket");
            for (bound, count) in histogram.buckets() {
                page.sample(&bucket, &page.labels(Some(("le", &python_float(bound)))), float(count));
            }
            page.sample(&format!("{name}_count"), &labels, float(histogram.count()));
            page.sample(&format!("{name}_sum"), &labels, histogram.sum());
        });
        let (created, since) = (format!("{name}_created"), self.created);
        self.family(&created, "gauge", help, |page| page.sample(&created, &labels, since));
    }
}

/// As `floatToGoString` of the Python client: `1238.0`, `+Inf`, and from a million upwards `1.7960002066e+09`.
fn python_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let plain = format!("{value:?}");
    let Some((whole, fraction)) = plain.split_once('.') else { return plain };
    if value <= 0.0 || whole.len() <= 6 {
        return plain;
    }
    let exponent = whole.len() - 1;
    let (first, rest) = whole.split_at(1);
    let digits = format!("{first}.{rest}{fraction}");
    format!("{}e+{exponent:02}", digits.trim_end_matches(['0', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_by_a_real_engine() {
        let real = [
            (0.0, "0.0"),
            (0.05200113899968528, "0.05200113899968528"),
            (16384.0, "16384.0"),
            (f64::INFINITY, "+Inf"),
            (2_231_312_384.0, "2.231312384e+09"),
            (1_796_000_265.445_721_4, "1.7960002654457214e+09"),
            (20_000_000.0, "2e+07"),
        ];
        for (value, text) in real {
            assert_eq!(python_float(value), text);
        }
    }
}
