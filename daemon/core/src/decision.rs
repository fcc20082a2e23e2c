//! The order of a decision for one engine: static limits, its state, its KV cache, its devices.

use std::{cmp::Reverse, time::Duration};

use crate::{
    blame::prompts,
    book::{Book, ClassKey},
    cost::Work,
    engine::Engine,
    explain::{Peak, Terms},
    forecast::{Footprint, Outlook, sigmas},
    guard::{self, Guard, SizeClass},
    lengths::Survival,
    liveness::Gate,
    need::{Misfit, Need, longest_prompt},
    pool::{self, Held, Pool},
    prefill::within_a_day,
    prompts::Prompts,
    request::{Class, Headroom, PromptCount, Reason, Request},
    retry,
    settings::{Mode, Settings},
    tenants::{Account, Slot},
    units::{Blocks, Mono, Tokens, count_up, real},
};

/// How one engine answers a request.
#[derive(Clone, Debug)]
pub(crate) struct Weighed {
    /// `None`: admitted.
    pub(crate) denied: Option<Reason>,
    /// What enforce mode would have denied for.
    pub(crate) observed: Option<Reason>,
    /// Let through to find out whether a suspect engine lives.
    pub(crate) probe: bool,
    /// Let through to find out whether prompts of its size still kill the engine.
    pub(crate) guard_probe: bool,
    /// It would fit, but others wait for that room.
    pub(crate) held_back: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) need: Option<Need>,
    pub(crate) terms: Option<Terms>,
    /// Pool it would go to; `None`: the engine's own choice, so room was required on all.
    pub(crate) rank: Option<usize>,
    /// Blocks left after it.
    pub(crate) left: Blocks,
    /// Blocks that must be given back until it fits.
    pub(crate) excess: Blocks,
    /// What it adds to the forecast of its pool.
    pub(crate) footprint: Footprint,
    /// Prompt tokens that are to be computed.
    pub(crate) uncached: Tokens,
    /// When its first token is expected, from now; `None`: not known.
    pub(crate) ttft: Option<Duration>,
}

/// What a decision rests on beside the engine itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grounds<'a> {
    pub(crate) now: Mono,
    pub(crate) settings: &'a Settings,
    pub(crate) book: &'a Book,
    /// Class of the request.
    pub(crate) class: ClassKey,
    /// Prompt tokens of its session that the engine it was last sent to has computed before.
    pub(crate) cached: Option<Tokens>,
    /// What kept killing engines.
    pub(crate) guard: &'a Guard,
    /// Who pays for it.
    pub(crate) payer: Option<(Slot, &'a Account)>,
}

impl Weighed {
    fn deny(reason: Reason, retry_after: Option<Duration>) -> Self {
        Self {
            denied: Some(reason),
            observed: None,
            probe: false,
            guard_probe: false,
            held_back: false,
            retry_after,
            need: None,
            terms: None,
            rank: None,
            left: Blocks::ZERO,
            excess: Blocks::ZERO,
            footprint: Footprint::default(),
            uncached: Tokens::ZERO,
            ttft: None,
        }
    }

    /// How good an answer it is among several engines: admitted with most room left, then what frees up first, then
    /// what is broken, then what can never be.
    pub(crate) fn rating(&self) -> (bool, Blocks, Reverse<u16>, Reverse<Duration>) {
        let status = match self.denied.map(Reason::http_status) {
            None => 0,
            Some(429) => 1,
            Some(503) => 2,
            Some(_) => 3,
        };
        let wait = self.retry_after.unwrap_or(Duration::MAX);
        (self.denied.is_none(), self.left, Reverse(status), Reverse(wait))
    }

    /// Others wait for the room that it would take.
    pub(crate) fn leave_to_others(&mut self) {
        if self.denied.is_none() && self.observed.is_none() && !self.probe {
            (self.denied, self.held_back) = (Some(Reason::KvFull), true);
        }
    }

