//! `aisimulate-core`: vLLM's scheduler, block pool, prefix cache and preemption, written by other hands.
//!
//! Only its timing is not used: [`StepCost`] prices what a pass did, so that base costs count once in a step that both
//! prefills and decodes.

use std::{num::NonZeroU32, sync::Arc};

use aisimulate_core::engine::{
    Backend, Command, EngineConfig, EngineFactory, ForwardPassMetrics, Metrics, Request, SchedulerRank,
    TimingModel,
    generalized::{CommandContext, EngineIdentity, RankEngine},
};
use anyhow::Result;
use uuid::Uuid;

use super::{EngineModel, EngineSetup, Event, Gauges, Output, RequestId, Step, StepCost, Submission, Work};
use crate::time::{MILLISECOND, Nanos};

/// A rank of `aisimulate-core`'s vLLM.
pub(crate) struct AisimEngine {
    rank: SchedulerRank,
    cost: StepCost,
    gauges: Gauges,
}

impl AisimEngine {
    pub(crate) fn new(setup: &EngineSetup) -> Result<Self> {
        let config = EngineConfig {
            num_gpu_blocks: setup.blocks as usize,
            block_size: setup.block_size as usize,
            max_model_len: Some(setup.max_model_len as usize),
            max_num_seqs: setup.max_num_seqs as usize,
            max_num_batched_tokens: setup.max_num_batched_tokens as usize,
            enable_prefix_caching: setup.prefix_caching,
            ..EngineConfig::for_backend(Backend::Vllm)
        };
        let factory = EngineFactory::with_timing_model(config, Arc::new(Timeless))?;
        let rank = factory.build_rank(EngineIdentity::new(0).rank(0, NonZeroU32::MIN))?;
        Ok(Self { rank, cost: setup.cost, gauges: Gauges::default() })
    }

    fn command(&mut self, command: Command) {
        // The harness submits between passes, as vLLM's core takes in requests between steps.
        let context = CommandContext { now_ms: 0.0, pass_in_flight: false };
        let effects = self.rank.apply_command_effects(command, context, None).expect("a valid command");
        self.gauges = gauges(&effects.metrics);
    }
}

impl EngineModel for AisimEngine {
    fn submit(&mut self, submission: Submission) {
        let (length, tokens) = match submission.output {
            Output::Length(length) => (length as usize, None),
            Output::Tokens(tokens) => (tokens.len(), Some(tokens)),
        };
        self.command(Command::Submit(Request {
            request_id: uuid(submission.id),
            tokens: submission.prompt,
            max_output_tokens: length,
            output_token_ids: tokens,
        }));
    }

    fn abort(&mut self, id: RequestId) {
        self.command(Command::CancelRequest { request_id: uuid(id), discard_pending_output: true });
    }

    fn step(&mut self, at: Nanos) -> Option<Step> {
        if !self.rank.is_ready() {
            return None;
        }
        let now_ms = at as f64 / MILLISECOND as f64;
        let pass = self.rank.execute_pass(now_ms).expect("a pass");
        let done = self.rank.complete_pass(pass.pending, pass.end_ms).expect("a completed pass");
        let start = pass.start_effects;
        let mut events = Vec::with_capacity(start.admissions.len() + done.outputs.len() + 4);
        events
            .extend(start.pressure_events.iter().map(|event| Event::Preempted { id: id(event.request_id) }));
        events.extend(start.admissions.iter().map(|admission| Event::Scheduled {
            id: id(admission.request_id),
            cached: admission.reused_input_tokens as u64,
        }));
        for output in &done.outputs {
            let id = id(output.request_id);
            if output.rejected {
                events.push(Event::Rejected { id });
                continue;
            }
            if output.token_id.is_some() {
                events.push(Event::Token { id });
            }
            if output.completed {
                events.push(Event::Finished { id });
            }
        }
        self.gauges = gauges(&done.metrics);
        let work = work(&done.forward_pass_metrics);
        Some(Step {
            duration: self.cost.duration(work),
            prompt_tokens: work.prompt_tokens,
            events,
            gauges: self.gauges,
        })
    }

    fn gauges(&self) -> Gauges {
        self.gauges
    }
}

fn work(metrics: &ForwardPassMetrics) -> Work {
    Work {
        decoding: u64::from(metrics.num_decode_requests),
        context: metrics.sum_decode_kv_tokens,
        prefilling: u64::from(metrics.num_prefill_requests),
        prompt_tokens: metrics.sum_prefill_tokens,
        prompt_context: metrics.sum_prefill_kv_tokens,
    }
}

fn gauges(metrics: &Metrics) -> Gauges {
    Gauges {
        used: metrics.active_blocks,
        running: metrics.running_requests,
        waiting: metrics.waiting_requests,
    }
}

fn uuid(id: RequestId) -> Uuid {
    Uuid::from_u128(u128::from(id))
}

fn id(uuid: Uuid) -> RequestId {
    uuid.as_u128() as RequestId
}

/// Passes take no time of their own.
struct Timeless;

impl TimingModel for Timeless {
    fn prefill_batch_validation_can_fail(&self) -> bool {
        false
    }

    fn prefill_prediction_can_fail(&self) -> bool {
        false
    }

    fn predict_prefill_ms(&self, _: usize, _: usize, _: usize) -> Result<f64> {
        Ok(0.0)
    }

    fn predict_decode_ms(&self, _: usize, _: usize, _: usize, _: usize) -> Result<f64> {
        Ok(0.0)
    }
}
