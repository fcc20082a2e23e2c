//! How much is asked of one engine against what it can do, by Little's law: what is there on the average is what arrives
//! in a second times how long it stays.
//!
//! Every ask counts, admitted or denied: each wants its expected blocks for its expected life, and its prompt computed.
//! Both sums are set against what the engine has, the blocks of its pools and the rate of its prefill; the larger ratio
//! is the demand. Above 1 a queue grows wherever it is kept, and another engine is what helps.

use std::time::Duration;

use libm::exp;

use crate::{
    decision::Weighed,
    engine::Engine,
    forecast::{Footprint, MOMENTS},
    observation::SumCount,
    request::{Class, Reason, Request},
    settings::{Mode, Settings},
    snapshot::{Demand, Rejections, RejectionsReading},
    units::{Blocks, Mono, Tokens, count_up, real},
};

/// Time over which asks are averaged.
const MEMORY: Duration = Duration::from_secs(30);
/// Demand above it for [`SUSTAINED`] asks for another engine.
const HIGH: f64 = 1.0;
/// Demand below it for [`SUSTAINED`] ends that.
const LOW: f64 = 0.8;
/// How long demand must stay on one side to be told.
const SUSTAINED: Duration = Duration::from_secs(30);
/// When held back batch may ask again: not before demand can have been found to be low.
const HELD_BACK_RETRY: Duration = Duration::from_secs(30);

/// Slots of the window over which rejections are counted, and the time that each covers: five minutes in all.
const SLOTS: usize = 30;
const SLOT: Duration = Duration::from_secs(10);
/// Shares of denied requests between which the gate is at its edge, and above which users are lost.
const EDGE: f64 = 0.02;
const STRAINED: f64 = 0.05;
const LOSING: f64 = 0.1;

/// Request ids remembered, so that a retry is not counted as another ask. A newer one may displace an older one.
const ASKS_KEPT: u64 = 1024;

/// What is asked of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    flow: Flow,
    window: Window,
    /// Fingerprints of request ids already counted.
    ids: Vec<u64>,
    /// Since when demand is on the other side than what was told.
    crossed: Option<Mono>,
    /// Whether demand has been told to be too high.
    pub(crate) scale_up: bool,
    /// Decisions since the engine was found.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Times to the first token, predicted for those admitted.
    pub(crate) ttft: SumCount,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            flow: Flow::default(),
            window: Window::default(),
            ids: vec![0; usize::try_from(ASKS_KEPT).unwrap_or_default()],
            crossed: None,
            scale_up: false,
            admitted: 0,
            denied: 0,
            ttft: SumCount::default(),
        }
    }
}

impl Asked {
    /// A request was weighed and answered. Those that no engine could ever serve are the caller's mistakes, and no
    /// demand. `fingerprint`: of its request id, where it has one.
    pub(crate) fn take(
        &mut self,
        now: Mono,
        weighed: &Weighed,
        denied: Option<Reason>,
        fingerprint: Option<u64>,
    ) {
        let ours = denied.is_none_or(|reason| matches!(reason.http_status(), 429 | 503));
        let Some(need) = weighed.need.filter(|_| ours) else { return };
        let count = if denied.is_some() { &mut self.denied } else { &mut self.admitted };
        *count = count.saturating_add(1);
        self.window.take(now, denied.is_some());
        if let (Some(ttft), None) = (weighed.ttft, denied) {
            self.ttft.add(ttft.as_secs_f64());
        }
        if fingerprint.is_some_and(|fingerprint| self.known(fingerprint)) {
            return;
        }
        let prompt = real(need.prompts.total.0);
        self.flow.add(now, Asks { block_tokens: block_tokens(&weighed.footprint, need.most), prompt });
    }

    /// Whether an ask with this fingerprint was counted; it is from now on.
    fn known(&mut self, fingerprint: u64) -> bool {
        let slot = usize::try_from(fingerprint % ASKS_KEPT).unwrap_or_default();
        let Some(slot) = self.ids.get_mut(slot) else { return false };
        std::mem::replace(slot, fingerprint) == fingerprint
    }

