//! The order of a decision for one engine: static limits, its state, its KV cache, its devices.

use std::{cmp::Reverse, time::Duration};

use crate::{
    engine::Engine,
    explain::Terms,
    liveness::Gate,
    need::{Misfit, Need},
    request::{Headroom, PromptCount, Reason, Request},
    settings::{Mode, Settings},
    units::{Blocks, Bytes, Mono, Tokens, real},
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
    pub(crate) retry_after: Option<Duration>,
    pub(crate) need: Option<Need>,
    pub(crate) terms: Option<Terms>,
    /// Pool it would go to; `None`: the engine's own choice, so room was required on all.
    pub(crate) rank: Option<usize>,
    /// Blocks left after it.
    pub(crate) left: Blocks,
}

impl Weighed {
    fn deny(reason: Reason, retry_after: Option<Duration>) -> Self {
        Self {
            denied: Some(reason),
            observed: None,
            probe: false,
            retry_after,
            need: None,
            terms: None,
            rank: None,
            left: Blocks::ZERO,
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

    /// Prompt tokens used and how they were found.
    pub(crate) fn prompt(&self) -> Option<(Tokens, PromptCount)> {
        self.need.map(|need| (need.prompt, need.count))
    }
}

/// Weighs `request` against `engine`. `squeezed` tells by how much co-tenants of its devices have grown while little is
/// free; `None` where they have not.
pub(crate) fn weigh(
    engine: &Engine,
    now: Mono,
    request: &Request<'_>,
    settings: &Settings,
    squeezed: Option<Bytes>,
) -> Weighed {
    let need = match Need::of(request, engine.window(request.model), settings) {
        Ok(need) => need,
        Err(Misfit::Context { .. }) => return Weighed::deny(Reason::ContextTooLong, None),
        Err(Misfit::Limit { .. }) => return Weighed::deny(Reason::MaxTokensOverLimit, None),
    };
    let mut weighed = place(engine, now, &need, request.forwards_rank, settings);
    weighed.need = Some(need);
    match engine.live.gate(now) {
        Gate::Closed(reason, wait) => {
            (weighed.denied, weighed.observed, weighed.retry_after) = (Some(reason), None, wait);
        }
        Gate::Probe => (weighed.denied, weighed.observed, weighed.probe) = (None, None, true),
        Gate::Open if weighed.denied.is_none() && squeezed.is_some() => {
            weighed.denied = Some(Reason::DeviceMemory);
        }
        Gate::Open => {}
    }
    let state_denied = weighed.denied.is_some_and(|reason| reason.http_status() == 503);
    if engine.mode(settings) == Mode::Observe && !state_denied {
        weighed.observed = weighed.denied.take();
    }
    weighed
}

/// Finds the pool for `need`, and whether it fits there.
fn place(engine: &Engine, now: Mono, need: &Need, forwards_rank: bool, settings: &Settings) -> Weighed {
    let mut weighed = Weighed { denied: None, need: Some(*need), ..Weighed::deny(Reason::KvFull, None) };
    let sums = (0..engine.pools.len()).map(|index| (index, engine.ledger.sums(index)));
    let sizes = sums
        .zip(&engine.pools)
        .map(|((index, sums), pool)| (index, pool.terms(now, sums, Some(need), settings)));
    // One rank, or a caller that tells the engine which: the best will do. Otherwise the worst must.
    let choose_best = forwards_rank || engine.pools.len() == 1;
    let by_room = |(_, terms): &(usize, Terms)| (Reverse(terms.excess()), room(terms));
    let chosen = if choose_best { sizes.max_by_key(by_room) } else { sizes.min_by_key(by_room) };
    let Some((index, terms)) = chosen else { return weighed };
    weighed.rank = choose_best.then_some(index);
    (weighed.terms, weighed.left) = (Some(terms), room(&terms));
    let Some(pool) = engine.pools.get(index) else { return weighed };
    if pool.total.is_some_and(|total| terms.need > total) {
        weighed.denied = Some(Reason::NeverFits);
    } else if terms.excess() > Blocks::ZERO && !(pool.idle(now) && terms.reservations == 0) {
        weighed.denied = Some(Reason::KvFull);
        weighed.retry_after = pool.drain.wait_for(now, terms.excess()).or_else(|| first_end(engine, now));
    }
    weighed
}

/// Blocks between what is committed and the limit.
fn room(terms: &Terms) -> Blocks {
    terms.limit.map_or(Blocks::ZERO, |limit| limit.saturating_sub(terms.committed()))
}

/// When the oldest reservation will have generated all it may, at the measured rate.
fn first_end(engine: &Engine, now: Mono) -> Option<Duration> {
    let oldest = engine.ledger.live.values().find(|reservation| reservation.seen_at.is_some())?;
    let rate = engine.pools.get(oldest.rank?)?.token_rate.get().filter(|rate| *rate > 0.0)?;
    let left = real(oldest.output.0) / rate - now.since(oldest.seen_at?).as_secs_f64();
    Some(Duration::try_from_secs_f64(left).unwrap_or(Duration::ZERO).max(SHORTEST_RETRY))
}

/// No caller is told to come back sooner: a completion takes at least a step.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);

/// Headroom of an engine for a standard request; at its best rank. `None`: the pool or its use is unknown. A closed
/// engine has none.
pub(crate) fn headroom(engine: &Engine, now: Mono, settings: &Settings) -> Option<Headroom> {
    let pools = engine.pools.iter().enumerate();
    let rooms = pools.filter_map(|(index, pool)| {
        let terms = pool.terms(now, engine.ledger.sums(index), None, settings);
        terms.reported?;
        Some((room(&terms), pool, terms.age?))
    });
    let (blocks, pool, age) = rooms.max_by_key(|(room, ..)| *room)?;
    let open = matches!(engine.live.gate(now), Gate::Open);
    let blocks = if open { blocks } else { Blocks::ZERO };
    let blocks_lower = blocks.saturating_sub(pool.uncertainty(now, 0));
    let (tokens, tokens_lower) = (blocks.to_tokens(pool.block_size), blocks_lower.to_tokens(pool.block_size));
    Some(Headroom { blocks, blocks_lower, tokens, tokens_lower, age })
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
            format!("prompt and output do not fit the context window of {window} of engine {name}")
        }
        Reason::NeverFits => {
            let total = engine.and_then(|engine| engine.pools.first()?.total).unwrap_or_default();
            format!("needs {}, and the whole KV cache of engine {name} has {}", terms.need, total.0)
        }
        Reason::MaxTokensOverLimit => {
            let asked = request.max_tokens.unwrap_or_default();
            format!("max_tokens {} is above the operator's limit (admission.max_tokens_limit)", asked.0)
        }
        Reason::KvFull => {
            let (need, over) = (terms.need, terms.excess());
            format!("needs {need}; the KV cache of engine {name} would exceed its limit by {}", over.0)
        }
        Reason::DeviceMemory => format!("other processes took device memory that engine {name} needs"),
        Reason::LedgerFull => "the ledger is full (limits.reservations)".into(),
        _ => {
            let why = engine.map_or("", |engine| engine.live.why.as_str());
            format!("engine {name} cannot take requests: {why}")
        }
    }
}
