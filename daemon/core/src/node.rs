//! The node: fed with facts, it answers questions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    affinity::Affinity,
    alarm::Alarms,
    book::{Book, Learned},
    count::Texts,
    counts::DecisionCounts,
    device::Device,
    engine::Engine,
    event::{EventKind, History},
    explain::Records,
    guard::Guard,
    idempotency::RequestIds,
    ledger::Reservation,
    observation::SourceReport,
    promise::Promised,
    queue::{Engines, Queue},
    report::{EngineReport, Reports},
    request::{Completion, Outcome, Reference, ReservationId, SessionId},
    settings::Settings,
    snapshot::{EngineState, Touched},
    tenants::Tenants,
    units::{Mono, Tokens},
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

/// The node as a state machine. Its methods come in five families:
///
/// - [`observe`](Self::observe) takes in a fact from a source.
/// - [`admit`](Self::admit), [`admit_or_wait`](Self::admit_or_wait), [`cancel`](Self::cancel), [`progress`](Self::progress), [`complete`](Self::complete),
///   [`session_broken`](Self::session_broken), [`adopt`](Self::adopt) serve gateways.
/// - [`reconfigure`](Self::reconfigure) changes its settings; [`handle_timeout`](Self::handle_timeout) does what is due, when [`poll_timeout`](Self::poll_timeout) says;
///   [`poll_grant`](Self::poll_grant) hands out answers to those who waited.
/// - [`promise`](Self::promise) and [`take_over`](Self::take_over) hand what was promised to the next run.
/// - [`snapshot`](Self::snapshot), [`history`](Self::history), [`records`](Self::records),
///   [`standing`](Self::standing), [`report`](Self::report) show it.
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
    pub(crate) request_ids: RequestIds,
    pub(crate) affinity: Affinity,
    /// Number of the next reservation.
    pub(crate) next: u64,
    next_tick: Option<Mono>,
    /// Where the sweep over reservations goes on: engine, and the last one looked at.
    sweep: (usize, Option<ReservationId>),
    /// Where foreseeing goes on, likewise.
    foreseen: (usize, Option<ReservationId>),
    pub(crate) book: Book,
    pub(crate) guard: Guard,
    pub(crate) alarms: Alarms,
    /// What is learned of the tokens of texts.
    pub(crate) texts: Texts,
    pub(crate) tenants: Tenants,
    pub(crate) queue: Queue,
    pub(crate) reports: Reports,
    pub(crate) no_name: Arc<str>,
    pub(crate) touched: Touched,
    /// What an earlier daemon promised for engines that have not been read yet.
    pub(crate) promised: Promised,
    /// Epoch of the first run in the unbroken line of runs that ends with this one.
    pub(crate) first_epoch: u32,
}

impl Node {
    /// An empty node whose reservation ids carry `epoch` (its lower 24 bits).
    #[must_use]
    pub fn new(settings: Settings, epoch: u32) -> Self {
        Self {
            tenants: Tenants::new(&settings),
            counts: DecisionCounts::of_tenants(settings.tenants.keys().map(String::as_str)),
            queue: Queue::default(),
            reports: Reports::default(),
            book: Book::of(settings.parts),
            settings,
            epoch: epoch & 0x00ff_ffff,
            engines: Vec::new(),
            devices: BTreeMap::new(),
            engine_pids: BTreeSet::new(),
            sources: BTreeMap::new(),
            history: History::default(),
            records: Records::default(),
            generation: 0,
            request_ids: RequestIds::default(),
            affinity: Affinity::default(),
            next: 1,
            next_tick: None,
            sweep: (0, None),
            foreseen: (0, None),
            guard: Guard::default(),
            alarms: Alarms::default(),
            texts: Texts::default(),
            no_name: "".into(),
            touched: Touched::None,
            promised: Promised::default(),
            first_epoch: epoch & 0x00ff_ffff,
        }
    }

    /// Other settings hold from now on. What was promised under the old ones stays promised.
    pub fn reconfigure(&mut self, now: Mono, settings: Settings) {
        let (engines, queue) = (&self.engines, &self.queue);
        let in_use = |slot| {
            engines.iter().any(|engine| engine.ledger.of_tenant(slot).1 > 0)
                || queue.iter().any(|waiter| waiter.tenant == slot)
        };
        self.tenants.reconfigure(now, &settings, in_use);
        self.settings = settings;
        self.touched = Touched::All;
        self.serve(now, Engines::ALL);
    }