    /// Takes in the ratio at `now`; returns whether it is too high, when that has changed.
    fn judge(&mut self, now: Mono, ratio: Option<f64>) -> Option<bool> {
        // A ratio that is unknown for long holds nobody back.
        let crossed = match ratio {
            Some(ratio) if self.scale_up => ratio < LOW,
            None => self.scale_up,
            Some(ratio) => ratio > HIGH,
        };
        if !crossed {
            self.crossed = None;
            return None;
        }
        let since = *self.crossed.get_or_insert(now);
        if now.since(since) < SUSTAINED {
            return None;
        }
        self.crossed = None;
        self.scale_up = !self.scale_up;
        Some(self.scale_up)
    }

    /// Rejections of the last five minutes.
    pub(crate) fn rejections(&self, now: Mono) -> Rejections {
        self.window.sum(now)
    }
}

/// What a request that ends after `most` tokens at the latest holds over its expected life: blocks times tokens.
fn block_tokens(footprint: &Footprint, most: Tokens) -> f64 {
    let moments = MOMENTS.iter().zip(&footprint.mean);
    let pairs = moments.clone().zip(moments.skip(1));
    pairs
        .map(|((from, held), (to, still_held))| match (f64::from(*held), f64::from(*still_held)) {
            // A footprint is left out from its end on: until then it is held.
            (held, 0.0) => held * (real(most.0).min(f64::from(*to)) - f64::from(*from)).max(0.0),
            (held, still_held) => f64::from(to - from) * f64::midpoint(held, still_held),
        })
        .sum()
}

impl Engine {
    /// Demand at `now`.
    pub(crate) fn demand(&self, now: Mono, settings: &Settings) -> Demand {
        let occupancy = self.occupancy(now, settings);
        let prefill = self.prefill_demand(now);
        let ratio = match (occupancy, prefill) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        let age = self.pools.first().and_then(|pool| pool.age(now)).filter(|_| ratio.is_some());
        Demand { ratio, occupancy, prefill, age, scale_up: self.asked.scale_up }
    }

    /// Blocks that all asks together would hold on the average, against those that they may hold; traffic that bypasses
    /// admission is among them.
    fn occupancy(&self, now: Mono, settings: &Settings) -> Option<f64> {
        let rate = mean(self.pools.iter().filter_map(|pool| pool.token_rate.get()))?;
        let limits = self.pools.iter().map(|pool| pool.limit(settings));
        let limit = limits.sum::<Option<Blocks>>().filter(|limit| *limit > Blocks::ZERO)?;
        let weight = mean(self.pools.iter().map(crate::pool::Pool::weight))?;
        let bypass: f64 = self.pools.iter().map(|pool| pool.other(now, || 1.0).mean).sum();
        let asked = weight * self.asked.flow.get(now).block_tokens / rate.max(f64::MIN_POSITIVE);
        Some((asked + bypass) / real(limit.0)).filter(|ratio| ratio.is_finite())
    }

    /// Seconds of prefill asked for in a second, over all ranks.
    fn prefill_demand(&self, now: Mono) -> Option<f64> {
        let rates: f64 = self.pools.iter().filter_map(|pool| pool.prefill.rate()).sum();
        Some(self.asked.flow.get(now).prompt / rates).filter(|ratio| ratio.is_finite())
    }

    /// Time passes: whether demand is too high, when that has changed, and one sentence.
    pub(crate) fn judge_demand(&mut self, now: Mono, settings: &Settings) -> Option<(bool, String)> {
        let demand = self.demand(now, settings);
        let high = self.asked.judge(now, demand.ratio)?;
        let percent = |ratio: Option<f64>| match ratio {
            Some(ratio) => format!("{} %", count_up(ratio * 100.0 - 0.5)),
            None => "an unknown share".into(),
        };
        let (occupancy, prefill) = (percent(demand.occupancy), percent(demand.prefill));
        let sides = format!("{occupancy} of its KV cache and {prefill} of its prefill");
        let name = &self.facts.engine;
        let what = if high { "for more than it can do" } else { "again for what it can do" };
        Some((high, format!("engine {name} is asked {what}: {sides}")))
    }

