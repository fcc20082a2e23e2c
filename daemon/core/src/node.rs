//! The node: fed with facts, it answers questions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    affinity::Affinity,
    book::{Book, ClassKey, Learned},
    decision::{self, Grounds, Weighed},
    device::Device,
    engine::Engine,
    event::{EventKind, History},
    explain::{Record, Records},
    idempotency::{self, RequestIds},
    ledger::Reservation,
    observation::SourceReport,
    request::{
        Admit, Class, Completion, Decision, Deny, Outcome, Reason, Reference, Request, RequestError,
        ReservationId, SessionId, Verdict,
    },
    settings::Settings,
    snapshot::{DecisionCounts, EngineState},
    units::{Blocks, Mono, Tokens},
};

/// Time between two looks at leases, orphans and engines that say nothing.
const TICK: Duration = Duration::from_millis(250);
/// Reservations looked at in one tick.
const SWEPT_PER_TICK: usize = 512;
/// Reservations foreseen anew at once.
const FORESEEN_AT_ONCE: usize = 128;
/// Classes whose lengths are worked out anew in one tick.
const CLASSES_PER_TICK: usize = 8;
/// A dead engine is shown for so long.
const DOWN_SHOWN: Duration = Duration::from_hours(1);

/// What a completion met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The reservation was held until now.
    Held,
    /// It had ended before.
    Ended,
    /// This daemon never gave it out.
    NeverGiven,
}

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Held for its gateway.
    Live,
    /// Held until the engine shows that it ended; its gateway is gone or silent.
    Orphan,
    /// Not held any more.
    Ended,
}

/// The node as a state machine. Its methods come in four families:
///
/// - [`observe`](Self::observe) takes in a fact from a source.
/// - [`admit`](Self::admit), [`progress`](Self::progress), [`complete`](Self::complete),
///   [`session_broken`](Self::session_broken), [`adopt`](Self::adopt) serve gateways.
/// - [`handle_timeout`](Self::handle_timeout) does what is due, when [`poll_timeout`](Self::poll_timeout) says.
/// - [`snapshot`](Self::snapshot), [`history`](Self::history), [`records`](Self::records),
///   [`standing`](Self::standing) show it.
///
/// Time must not run backwards from call to call.
#[derive(Debug)]
pub struct Node {
    pub(crate) settings: Settings,
    pub(crate) epoch: u32,
    pub(crate) engines: Vec<Engine>,
    pub(crate) devices: BTreeMap<Arc<str>, Device>,
    /// Processes of all engines, to tell them from co-tenants.
    pub(crate) engine_pids: BTreeSet<u32>,
    pub(crate) sources: BTreeMap<Arc<str>, SourceReport>,
    pub(crate) history: History,
    pub(crate) records: Records,
    pub(crate) counts: DecisionCounts,
    pub(crate) generation: u64,
    request_ids: RequestIds,
    affinity: Affinity,
    /// Number of the next reservation.
    next: u64,
    next_tick: Option<Mono>,
    /// Where the sweep over reservations goes on: engine, and the last one looked at.
    sweep: (usize, Option<ReservationId>),
    /// Where foreseeing goes on, likewise.
    foreseen: (usize, Option<ReservationId>),
    pub(crate) book: Book,
    no_name: Arc<str>,
}

