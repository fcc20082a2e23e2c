//! The families of requests that situations are drawn from.

use super::ranges::{log_uniform, short};
use crate::{
    random::Random,
    trace::{Conversation, Family, Lengths},
};

/// The longest prompt.
pub(super) const LONGEST_PROMPT: f64 = 120_000.0;
/// Medians of prompts and outputs are the family's times this.
const SCALE: (f64, f64) = (0.5, 2.0);

/// A family, with medians of its own. `step_s`: how long a step of the engine takes at least.
pub(super) fn draw(random: &mut Random, step_s: f64) -> Family {
    let families = [chat, code, agents, documents, bimodal, running_to_the_limit, far_below_the_limit];
    let family = random.pick(&families);
    let scales = [log_uniform(random, SCALE), log_uniform(random, SCALE)];
    let mut family = family(random, step_s);
    family.prompt.median = short(family.prompt.median * scales[0]);
    if let Some(output) = &mut family.output {
        output.median = short(output.median * scales[1]);
    }
    family
}

const fn lengths(median: f64, sigma: f64, least: f64, most: f64) -> Lengths {
    Lengths { median, sigma, least, most }
}

fn family(name: &str, prompt: Lengths, output: Option<Lengths>, max_tokens: &[u64]) -> Family {
    Family {
        name: name.into(),
        prompt,
        long: None,
        output,
        max_tokens: max_tokens.into(),
        conversation: None,
    }
}

/// Questions and answers with heavy tails.
fn chat(_: &mut Random, _: f64) -> Family {
    let output = lengths(150.0, 0.9, 1.0, 4000.0);
    family("chat", lengths(600.0, 1.1, 8.0, 8000.0), Some(output), &[256, 512, 1024, 2048])
}

/// Code completion: prompts of thousands of tokens, answers of tens.
fn code(_: &mut Random, _: f64) -> Family {
    let output = lengths(18.0, 0.9, 1.0, 500.0);
    family("code", lengths(1800.0, 0.9, 50.0, 7500.0), Some(output), &[64, 128, 256, 512])
}

/// Agents: a long system prompt that many share, then many short turns.
fn agents(random: &mut Random, step_s: f64) -> Family {
    let output = lengths(120.0, 0.9, 5.0, 4000.0);
    let conversation = Conversation {
        turns: short(log_uniform(random, (4.0, 30.0))),
        systems: 1 + random.bits() % 4,
        system_tokens: short(log_uniform(random, (1000.0, 20_000.0))) as u64,
        pause_s: short(log_uniform(random, (0.5, 8.0))),
        token_s: short(1.5 * step_s),
        most: LONGEST_PROMPT as u64,
    };
    Family {
        conversation: Some(conversation),
        ..family("agents", lengths(400.0, 1.2, 10.0, 20_000.0), Some(output), &[1024, 2048, 4096])
    }
}

/// Long prompts, short answers.
fn documents(_: &mut Random, _: f64) -> Family {
    let output = lengths(180.0, 0.8, 5.0, 2000.0);
    family("documents", lengths(14_000.0, 0.7, 500.0, 60_000.0), Some(output), &[256, 512, 1024, 2048])
}

/// Short questions, and some prompts of up to 120,000 tokens.
fn bimodal(random: &mut Random, _: f64) -> Family {
    let long = lengths(short(log_uniform(random, (20_000.0, 90_000.0))), 0.4, 10_000.0, LONGEST_PROMPT);
    let share = short(random.between(0.02, 0.25));
    let output = lengths(150.0, 0.9, 1.0, 4000.0);
    Family {
        long: Some((share, long)),
        ..family("bimodal", lengths(100.0, 0.7, 30.0, 1000.0), Some(output), &[256, 512, 1024, 2048])
    }
}

/// Outputs that run to max_tokens.
fn running_to_the_limit(_: &mut Random, _: f64) -> Family {
    family("to-the-limit", lengths(500.0, 1.0, 8.0, 8000.0), None, &[64, 128, 256, 512, 1024])
}

/// Outputs far below max_tokens.
fn far_below_the_limit(_: &mut Random, _: f64) -> Family {
    let output = lengths(50.0, 0.8, 1.0, 1000.0);
    family("far-below-the-limit", lengths(500.0, 1.0, 8.0, 8000.0), Some(output), &[4096, 8192, 16_384])
}