    /// Holds batch back while demand is too high, where the operator wants that.
    pub(crate) fn hold_back(&self, request: &Request<'_>, settings: &Settings, weighed: &mut Weighed) {
        let wanted = settings.tighten_batch && self.asked.scale_up && request.class == Class::Batch;
        if !wanted || weighed.probe || weighed.denied.is_some() {
            return;
        }
        if self.mode(settings) == Mode::Observe {
            weighed.observed = weighed.observed.or(Some(Reason::ClassLimit));
        } else {
            weighed.denied = Some(Reason::ClassLimit);
            weighed.retry_after = Some(HELD_BACK_RETRY);
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// What is asked for, or that per second.
#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    /// Blocks times the tokens during which they are held. At the measured token rate they become block-seconds; that
    /// rate may be known only later.
    block_tokens: f64,
    /// Prompt tokens.
    prompt: f64,
}

/// What is asked for per second; it forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// At `last`.
    rate: Asks,
    last: Mono,
}

impl Flow {
    fn get(&self, now: Mono) -> Asks {
        let kept = exp(-now.since(self.last).as_secs_f64() / MEMORY.as_secs_f64());
        Asks { block_tokens: self.rate.block_tokens * kept, prompt: self.rate.prompt * kept }
    }

    fn add(&mut self, now: Mono, asks: Asks) {
        let Asks { block_tokens, prompt } = self.get(now);
        let seconds = MEMORY.as_secs_f64();
        self.rate = Asks {
            block_tokens: block_tokens + asks.block_tokens / seconds,
            prompt: prompt + asks.prompt / seconds,
        };
        self.last = now;
    }
}

/// Decisions of the last five minutes, by slots of ten seconds.
#[derive(Clone, Debug)]
struct Window {
    /// Decisions, and those of them that denied, of the slot with that number modulo [`SLOTS`].
    slots: [(u64, u64); SLOTS],
    /// Number of the newest slot, from the clock's origin.
    newest: u64,
    /// When the first decision was made.
    began: Option<Mono>,
}

impl Default for Window {
    fn default() -> Self {
        Self { slots: [(0, 0); SLOTS], newest: 0, began: None }
    }
}

impl Window {
    fn number(now: Mono) -> u64 {
        now.since(Mono(0)).as_secs() / SLOT.as_secs()
    }

    fn slot(&mut self, number: u64) -> Option<&mut (u64, u64)> {
        self.slots.get_mut(usize::try_from(number).unwrap_or_default() % SLOTS)
    }

    fn take(&mut self, now: Mono, denied: bool) {
        let number = Self::number(now);
        let stale = number.saturating_sub(self.newest).min(u64::try_from(SLOTS).unwrap_or_default());
        for old in 0..stale {
            if let Some(slot) = self.slot(number.saturating_sub(old)) {
                *slot = (0, 0);
            }
        }
        self.newest = self.newest.max(number);
        self.began.get_or_insert(now);
        if let Some((decided, denials)) = self.slot(number) {
            *decided = decided.saturating_add(1);
            *denials = denials.saturating_add(u64::from(denied));
        }
    }