impl Node {
    /// An empty node whose reservation ids carry `epoch` (its lower 24 bits).
    #[must_use]
    pub fn new(settings: Settings, epoch: u32) -> Self {
        Self {
            settings,
            epoch: epoch & 0x00ff_ffff,
            engines: Vec::new(),
            devices: BTreeMap::new(),
            engine_pids: BTreeSet::new(),
            sources: BTreeMap::new(),
            history: History::default(),
            records: Records::default(),
            counts: DecisionCounts::default(),
            generation: 0,
            request_ids: RequestIds::default(),
            affinity: Affinity::default(),
            next: 1,
            next_tick: None,
            sweep: (0, None),
            foreseen: (0, None),
            book: Book::default(),
            no_name: "".into(),
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn admit(&mut self, now: Mono, request: &Request<'_>) -> Result<Decision, RequestError> {
        request.check()?;
        if let Some(decision) = self.remembered(now, request)? {
            return Ok(decision);
        }
        let chosen = self.choose(now, request);
        Ok(match chosen {
            Err(reason) => self.deny(now, request, reason, None),
            Ok((index, weighed)) => match weighed.denied {
                Some(reason) => self.deny(now, request, reason, Some((index, weighed))),
                None if self.reservations() >= self.settings.reservations => {
                    self.deny(now, request, Reason::LedgerFull, Some((index, weighed)))
                }
                None => self.grant(now, request, index, &weighed),
            },
        })
    }

    /// The answer already given to this request id, while its reservation is held.
    fn remembered(&mut self, now: Mono, request: &Request<'_>) -> Result<Option<Decision>, RequestError> {
        let Some(request_id) = request.request_id else { return Ok(None) };
        let Some(known) = self.request_ids.get(request.peer_uid, request.tenant, request_id) else {
            return Ok(None);
        };
        let Some(index) = self.holder(known.reservation) else { return Ok(None) };
        if known.content != idempotency::content(request) {
            return Err(RequestError::IdReused(request_id.into()));
        }
        self.renew(now, index, known.reservation, request.session);
        Ok(self.answer(now, index, known.reservation, None))
    }

    /// The engine for a request: the caller's choice, then the session's, then the one with most room.
    fn choose(&self, now: Mono, request: &Request<'_>) -> Result<(usize, Weighed), Reason> {
        let named = |engine: &Engine| request.engine.is_none_or(|name| &*engine.facts.engine == name);
        if request.engine.is_some() && !self.engines.iter().any(named) {
            return Err(Reason::UnknownEngine);
        }
        let certain =
            self.engines.iter().any(|engine| named(engine) && engine.serves(request.model) == Some(true));
        let serves = |engine: &Engine| match engine.serves(request.model) {
            Some(serves) => serves,
            None => !certain,
        };
        let home = request.session_key.and_then(|key| self.affinity.engine(key));
        let candidates =
            self.engines.iter().enumerate().filter(|(_, engine)| named(engine) && serves(engine));
        let class = ClassKey::of(request);
        let grounds = Grounds { now, settings: &self.settings, book: &self.book, class };
        let weighed = candidates.map(|(index, engine)| (index, decision::weigh(engine, request, &grounds)));
        weighed
            .max_by_key(|(index, weighed)| {
                let (admitted, left, status, wait) = weighed.rating();
                (admitted, admitted && home == Some(*index), left, status, wait)
            })
            .ok_or(Reason::UnknownModel)
    }

    fn grant(&mut self, now: Mono, request: &Request<'_>, index: usize, weighed: &Weighed) -> Decision {
        let id = ReservationId::new(self.epoch, self.next);
        let lease_until = now + self.settings.lease;
        let (Some(need), Some(engine)) = (weighed.need, self.engines.get_mut(index)) else {
            return self.deny(now, request, Reason::UnknownEngine, None);
        };
        self.next = self.next.saturating_add(1);
        let block_size = engine.pools.get(weighed.rank.unwrap_or(0)).map_or(1, |pool| pool.block_size);
        let total = if engine.pools.is_empty() { Blocks::ZERO } else { need.blocks(block_size) };
        let reservation = Reservation {
            admitted_at: now,
            rank: weighed.rank,
            prompt: need.prompt,
            count: need.count,
            output: need.output,
            granted: need.granted,
            n: need.n,
            most: need.most,
            class: ClassKey::of(request),
            footprint: weighed.footprint.clone(),
            prefill: engine.begin_prefill(weighed.rank, now, need.prompt),
            generated: Tokens::ZERO,
            generated_at: now,
            seen_at: None,
            shown: Blocks::ZERO,
            sure: Blocks::ZERO,
            total,
            lease_until,
            session: request.session,
            orphan_since: None,
        };
        engine.ledger.insert(id, reservation);
        if weighed.probe {
            engine.live.probing(now, id);
        }
        if let Some(key) = request.session_key {
            self.affinity.note(key, index);
        }
        if let Some(request_id) = request.request_id {
            self.request_ids.note(request, request_id, id);
        }
        self.counts.admitted = self.counts.admitted.saturating_add(1);
        if let Some(reason) = weighed.observed {
            self.counts.would_have_denied = self.counts.would_have_denied.saturating_add(1);
            self.count_reason(reason);
        }
        self.record(now, request, Some(index), Some(weighed), Some(id), None);
        match self.answer(now, index, id, weighed.observed) {
            Some(decision) => decision,
            None => self.deny(now, request, Reason::UnknownEngine, None),
        }
    }

    /// The answer for a reservation that is held.
    fn answer(
        &self,
        now: Mono,
        index: usize,
        id: ReservationId,
        observed: Option<Reason>,
    ) -> Option<Decision> {
        let engine = self.engines.get(index)?;
        let reservation = engine.ledger.live.get(&id)?;
        let several = engine.pools.len() > 1;
        let rank = reservation.rank.and_then(|rank| engine.pools.get(rank)).map(|pool| pool.rank);
        let admit = Admit {
            reservation: id,
            lease: reservation.lease_until.since(now),
            engine: Arc::clone(&engine.facts.engine),
            address: Arc::clone(&engine.facts.address),
            rank: rank.filter(|_| several),
            max_tokens: reservation.granted,
            blocks: reservation.total,
            observed,
        };
        Some(Decision {
            verdict: Verdict::Admit(admit),
            prompt: Some((reservation.prompt, reservation.count)),
            headroom: decision::headroom(engine, now, &self.settings, Class::Standard),
            data_age: engine.pools.first().and_then(|pool| pool.age(now)),
        })
    }

    fn deny(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        reason: Reason,
        of: Option<(usize, Weighed)>,
    ) -> Decision {
        self.counts.denied = self.counts.denied.saturating_add(1);
        self.count_reason(reason);
        let (index, weighed) = of.unzip();
        self.record(now, request, index, weighed.as_ref(), None, Some(reason));
        let engine = index.and_then(|index| self.engines.get(index));
        let deny = Deny {
            reason,
            retry_after: weighed.as_ref().and_then(|weighed| weighed.retry_after),
            engine: engine.map(|engine| Arc::clone(&engine.facts.engine)),
            terms: weighed.as_ref().and_then(|weighed| weighed.terms),
            message: decision::sentence(reason, request, engine, weighed.as_ref()),
        };
        Decision {
            verdict: Verdict::Deny(deny),
            prompt: weighed.as_ref().and_then(Weighed::prompt),
            headroom: engine
                .and_then(|engine| decision::headroom(engine, now, &self.settings, Class::Standard)),
            data_age: engine.and_then(|engine| engine.pools.first()?.age(now)),
        }
    }

    fn count_reason(&mut self, reason: Reason) {
        let counts = &mut self.counts.by_reason;
        match counts.binary_search_by_key(&reason, |(reason, _)| *reason) {
            Ok(index) => {
                if let Some((_, count)) = counts.get_mut(index) {
                    *count = count.saturating_add(1);
                }
            }
            Err(index) => counts.insert(index, (reason, 1)),
        }
    }

    fn record(
        &mut self,
        at: Mono,
        request: &Request<'_>,
        index: Option<usize>,
        weighed: Option<&Weighed>,
        reservation: Option<ReservationId>,
        denied: Option<Reason>,
    ) {
        let engine = index.and_then(|index| self.engines.get(index));
        let served = engine
            .and_then(|engine| engine.facts.models.iter().find(|served| &*served.name == request.model));
        let model = served.map_or_else(|| request.model.into(), |served| Arc::clone(&served.name));
        let tenant =
            if request.tenant.is_empty() { Arc::clone(&self.no_name) } else { request.tenant.into() };
        self.records.push(Record {
            at,
            reservation,
            model,
            engine: engine.map(|engine| Arc::clone(&engine.facts.engine)),
            tenant,
            class: request.class,
            denied,
            observed: weighed.and_then(|weighed| weighed.observed),
            terms: weighed.and_then(|weighed| weighed.terms),
        });
    }

    /// A request has generated tokens. Returns its new lease; `None` when it is not held.
    pub fn progress(&mut self, now: Mono, of: Reference<'_>, generated: Tokens) -> Option<Duration> {
        let id = self.resolve(of)?;
        let index = self.holder(id)?;
        let session = self.engines.get(index)?.ledger.live.get(&id)?.session;
        self.renew(now, index, id, session);
        let reservation = self.engines.get_mut(index)?.ledger.live.get_mut(&id)?;
        if generated > reservation.generated {
            (reservation.generated, reservation.generated_at) = (generated, now);
        }
        Some(self.settings.lease)
    }

    /// A request has ended.
    pub fn complete(&mut self, now: Mono, of: Reference<'_>, completion: Completion) -> Completed {
        let Some(id) = self.resolve(of) else { return Completed::NeverGiven };
        if id.epoch() == u64::from(self.epoch) && id.sequence() >= self.next {
            return Completed::NeverGiven;
        }
        let Some(engine) = self.holder(id).and_then(|index| self.engines.get_mut(index)) else {
            return Completed::Ended;
        };
        let model = engine.model();
        let Some(ended) = engine.end(id, now, completion.outcome) else { return Completed::Ended };
        if completion.output_tokens.is_some() && completion.outcome == Outcome::Ok {
            engine.told = engine.told.saturating_add(u64::from(ended.n));
        }
        self.learn_length(&model, &ended, completion);
        Completed::Held
    }

    /// Learns from the output of a request that ended, where its length was told.
    fn learn_length(&mut self, model: &Arc<str>, ended: &Reservation, completion: Completion) {
        let Some(output) = completion.output_tokens else { return };
        let length = Tokens(output.0.div_ceil(u64::from(ended.n).max(1)));
        let at_its_limit = ended.granted.is_some_and(|granted| length >= granted);
        match completion.outcome {
            Outcome::NotSent => {}
            Outcome::Ok => self.book.take(model, ended.class, length, at_its_limit),
            Outcome::Cancelled | Outcome::EngineError => self.book.take(model, ended.class, length, true),
        }
    }

    /// A stream broke: its reservations become orphans.
    pub fn session_broken(&mut self, now: Mono, session: SessionId) {
        for engine in &mut self.engines {
            let live = engine.ledger.live.iter();
            let broken: Vec<_> =
                live.filter(|(_, one)| one.session == Some(session)).map(|(id, _)| *id).collect();
            for id in broken {
                engine.ledger.make_orphan(id, now);
            }
        }
    }

    /// A reconnected gateway takes over reservations. Returns those still held.
    pub fn adopt(&mut self, now: Mono, session: SessionId, ids: &[ReservationId]) -> Vec<ReservationId> {
        let mut adopted = Vec::new();
        for id in ids {
            if let Some(index) = self.holder(*id) {
                self.renew(now, index, *id, Some(session));
                adopted.push(*id);
            }
        }
        adopted
    }

    /// Its gateway was heard of.
    fn renew(&mut self, now: Mono, index: usize, id: ReservationId, session: Option<SessionId>) {
        let lease_until = now + self.settings.lease;
        if let Some(engine) = self.engines.get_mut(index) {
            engine.ledger.adopt(id, session, lease_until);
        }
    }

    /// Does what is due at `now`: leases, orphans, engines that say nothing.
    pub fn handle_timeout(&mut self, now: Mono) {
        if self.next_tick.is_some_and(|due| now < due) {
            return;
        }
        self.next_tick = Some(now + TICK);
        for index in 0..self.engines.len() {
            let changed = self.engines.get_mut(index).is_some_and(|engine| engine.live.tick(now));
            if changed {
                self.tell_state(now, index);
            }
        }
        self.sweep(now);
        self.foresee(now);
        self.book.refresh(CLASSES_PER_TICK);
        let down = |engine: &Engine| {
            engine.live.state == EngineState::Down && now.since(engine.live.since) > DOWN_SHOWN
        };
        self.engines.retain(|engine| !down(engine));
    }

    /// Looks at some reservations; the next tick goes on where this one ends.
    fn sweep(&mut self, now: Mono) {
        let (index, after) = self.sweep;
        let Some(engine) = self.engines.get_mut(index) else {
            self.sweep = (0, None);
            return;
        };
        self.sweep = match engine.sweep(now, after, SWEPT_PER_TICK, &self.settings) {
            Some(last) => (index, Some(last)),
            None => (index + 1, None),
        };
    }

    /// Foresees some reservations anew: what they have generated since changes what is still to come.
    pub(crate) fn foresee(&mut self, now: Mono) {
        let (index, after) = self.foreseen;
        let Some(engine) = self.engines.get_mut(index) else {
            self.foreseen = (0, None);
            return;
        };
        self.foreseen = match engine.foresee(now, after, FORESEEN_AT_ONCE, &self.book) {
            Some(last) => (index, Some(last)),
            None => (index + 1, None),
        };
    }

    /// What was learned, for the next run.
    #[must_use]
    pub fn learned(&self) -> Learned {
        self.book.learned()
    }

    /// Takes up what an earlier run had learned.
    pub fn take_up(&mut self, learned: Learned) {
        self.book.take_up(learned);
    }

    /// When [`Self::handle_timeout`] is due next; `None` while there is nothing to watch.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        if self.engines.is_empty() { None } else { Some(self.next_tick.unwrap_or_default()) }
    }

    /// Events.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Decisions.
    #[must_use]
    pub const fn records(&self) -> &Records {
        &self.records
    }

    /// The id behind a reference, while it is remembered.
    #[must_use]
    pub fn resolve(&self, of: Reference<'_>) -> Option<ReservationId> {
        match of {
            Reference::Id(id) => Some(id),
            Reference::Request { peer_uid, tenant, request_id } => {
                self.request_ids.get(peer_uid, tenant, request_id).map(|known| known.reservation)
            }
        }
    }

    /// Where a reservation stands.
    #[must_use]
    pub fn standing(&self, id: ReservationId) -> Standing {
        let held = self.engines.iter().find_map(|engine| engine.ledger.live.get(&id));
        match held {
            None => Standing::Ended,
            Some(reservation) if reservation.orphan_since.is_some() => Standing::Orphan,
            Some(_) => Standing::Live,
        }
    }

    /// Index of the engine that holds `id`.
    fn holder(&self, id: ReservationId) -> Option<usize> {
        self.engines.iter().position(|engine| engine.ledger.live.contains_key(&id))
    }

    /// Reservations held.
    #[must_use]
    pub fn reservations(&self) -> usize {
        self.engines.iter().map(|engine| engine.ledger.live.len()).sum()
    }

    /// Tells that an engine's state has changed.
    pub(crate) fn tell_state(&mut self, now: Mono, index: usize) {
        let Some(engine) = self.engines.get(index) else { return };
        let kind = match engine.live.state {
            EngineState::Starting => EventKind::EngineFound,
            EngineState::Ready => EventKind::EngineReady,
            EngineState::Draining => EventKind::EngineDraining,
            EngineState::Suspect => EventKind::EngineSuspect,
            EngineState::Stalled => EventKind::EngineStalled,
            EngineState::Asleep => EventKind::EngineAsleep,
            EngineState::Unknown => EventKind::EngineUnknown,
            EngineState::Down => EventKind::EngineDown,
        };
        let message = format!("engine {}: {}", engine.facts.engine, engine.live.why);
        self.history.push(now, kind, Some(&engine.facts.engine), None, message);
    }
}