    /// Prompt tokens used and how they were found.
    pub(crate) fn prompt(&self) -> Option<(Tokens, PromptCount)> {
        self.need.map(|need| (need.prompts.total, need.shown))
    }
}

/// Weighs `request` against `engine`.
pub(crate) fn weigh(engine: &Engine, request: &Request<'_>, grounds: &Grounds<'_>) -> Weighed {
    let Grounds { now, settings, book, class, cached, guard, payer } = *grounds;
    if payer.is_some_and(|(_, account)| account.limits().blocked) {
        return Weighed::deny(Reason::TenantBlocked, None);
    }
    let survival = book.survival(&engine.model(), class);
    let unlimited = match settings.risk.of(request.class) {
        risk if risk > 0.0 => survival.exceeded_by(UNLIMITED_RISK),
        _ => settings.default_max_tokens,
    };
    let need = match Need::of(request, engine.window(request.model), unlimited, settings) {
        Ok(need) => need,
        Err(Misfit::Context { .. }) => return Weighed::deny(Reason::ContextTooLong, None),
        Err(Misfit::Limit { .. }) => return Weighed::deny(Reason::MaxTokensOverLimit, None),
    };
    let mut weighed = place(engine, &need, request, survival, grounds);
    if let Some(pool) = engine.pools.get(weighed.rank.unwrap_or(0)) {
        weighed.uncached = pool.uncached(need.prompts.total, cached);
    }
    match engine.live.gate(now) {
        Gate::Closed(reason, wait) => (weighed.denied, weighed.retry_after) = (Some(reason), wait),
        Gate::Probe => (weighed.denied, weighed.probe) = (None, true),
        Gate::Open if weighed.denied.is_none() && engine.squeezed(now, settings).is_some() => {
            weighed.denied = Some(Reason::DeviceMemory);
        }
        Gate::Open if weighed.denied.is_none() => in_time(engine, request, now, &mut weighed),
        Gate::Open => {}
    }
    if weighed.denied.is_none() {
        match guard.gate(now, &engine.facts.engine, need.prompts.longest) {
            guard::Gate::Open => {}
            guard::Gate::Probe => weighed.guard_probe = true,
            guard::Gate::Closed(wait) => {
                (weighed.denied, weighed.retry_after) = (Some(Reason::LearnedGuard), Some(wait));
            }
        }
    }
    if weighed.denied.is_none() && !weighed.probe {
        within_share(engine, grounds, &mut weighed);
    }
    let state_denied = weighed.denied.is_some_and(|reason| reason.http_status() == 503);
    if engine.mode(settings) == Mode::Observe && !state_denied {
        weighed.observed = weighed.denied.take();
    }
    weighed
}