    /// A request has generated tokens. Returns its new lease; `None` when it is not held.
    pub fn progress(&mut self, now: Mono, of: Reference<'_>, generated: Tokens) -> Option<Duration> {
        let id = self.resolve(of)?;
        if self.promised.has(id) {
            return Some(self.settings.lease);
        }
        let index = self.holder(id)?;
        let session = self.engines.get(index)?.ledger.live.get(&id)?.session;
        self.renew(now, index, id, session);
        let engine = self.engines.get_mut(index)?;
        let reservation = engine.ledger.live.get_mut(&id)?;
        if generated > reservation.generated {
            let first = reservation.generated == Tokens::ZERO;
            (reservation.generated, reservation.generated_at) = (generated, now);
            if first {
                engine.first_output(id, now);
            }
        }
        Some(self.settings.lease)
    }

    /// A request has ended.
    pub fn complete(&mut self, now: Mono, of: Reference<'_>, completion: Completion) -> Completed {
        let Some(id) = self.resolve(of).filter(|id| self.gave(*id)) else { return Completed::NeverGiven };
        if self.promised.end(id) {
            return Completed::Held;
        }
        let Some(index) = self.holder(id) else { return Completed::Ended };
        self.touch(index);
        let Some(engine) = self.engines.get_mut(index) else { return Completed::Ended };
        let (name, model) = (Arc::clone(&engine.facts.engine), engine.model());
        let Some(ended) = engine.end(id, now, completion.outcome) else { return Completed::Ended };
        if completion.output_tokens.is_some() && completion.outcome == Outcome::Ok {
            engine.told = engine.told.saturating_add(u64::from(ended.n));
        }
        self.learn_length(&model, &ended, completion);
        self.absolve(now, &name, ended.prompts.longest, id, completion.outcome);
        if let (Some((model, text)), Some(tokens)) = (&ended.text, completion.prompt_tokens) {
            self.texts.take(model, text, tokens);
        }
        self.refund(now, &ended, completion);
        self.serve(now, Engines::one(index));
        Completed::Held
    }

