//! The filtered form of a scrape: only the samples that are needed, at a fifth of the engine's cost.

/// Samples asked for in every filtered scrape.
pub(super) const QUICK: &[&str] = &[
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:engine_sleep_state",
    "vllm:cache_config_info",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
    "vllm:iteration_tokens_total_count",
    "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "process_start_time_seconds",
];

/// Samples asked for now and then: histograms, which cost the engine more.
pub(super) const SLOW: &[&str] = &[
    "vllm:request_generation_tokens_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:time_per_output_token_seconds_sum",
    "vllm:time_per_output_token_seconds_count",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prefill_time_seconds_count",
];

/// Path and query that ask for `names` only. The slash before the query matters: without it vLLM redirects.
pub(super) fn filtered_path<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    let query: Vec<String> = names.into_iter().map(|name| format!("name[]={name}")).collect();
    format!("/metrics/?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::vllm::families::Family;

    #[test]
    fn everything_asked_for_is_read() {
        for name in QUICK.iter().chain(SLOW) {
            assert!(Family::of(name.as_bytes()).is_some(), "{name}");
        }
    }

    #[test]
    fn the_filter_has_the_slash_that_matters() {
        assert_eq!(filtered_path(&["a", "b"]), "/metrics/?name[]=a&name[]=b");
    }
}