/// Finds the pool for `need`, and whether it fits there.
fn place(
    engine: &Engine,
    need: &Need,
    request: &Request<'_>,
    survival: &Survival,
    grounds: &Grounds<'_>,
) -> Weighed {
    let mut weighed = Weighed { denied: None, need: Some(*need), ..Weighed::deny(Reason::KvFull, None) };
    let outlook = Outlook { prompts: need.prompts, generated: Tokens::ZERO, most: need.most, n: need.n };
    let block_size = engine.pools.first().map_or(1, |pool| pool.block_size);
    weighed.footprint = Footprint::of(&outlook, survival, block_size);
    let sigmas = sigmas(grounds.settings.risk.of(request.class));
    let fits = (0..engine.pools.len()).filter_map(|index| {
        Some((index, fit(engine, index, need, &weighed.footprint, (survival, sigmas), grounds)?))
    });
    // One rank, or a caller that tells the engine which: the best will do. Otherwise the worst must.
    let choose_best = request.forwards_rank || engine.pools.len() == 1;
    let by_room = |(_, fit): &(usize, Fit)| (Reverse(fit.excess), fit.left);
    let chosen = if choose_best { fits.max_by_key(by_room) } else { fits.min_by_key(by_room) };
    let Some((index, fit)) = chosen else { return weighed };
    weighed.rank = choose_best.then_some(index);
    weighed.terms = Some(fit.terms);
    let Some(pool) = engine.pools.get(index) else { return weighed };
    let empty = pool.idle(grounds.now) && fit.terms.reservations == 0;
    let kept = pool.kept_from(request.class, grounds.settings);
    weighed.left = fit.left.saturating_sub(kept);
    let short = if fit.excess > Blocks::ZERO { fit.excess } else { kept.saturating_sub(fit.left) };
    let certain = need.granted.is_some() && need.count != PromptCount::Bounded;
    if certain && pool.total.is_some_and(|total| fit.terms.need > total) {
        weighed.denied = Some(Reason::NeverFits);
    } else if short > Blocks::ZERO && !empty {
        weighed.excess = short;
        let full = fit.excess > Blocks::ZERO;
        weighed.denied = Some(if full { Reason::KvFull } else { Reason::ClassLimit });
        let now = grounds.now;
        let drain = if fit.terms.peak.is_some() { &pool.drain } else { &pool.promised_drain };
        let foreseen = drain.wait_for(now, short).or_else(|| first_end(engine, now));
        weighed.retry_after = foreseen.or_else(|| next_reading(pool, now));
    }
    weighed
}

/// How a request fits a pool.
struct Fit {
    terms: Terms,
    /// Blocks by which it does not fit.
    excess: Blocks,
    /// Blocks left after it.
    left: Blocks,
}

/// It fits when the pool holds it even if every live request grows to all it may, or when the forecast says that the
/// pool overflows with no more than the accepted probability.
fn fit(
    engine: &Engine,
    index: usize,
    need: &Need,
    footprint: &Footprint,
    (survival, sigmas): (&Survival, f64),
    grounds: &Grounds<'_>,
) -> Option<Fit> {
    let pool = engine.pools.get(index)?;
    let mut terms = pool.terms(grounds.now, engine.ledger.sums(index), Some(need), grounds.settings);
    let Some(limit) = terms.limit else {
        return Some(Fit { terms, excess: Blocks::ZERO, left: Blocks::ZERO });
    };
    let other = pool.other(grounds.now, || survival.mean_left(0.0, real(need.most.0)));
    // Bypass traffic that is below its mean will be back.
    let returning = Blocks(count_up(other.mean - other.now));
    let worst = Fit {
        terms,
        excess: (terms.committed() + returning).saturating_sub(limit),
        left: limit.saturating_sub(terms.committed() + returning),
    };
    if sigmas.is_infinite() {
        return Some(worst);
    }
    let tightest = engine.ledger.forecast(index).tightest(
        Some(footprint),
        pool.weight(),
        &other,
        pool.caution.of(sigmas),
    );
    let (mean, spread) = (Blocks(count_up(tightest.mean)), Blocks(count_up(tightest.spread)));
    terms.peak = Some(Peak { mean, spread, tokens: tightest.tokens() });
    let excess = worst.excess.min((mean + spread).saturating_sub(limit));
    let left = worst.left.max(limit.saturating_sub(mean + spread));
    Some(Fit { terms, excess, left })
}