    fn sum(&self, now: Mono) -> Rejections {
        let span = SLOT * u32::try_from(SLOTS).unwrap_or_default();
        let number = Self::number(now);
        let slots = u64::try_from(SLOTS).unwrap_or_default();
        let kept = (0..slots.saturating_sub(number.saturating_sub(self.newest)))
            .filter_map(|back| self.newest.checked_sub(back))
            .filter_map(|number| self.slots.get(usize::try_from(number).unwrap_or_default() % SLOTS));
        let (decided, denied) = kept.fold((0_u64, 0_u64), |(decided, denied), slot| {
            (decided.saturating_add(slot.0), denied.saturating_add(slot.1))
        });
        let long = self.began.is_some_and(|began| now.since(began) >= span);
        Rejections { window: span, decided, denied, reading: read(decided, denied, long) }
    }
}

/// What a share of rejections says. `long`: it was watched for a whole window.
fn read(decided: u64, denied: u64, long: bool) -> Option<RejectionsReading> {
    let share = real(denied) / real(decided);
    Some(match share {
        _ if decided == 0 => return None,
        _ if denied == 0 && long => RejectionsReading::Unused,
        share if share < EDGE => RejectionsReading::Fine,
        share if share <= STRAINED => RejectionsReading::Edge,
        share if share <= LOSING => RejectionsReading::Strained,
        _ => RejectionsReading::LosingUsers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_steady_flow_is_its_rate() {
        let mut flow = Flow::default();
        for tick in 0..3000_u32 {
            flow.add(at(f64::from(tick) * 0.1), Asks { block_tokens: 8.0, prompt: 4.0 });
        }
        let Asks { block_tokens, prompt } = flow.get(at(300.0));
        assert!((prompt - 40.0).abs() < 0.5 && (block_tokens - 80.0).abs() < 1.0, "{prompt} {block_tokens}");
        assert!(flow.get(at(600.0)).prompt < 0.01);
    }

    #[test]
    fn what_a_request_holds_is_the_area_under_its_footprint() {
        let mut footprint = Footprint::default();
        // 10 blocks up to token 16, and 20 at token 32, until it ends at token 40.
        (footprint.mean[0], footprint.mean[1], footprint.mean[2]) = (10.0, 10.0, 10.0);
        footprint.mean[3] = 20.0;
        // 16 × 10 + 16 × 15 + 8 × 20
        assert!((block_tokens(&footprint, Tokens(40)) - 560.0).abs() < 1e-9);
    }

    #[test]
    fn demand_is_told_after_half_a_minute_and_ends_likewise() {
        let mut asked = Asked::default();
        let mut told = Vec::new();
        // Above 1 from 10 s to 60 s but for a moment at 20 s; between the two thresholds to 100 s; then low.
        for second in 0..200 {
            let ratio = match second {
                20 | 60..100 => 0.9,
                10..60 => 1.2,
                _ => 0.5,
            };
            if let Some(high) = asked.judge(at(f64::from(second)), Some(ratio)) {
                told.push((second, high));
            }
        }
        assert_eq!(told, [(51, true), (130, false)]);
    }

    #[test]
    fn an_unknown_demand_ends_it_as_well() {
        let mut asked = Asked { scale_up: true, ..Asked::default() };
        assert_eq!(asked.judge(at(0.0), None), None);
        assert_eq!(asked.judge(at(30.0), None), Some(false));
        assert_eq!(asked.judge(at(90.0), None), None);
    }

    #[test]
    fn a_retry_is_no_other_ask() {
        let mut asked = Asked::default();
        assert!(!asked.known(12_345));
        assert!(asked.known(12_345));
        assert!(!asked.known(12_346));
    }

    #[test]
    fn rejections_are_those_of_five_minutes() {
        let mut window = Window::default();
        for second in 0..600 {
            window.take(at(f64::from(second)), second < 200 || second % 20 == 0);
        }
        let sum = window.sum(at(599.0));
        // The window's slots begin at 300 s: 300 decisions, every twentieth a denial.
        assert_eq!((sum.decided, sum.denied), (300, 15));
        assert_eq!(sum.reading, Some(RejectionsReading::Edge));
        // At 750 s they begin at 460 s.
        assert_eq!(window.sum(at(750.0)).decided, 140);
        assert_eq!(window.sum(at(2000.0)).decided, 0);
        assert_eq!(window.sum(at(2000.0)).reading, None);
    }

    #[test]
    fn a_share_of_rejections_has_a_reading() {
        use RejectionsReading::{Edge, Fine, LosingUsers, Strained, Unused};
        let read_of = |denied| read(1000, denied, true);
        let expected = [(0, Unused), (1, Fine), (30, Edge), (70, Strained), (101, LosingUsers)];
        for (denied, reading) in expected {
            assert_eq!(read_of(denied), Some(reading), "{denied}");
        }
        assert_eq!(read(1000, 0, false), Some(Fine));
        assert_eq!(read(0, 0, true), None);
    }
}