    /// Gives a tenant back what a request was charged for and did not use.
    fn refund(&mut self, now: Mono, ended: &Reservation, completion: Completion) {
        let output = ended.output.times(u64::from(ended.n));
        let unused = match (completion.outcome, completion.output_tokens) {
            (Outcome::NotSent, _) => ended.prompts.total + output,
            (_, Some(used)) => output.saturating_sub(used),
            (_, None) => Tokens::ZERO,
        };
        self.tenants.refund(now, ended.tenant, unused);
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
        self.queue.drop_session(session);
        for engine in &mut self.engines {
            let live = engine.ledger.live.iter();
            let broken: Vec<_> =
                live.filter(|(_, one)| one.session == Some(session)).map(|(id, _)| *id).collect();
            for id in broken {
                engine.ledger.make_orphan(id, now);
            }
        }
        self.serve(now, Engines::ALL);
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
    pub(crate) fn renew(&mut self, now: Mono, index: usize, id: ReservationId, session: Option<SessionId>) {
        let lease_until = now + self.settings.lease;
        if let Some(engine) = self.engines.get_mut(index) {
            engine.ledger.adopt(id, session, lease_until);
        }
    }

    /// Does what is due at `now`: leases, orphans, engines that say nothing.
    pub fn handle_timeout(&mut self, now: Mono) {
        if self.next_tick.is_some_and(|due| now < due) {
            if self.queue.first_deadline().is_some_and(|due| now >= due) {
                self.serve(now, Engines::default());
            }
            return;
        }
        self.next_tick = Some(now + TICK);
        for index in 0..self.engines.len() {
            let changed = self.engines.get_mut(index).is_some_and(|engine| engine.live.tick(now));
            if changed {
                self.tell_state(now, index);
            }
            self.tell_demand(now, index);
        }
        self.look_back(now);
        self.look_at_deaths(now);
        self.expire_guards(now);
        self.expire_promised(now);
        self.sweep(now);
        self.foresee(now);
        self.book.refresh(CLASSES_PER_TICK);
        let down = |engine: &Engine| {
            engine.live.state == EngineState::Down && now.since(engine.live.since) > DOWN_SHOWN
        };
        let kept = self.engines.len();
        self.engines.retain(|engine| !down(engine));
        if self.engines.len() < kept {
            self.touched = Touched::All;
        }
        self.serve(now, Engines::ALL);
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
        if self.engines.is_empty() && self.queue.is_empty() {
            return None;
        }
        let tick = self.next_tick.unwrap_or_default();
        Some(self.queue.first_deadline().map_or(tick, |deadline| deadline.min(tick)))
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

    /// What was decided in the last `hours` hours, and how the engines fared, by engine id.
    #[must_use]
    pub fn report(&self, now: Mono, hours: usize) -> Vec<EngineReport> {
        self.reports.newest(now, hours)
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

    /// Whether this run gave out `id`, or may an earlier run in its line have: how many those gave out is not kept.
    #[must_use]
    pub fn gave(&self, id: ReservationId) -> bool {
        if id.epoch() == u64::from(self.epoch) {
            (1..self.next).contains(&id.sequence())
        } else {
            (u64::from(self.first_epoch)..u64::from(self.epoch)).contains(&id.epoch()) && id.sequence() > 0
        }
    }

    /// Where a reservation stands.
    #[must_use]
    pub fn standing(&self, id: ReservationId) -> Standing {
        let held = self.engines.iter().find_map(|engine| engine.ledger.live.get(&id));
        match held {
            None if self.promised.has(id) => Standing::Orphan,
            None => Standing::Ended,
            Some(reservation) if reservation.orphan_since.is_some() => Standing::Orphan,
            Some(_) => Standing::Live,
        }
    }

    /// Ids of the engines.
    pub fn engine_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.engines.iter().map(|engine| &engine.facts.engine)
    }

    /// Index of the engine that holds `id`.
    pub(crate) fn holder(&self, id: ReservationId) -> Option<usize> {
        self.engines.iter().position(|engine| engine.ledger.live.contains_key(&id))
    }

    /// Reservations held.
    #[must_use]
    pub fn reservations(&self) -> usize {
        self.engines.iter().map(|engine| engine.ledger.live.len()).sum()
    }

    /// Tells when more is asked of an engine than it can do, and when that is over.
    fn tell_demand(&mut self, now: Mono, index: usize) {
        let Some(engine) = self.engines.get_mut(index) else { return };
        let Some((high, message)) = engine.judge_demand(now, &self.settings) else { return };
        let kind = if high { EventKind::ScaleUp } else { EventKind::ScaleUpOver };
        self.history.push(now, kind, Some(&engine.facts.engine), None, message);
    }

    /// Tells that an engine's state has changed.
    pub(crate) fn tell_state(&mut self, now: Mono, index: usize) {
        self.touch(index);
        let Some(engine) = self.engines.get(index) else { return };
        let kind = match engine.live.state {
            EngineState::Starting => EventKind::EngineFound,
            EngineState::Ready => EventKind::EngineReady,
            EngineState::Draining => EventKind::EngineDraining,
            EngineState::Suspect => EventKind::EngineSuspect,
            EngineState::Stalled => EventKind::EngineStalled,
            EngineState::Asleep => EventKind::EngineAsleep,
            EngineState::Unknown => EventKind::EngineUnknown,
            // The verdict tells of it.
            EngineState::Down => return,
        };
        let name = Arc::clone(&engine.facts.engine);
        let message = format!("engine {name}: {}", engine.live.why);
        // A freeze follows from a device that fails, and a stall from the suspicion that was told before.
        let frozen = matches!(engine.live.state, EngineState::Suspect | EngineState::Stalled);
        let troubles = engine.devices.iter().filter_map(|uuid| self.devices.get(uuid)?.recent_trouble(now));
        let cause = troubles.min().or(engine.suspected_by).filter(|_| frozen);
        let event = self.history.push(now, kind, Some(&name), None, message);
        self.history.explain_newest(None, cause);
        if let Some(engine) = self.engines.get_mut(index) {
            engine.suspected_by = frozen.then_some(cause.unwrap_or(event));
        }
    }
}