/// Denies what cannot meet its caller's objectives.
fn in_time(engine: &Engine, request: &Request<'_>, now: Mono, weighed: &mut Weighed) {
    let Some(pool) = engine.pools.get(weighed.rank.unwrap_or(0)) else { return };
    let rate = pool.token_rate.get().filter(|rate| *rate > 0.0);
    let step = rate.map(|rate| within_a_day(1.0 / rate));
    let prompts = weighed.need.map_or_else(Prompts::default, |need| need.prompts);
    let work = Work::of_all(prompts, weighed.uncached);
    weighed.ttft = pool.prefill.time_for(now, work).map(|time| time + step.unwrap_or_default());
    let late = |ttft: Duration, objective: Duration| {
        // Those who come by other ways have no less right: where this one waits, the next of them waits longer.
        let next = if pool.prefill.empty(now) { Duration::ZERO } else { pool.prefill.stranger(ttft) };
        pool.prefill.margin.of(ttft + next) > objective
    };
    if let (Some(ttft), Some(objective)) = (weighed.ttft, request.ttft_objective)
        && late(ttft, objective)
    {
        weighed.denied = Some(Reason::Ttft);
        // Where it takes too long by itself, waiting does not help.
        let alone = pool.prefill.time(work).unwrap_or_default();
        let wait = pool.prefill.margin.of(ttft).saturating_sub(objective) + alone;
        weighed.retry_after =
            (pool.prefill.margin.of(alone) <= objective).then(|| wait.clamp(retry::SHORTEST, retry::LONGEST));
    } else if let (None, Some(objective), Some(_)) = (weighed.ttft, request.ttft_objective, weighed.rank)
        && pool.prefill.presumed(now) > objective
    {
        weighed.denied = Some(Reason::Ttft);
        let wait = pool.prefill.presumed(now).saturating_sub(objective);
        weighed.retry_after = Some(wait.clamp(retry::SHORTEST, retry::LONGEST));
    } else if let (Some(step), Some(objective)) = (step, request.pace_objective)
        && step > objective
        && !pool.idle(now)
    {
        weighed.denied = Some(Reason::Pace);
        weighed.retry_after = first_end(engine, now);
    }
}

/// Denies what its tenant has no share left for. A tenant's requests count with all that they may come to need.
fn within_share(engine: &Engine, grounds: &Grounds<'_>, weighed: &mut Weighed) {
    let (Some((slot, account)), Some(need)) = (grounds.payer, weighed.need) else { return };
    let now = grounds.now;
    let (held, _) = engine.ledger.of_tenant(slot);
    let total: Blocks = engine.pools.iter().filter_map(|pool| pool.total).sum();
    let share = Blocks(count_up(real(total.0) * account.limits().pool_share));
    let Some(pool) = engine.pools.get(weighed.rank.unwrap_or(0)) else { return };
    let over = (held + need.blocks(pool.block_size)).saturating_sub(share);
    let empty = pool.idle(now) && engine.ledger.live.is_empty();
    if account.limits().pool_share < 1.0 && over > Blocks::ZERO && !empty && total > Blocks::ZERO {
        weighed.denied = Some(Reason::TenantShare);
        // What alone exceeds the share will do so for ever.
        let ever = need.blocks(pool.block_size) <= share;
        weighed.retry_after = ever.then(|| pool.promised_drain.wait_for(now, over)).flatten();
    } else if let Some(wait) = account.short_of(now, need.tokens()) {
        (weighed.denied, weighed.retry_after) = (Some(Reason::TenantShare), Some(wait.max(retry::SHORTEST)));
    }
}

/// When the oldest reservation will have generated all it may, at the measured rate.
fn first_end(engine: &Engine, now: Mono) -> Option<Duration> {
    let oldest = engine.ledger.live.values().find(|reservation| reservation.seen_at.is_some())?;
    let rate = engine.pools.get(oldest.rank?)?.token_rate.get().filter(|rate| *rate > 0.0)?;
    let left = real(oldest.output.0) / rate - now.since(oldest.seen_at?).as_secs_f64();
    let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::ZERO);
    Some(left.clamp(retry::SHORTEST, retry::LONGEST))
}

/// When the engine is next read: until then nothing more is known of what it gives back.
fn next_reading(pool: &Pool, now: Mono) -> Option<Duration> {
    let figures = pool.figures.as_ref()?;
    let left = figures.interval.saturating_sub(now.since(figures.span.not_after));
    Some(left.clamp(UNFORESEEN, retry::LONGEST))
}

