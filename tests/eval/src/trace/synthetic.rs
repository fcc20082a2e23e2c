//! The default traces: made up, but with what hurts in real ones.

use serde::{Deserialize, Serialize};

use super::{Arrival, Content, asked};
use crate::{
    random::Random,
    time::{Nanos, SECOND, nanos, seconds},
};

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Conversations in bursts, with heavy tails in prompt and answer.
    Chat,
    /// Long prompts, short answers, few at a time.
    Documents,
    /// Code completion: prompts of thousands of tokens, answers of tens; prefill is the limit.
    Code,
    /// Conversations of several turns, each of which begins with all that was said before.
    Turns,
    /// Chat, and one tenant that sends 100 requests with max_tokens 65,536 within one second, every two minutes.
    Hostile,
}

/// Tenant of the hostile requests.
pub(crate) const HOSTILE: u32 = 666;

/// Ordinary tenants beside it.
const ORDINARY: u32 = 20;

/// How often the hostile tenant strikes, and first when.
const STRIKE_EVERY: Nanos = 120 * SECOND;
const FIRST_STRIKE: Nanos = 40 * SECOND;
const STRIKE: u32 = 100;
const STRIKE_MAX_TOKENS: u64 = 65_536;

/// Calm and burst alternate; both are exponentially distributed in length.
const CALM_MEAN_S: f64 = 40.0;
const BURST_MEAN_S: f64 = 12.0;
/// Rate relative to the mean in each.
const CALM: f64 = 0.7;
const BURST: f64 = 2.0;

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Documents => "documents",
            Self::Code => "code",
            Self::Turns => "turns",
            Self::Hostile => "hostile",
        }
    }

    /// Requests that arrive within `span`.
    pub(crate) fn generate(self, span: Nanos, seed: u64) -> Vec<Arrival> {
        let mut random = Random::new(seed, 100 + self as u64);
        let mut arrivals = match self {
            Self::Chat => stream(span, 5.4, &mut random, chat),
            Self::Documents => stream(span, 0.5, &mut random, document),
            Self::Code => stream(span, 2.5, &mut random, code),
            Self::Turns => turns(span, &mut random),
            Self::Hostile => {
                let mut arrivals = stream(span, 4.0, &mut random, chat);
                for (arrival, number) in arrivals.iter_mut().zip(0..) {
                    arrival.tenant = number % ORDINARY;
                }
                strikes(span, &mut random, &mut arrivals);
                arrivals
            }
        };
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

/// Arrival times with bursts, `rate` a second on average.
fn times(span: Nanos, rate: f64, random: &mut Random) -> Vec<Nanos> {
    let (mut times, mut at, mut burst) = (Vec::new(), 0.0, false);
    let mut turn = random.exponential(CALM_MEAN_S);
    while at < seconds(span) {
        at += random.exponential(1.0 / (rate * if burst { BURST } else { CALM }));
        if at >= turn {
            // Without memory: the wait begins anew at the turn, at the new rate.
            at = turn;
            burst = !burst;
            turn += random.exponential(if burst { BURST_MEAN_S } else { CALM_MEAN_S });
            continue;
        }
        times.push(nanos(at));
    }
    times.retain(|at| *at < span);
    times
}

fn stream(span: Nanos, rate: f64, random: &mut Random, make: fn(&mut Random) -> Arrival) -> Vec<Arrival> {
    let times = times(span, rate, random);
    times.into_iter().map(|at| Arrival { at, ..make(random) }).collect()
}

fn tokens(random: &mut Random, median: f64, sigma: f64, least: f64, most: f64) -> u64 {
    random.log_normal(median, sigma).clamp(least, most) as u64
}

fn request(prompt: u64, output: u64, max_tokens: u64) -> Arrival {
    Arrival { at: 0, prompt, output, max_tokens: Some(max_tokens), tenant: 0, content: Content::Own }
}

fn chat(random: &mut Random) -> Arrival {
    let prompt = tokens(random, 600.0, 1.1, 8.0, 8000.0);
    let output = tokens(random, 150.0, 0.9, 1.0, 4000.0);
    request(prompt, output, asked(random))
}

fn document(random: &mut Random) -> Arrival {
    let prompt = tokens(random, 14_000.0, 0.7, 500.0, 60_000.0);
    let output = tokens(random, 180.0, 0.8, 5.0, 2000.0);
    request(prompt, output, asked(random))
}

fn code(random: &mut Random) -> Arrival {
    let prompt = tokens(random, 1800.0, 0.9, 50.0, 7500.0);
    let output = tokens(random, 18.0, 0.9, 1.0, 500.0);
    request(prompt, output, asked(random))
}

/// Conversations begin at a rate; each has some turns, with a pause to read and type between them.
fn turns(span: Nanos, random: &mut Random) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (number, start) in times(span, 1.3, random).into_iter().enumerate() {
        let session = number as u64 + 1;
        let (mut at, mut prompt) = (start, tokens(random, 700.0, 0.8, 50.0, 6000.0));
        while at < span {
            let max_tokens = asked(random);
            let output = tokens(random, 170.0, 0.8, 1.0, 3000.0).min(max_tokens);
            let content = Content::Session(session);
            arrivals.push(Arrival { at, content, ..request(prompt, output, max_tokens) });
            if random.chance(0.22) {
                break;
            }
            prompt += output + tokens(random, 60.0, 1.0, 3.0, 2000.0);
            at += nanos(output as f64 * 0.03 + random.log_normal(15.0, 0.7));
        }
    }
    arrivals
}

fn strikes(span: Nanos, random: &mut Random, arrivals: &mut Vec<Arrival>) {
    let mut at = FIRST_STRIKE;
    while at < span {
        for _ in 0..STRIKE {
            let prompt = tokens(random, 400.0, 0.8, 16.0, 4000.0);
            let output = tokens(random, 900.0, 1.0, 50.0, 12_000.0);
            arrivals.push(Arrival {
                at: at + nanos(random.unit()),
                tenant: HOSTILE,
                ..request(prompt, output, STRIKE_MAX_TOKENS)
            });
        }
        at += STRIKE_EVERY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_lengths_are_as_described() {
        let span = 3600 * SECOND;
        let chat = Kind::Chat.generate(span, 1);
        let rate = chat.len() as f64 / seconds(span);
        assert!((4.5..6.5).contains(&rate), "{rate}");
        let mean = chat.iter().map(|arrival| arrival.prompt).sum::<u64>() as f64 / chat.len() as f64;
        // The mean of a log-normal is median × exp(σ²/2) = 1,099; cutting its tail lowers it a little.
        assert!((900.0..1150.0).contains(&mean), "{mean}");
    }

    #[test]
    fn the_same_seed_gives_the_same_requests() {
        let of = |seed| Kind::Turns.generate(100 * SECOND, seed).iter().map(|one| one.at).collect::<Vec<_>>();
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }

    #[test]
    fn the_hostile_tenant_strikes_with_a_hundred_requests_in_a_second() {
        let all = Kind::Hostile.generate(60 * SECOND, 1);
        let strike: Vec<_> = all.iter().filter(|arrival| arrival.tenant == HOSTILE).collect();
        assert_eq!(strike.len(), 100);
        assert!(strike.iter().all(|arrival| arrival.max_tokens == Some(65_536)));
        assert!(strike.iter().all(|one| (FIRST_STRIKE..FIRST_STRIKE + SECOND).contains(&one.at)));
    }
}
