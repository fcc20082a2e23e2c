//! Which of vLLM's metric families are read, under all the names they have had since 0.8.

/// A family of samples that a reading is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Usage,
    /// The name of `Usage` before 0.11; 0.10 has both.
    OldUsage,
    Running,
    Waiting,
    WaitingByReason,
    SleepState,
    ProcessStart,
    CacheConfig,
    PromptTokens,
    GenerationTokens,
    Finished,
    Preemptions,
    Steps,
    PrefixQueries,
    OldPrefixQueries,
    PrefixHits,
    OldPrefixHits,
    GenerationLengths,
    TimeSum(Timing),
    TimeCount(Timing),
}

/// A histogram of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    Ttft,
    InterToken,
    /// The name of `InterToken` before 0.12.
    OutputToken,
    /// The mean of a request's inter-token times: the last resort.
    RequestOutputToken,
    Queue,
    Prefill,
}

impl Family {
    /// The family of a sample, `None` where it is not needed.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let Some(name) = name.strip_prefix(b"vllm:") else {
            return (name == b"process_start_time_seconds").then_some(Self::ProcessStart);
        };
        if let Some(timing) = name.strip_suffix(b"_sum").and_then(Timing::of) {
            return Some(Self::TimeSum(timing));
        }
        if let Some(timing) = name.strip_suffix(b"_count").and_then(Timing::of) {
            return Some(Self::TimeCount(timing));
        }
        Some(match name.strip_suffix(b"_total").unwrap_or(name) {
            b"kv_cache_usage_perc" => Self::Usage,
            b"gpu_cache_usage_perc" => Self::OldUsage,
            b"num_requests_running" => Self::Running,
            b"num_requests_waiting" => Self::Waiting,
            b"num_requests_waiting_by_reason" => Self::WaitingByReason,
            b"engine_sleep_state" => Self::SleepState,
            b"cache_config_info" => Self::CacheConfig,
            b"prompt_tokens" => Self::PromptTokens,
            b"generation_tokens" => Self::GenerationTokens,
            b"request_success" => Self::Finished,
            b"num_preemptions" => Self::Preemptions,
            b"iteration_tokens_total_count" => Self::Steps,
            b"prefix_cache_queries" => Self::PrefixQueries,
            b"gpu_prefix_cache_queries" => Self::OldPrefixQueries,
            b"prefix_cache_hits" => Self::PrefixHits,
            b"gpu_prefix_cache_hits" => Self::OldPrefixHits,
            b"request_generation_tokens_bucket" => Self::GenerationLengths,
            _ => return None,
        })
    }
}

impl Timing {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"time_to_first_token_seconds" => Self::Ttft,
            b"inter_token_latency_seconds" => Self::InterToken,
            b"time_per_output_token_seconds" => Self::OutputToken,
            b"request_time_per_output_token_seconds" => Self::RequestOutputToken,
            b"request_queue_time_seconds" => Self::Queue,
            b"request_prefill_time_seconds" => Self::Prefill,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_known_with_and_without_total() {
        assert_eq!(Family::of(b"vllm:prompt_tokens"), Family::of(b"vllm:prompt_tokens_total"));
        assert_eq!(Family::of(b"vllm:prompt_tokens_created"), None);
        assert_eq!(Family::of(b"vllm:iteration_tokens_total_sum"), None);
        assert_eq!(Family::of(b"prompt_tokens_total"), None);
    }
}