/// Shortest wait of those for whom no room is foreseen.
const UNFORESEEN: Duration = Duration::from_secs(1);

/// A request without max_tokens is longer than what room is kept for in the worst case with this probability.
const UNLIMITED_RISK: f64 = 0.01;

/// Headroom that is left for more requests like the one weighed.
pub(crate) fn headroom_after(engine: &Engine, now: Mono, weighed: &Weighed) -> Option<Headroom> {
    weighed.terms?.reported?;
    let pool = engine.pools.get(weighed.rank.unwrap_or(0))?;
    Some(headroom_of(pool, weighed.left, pool.age(now)?, now))
}

fn headroom_of(pool: &Pool, blocks: Blocks, age: Duration, now: Mono) -> Headroom {
    let (_, above) = pool.width(now, &Held::default());
    let blocks_lower = blocks.saturating_sub(above);
    let (tokens, tokens_lower) = (blocks.to_tokens(pool.block_size), blocks_lower.to_tokens(pool.block_size));
    Headroom { blocks, blocks_lower, tokens, tokens_lower, age }
}

/// Headroom of an engine for requests of `class`.
pub(crate) fn headroom(engine: &Engine, now: Mono, settings: &Settings, class: Class) -> Option<Headroom> {
    let [headroom] = headrooms(engine, now, settings, [class]);
    headroom
}

/// Headroom of an engine for requests of each class; at its best rank. `None`: the pool or its use is unknown. A closed
/// engine has none.
pub(crate) fn headrooms<const N: usize>(
    engine: &Engine,
    now: Mono,
    settings: &Settings,
    classes: [Class; N],
) -> [Option<Headroom>; N] {
    let open = matches!(engine.live.gate(now), Gate::Open);
    let mut best: [Option<(Blocks, &Pool, Duration)>; N] = [None; N];
    for (index, pool) in engine.pools.iter().enumerate() {
        let terms = pool.terms(now, engine.ledger.sums(index), None, settings);
        let (Some(_), Some(limit), Some(age)) = (terms.reported, terms.limit, terms.age) else { continue };
        let worst = limit.saturating_sub(terms.committed());
        // Where no risk is accepted these are infinite, and the worst case alone is left.
        let sigmas = classes.map(|class| pool.caution.of(sigmas(settings.risk.of(class))));
        let other = pool.other(now, || pool::BYPASS_LIFE);
        let tightest = engine.ledger.forecast(index).tightest_each(None, pool.weight(), &other, sigmas);
        for ((best, tightest), class) in best.iter_mut().zip(tightest).zip(classes) {
            let forecast = limit.saturating_sub(Blocks(count_up(tightest.mean + tightest.spread)));
            let forecast = if tightest.spread.is_finite() { forecast } else { Blocks::ZERO };
            let room = worst.max(forecast).saturating_sub(pool.kept_from(class, settings));
            if best.is_none_or(|(most, ..)| room >= most) {
                *best = Some((room, pool, age));
            }
        }
    }
    best.map(|best| {
        let (blocks, pool, age) = best?;
        Some(headroom_of(pool, if open { blocks } else { Blocks::ZERO }, age, now))
    })
}

/// Says that `request` does not fit `window`, in words by which clients know it: `openai` goes by the status 400, `LiteLLM` by
/// "this model's maximum context length is" (`exception_mapping_utils.py`); vLLM 0.32 answers with both
/// (`renderers/params.py`).
fn too_long(request: &Request<'_>, window: Tokens) -> String {
    let (prompt, count) = longest_prompt(request.prompt);
    let about = match count {
        PromptCount::Exact => "",
        PromptCount::Estimated => "about ",
        PromptCount::Bounded => "at least ",
    };
    let output = match request.max_tokens {
        Some(asked) if prompt < window => format!("and max_tokens is {}", asked.0),
        _ => "which leaves no room for output".to_owned(),
    };
    format!(
        "This model's maximum context length is {} tokens; the prompt has {about}{} tokens, {output}",
        window.0, prompt.0
    )
}

/// One sentence for a denial. Never contains prompt text.
pub(crate) fn sentence(
    reason: Reason,
    request: &Request<'_>,
    engine: Option<&Engine>,
    weighed: Option<&Weighed>,
) -> String {
    let name = engine.map_or("", |engine| &*engine.facts.engine);
    let terms = weighed.and_then(|weighed| weighed.terms).unwrap_or_default();
    match reason {
        Reason::UnknownModel => format!("no engine here serves model {:?}", request.model),
        Reason::UnknownEngine => format!("no engine here has the id {:?}", request.engine.unwrap_or("")),
        Reason::ContextTooLong => {
            let window = engine.and_then(|engine| engine.window(request.model)).unwrap_or_default();
            format!("{} (engine {name})", too_long(request, window))
        }
        Reason::NeverFits => {
            let total = engine.and_then(|engine| engine.pools.first()?.total).unwrap_or_default();
            format!("needs {}, and the whole KV cache of engine {name} has {}", terms.need, total.0)
        }
        Reason::MaxTokensOverLimit => {
            let asked = request.max_tokens.unwrap_or_default();
            format!("max_tokens {} is above the operator's limit (max_tokens_limit)", asked.0)
        }
        Reason::KvFull if weighed.is_some_and(|weighed| weighed.held_back) => {
            format!(
                "what is left of the KV cache of engine {name} is for requests that wait or come back for it"
            )
        }
        Reason::KvFull => {
            let over = terms.peak.map_or(terms.excess(), |peak| {
                (peak.mean + peak.spread).saturating_sub(terms.limit.unwrap_or_default())
            });
            format!("the KV cache of engine {name} would exceed its limit by {over}")
        }
        Reason::Ttft if weighed.is_some_and(|weighed| weighed.held_back) => {
            format!(
                "the next first tokens of engine {name} are for requests that were told to come back for them"
            )
        }
        Reason::Ttft if weighed.is_some_and(|weighed| weighed.ttft.is_none()) => {
            format!("engine {name} has too many prompt tokens to compute before it is known how fast it is")
        }
        Reason::Ttft => {
            let expected = weighed.and_then(|weighed| weighed.ttft).unwrap_or_default();
            format!("the first token of engine {name} is expected only after {:.1} s", expected.as_secs_f64())
        }
        // Where its own share was not what it lacks.
        Reason::ClassLimit if weighed.is_none_or(|weighed| weighed.excess == Blocks::ZERO) => {
            format!("batch is held back while more is asked of engine {name} than it can do")
        }
        Reason::Pace => format!("tokens of engine {name} come more slowly than the objective"),
        Reason::DeviceMemory => format!("other processes took device memory that engine {name} needs"),
        Reason::LearnedGuard => {
            let longest =
                weighed.and_then(|weighed| weighed.need).map_or(Tokens::ZERO, |need| need.prompts.longest);
            let prompts = prompts(SizeClass::of(longest));
            format!("{prompts} have ended engine {name} before (gpuadmit guard list)")
        }
        Reason::TenantBlocked => format!("tenant {:?} is blocked by the operator", request.tenant),
        Reason::ClassLimit => {
            format!(
                "what is left of the KV cache of engine {name} is held back for other classes (pool_share)"
            )
        }
        Reason::TenantShare => format!("tenant {:?} has its share of engine {name}", request.tenant),
        Reason::QueueFull => format!("too many requests wait for room in engine {name} (queue.depth)"),
        Reason::WaitExpired => format!("no room appeared in engine {name} in the time to wait"),
        Reason::LedgerFull => "the ledger is full (limits.reservations)".into(),
        _ => {
            let why = engine.map_or("", |engine| engine.live.why.as_str());
            format!("engine {name} cannot take requests: {why}")
        }
    }
}
