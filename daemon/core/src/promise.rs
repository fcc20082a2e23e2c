//! What was promised outlives the daemon: each reservation as a plain value, for the one that runs next.
//!
//! A promise taken over waits for its engine's first reading and is an orphan until its gateway is heard of. From then on
//! the rules for any reservation hold: what the engine holds beyond those seen explains it, what comes late is found, and
//! what the engine does not show after the time of delivery is not there.

use std::sync::Arc;

use crate::{
    book::ClassKey,
    cost::Work,
    engine::Engine,
    forecast::{Footprint, Outlook},
    ledger::Reservation,
    node::Node,
    observation::RankReading,
    prompts::Prompts,
    request::{PromptCount, ReservationId},
    tenants::Slot,
    units::{Blocks, Mono, Tokens},
};

/// One promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Its reservation.
    pub id: ReservationId,
    /// Which engine has it.
    pub engine: Arc<str>,
    /// Since when.
    pub admitted_at: Mono,
    /// Prompts.
    pub prompts: Prompts,
    /// Prompt tokens that the prefix cache was not expected to hold.
    pub uncached: Tokens,
    /// Output tokens per sequence that room is kept for.
    pub output: Tokens,
    /// Output tokens per sequence that were granted.
    pub granted: Option<Tokens>,
    /// It ends there at the latest, output tokens per sequence.
    pub most: Tokens,
    /// Sequences, of all prompts together.
    pub n: u32,
    /// By which its output length is foreseen.
    pub class: ClassKey,
    /// Who pays.
    pub tenant: Arc<str>,
    /// The request id it may be called by.
    pub request: Option<RequestName>,
}

/// A caller's own name of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// Whose.
    pub peer_uid: u32,
    /// The id.
    pub id: Arc<str>,
    /// Fingerprint of what was asked.
    pub content: u64,
}

/// Promises whose engine has not been read yet.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    waiting: Vec<Promise>,
    since: Mono,
}

impl Promised {
    pub(crate) fn has(&self, id: ReservationId) -> bool {
        self.waiting.iter().any(|one| one.id == id)
    }

    /// Its request has ended. Returns whether it was there.
    pub(crate) fn end(&mut self, id: ReservationId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|one| one.id != id);
        self.waiting.len() < before
    }

    fn take(&mut self, engine: &str) -> Vec<Promise> {
        self.waiting.extract_if(.., |one| &*one.engine == engine).collect()
    }
}

impl Node {
    /// The promise behind a reservation that is held.
    #[must_use]
    pub fn promise(&self, id: ReservationId) -> Option<Promise> {
        let engine = self.engines.get(self.holder(id)?)?;
        let held = engine.ledger.live.get(&id)?;
        Some(Promise {
            id,
            engine: Arc::clone(&engine.facts.engine),
            admitted_at: held.admitted_at,
            prompts: held.prompts,
            uncached: held.uncached,
            output: held.output,
            granted: held.granted,
            most: held.most,
            n: held.n,
            class: held.class,
            tenant: self
                .tenants
                .get(held.tenant)
                .map_or_else(|| Arc::clone(&self.no_name), crate::tenants::Account::name),
            request: self.request_ids.newest(id),
        })
    }

    /// Takes over what earlier runs promised, as many as this one may hold. The first of these runs had the epoch
    /// `first_epoch`; `None`: there was none.
    pub fn take_over(&mut self, now: Mono, promises: Vec<Promise>, first_epoch: Option<u32>) {
        self.first_epoch = first_epoch.unwrap_or(self.epoch).min(self.epoch);
        for promise in promises.iter().take(self.settings.reservations) {
            if let Some(name) = &promise.request {
                self.request_ids.note_known(name, &promise.tenant, promise.id);
            }
        }
        let mut waiting = promises;
        waiting.truncate(self.settings.reservations);
        self.promised = Promised { waiting, since: now };
    }

    /// Forgets promises of engines that have not come.
    pub(crate) fn expire_promised(&mut self, now: Mono) {
        if now.since(self.promised.since) > self.settings.orphan_cap {
            self.promised.waiting.clear();
        }
    }

    /// Puts the promises of the engine at `index` into its ledger, before its reading of `ranks` is set against it.
    pub(crate) fn resume(&mut self, now: Mono, index: usize, ranks: &[RankReading]) {
        let Some(engine) = self.engines.get(index) else { return };
        for promise in self.promised.take(&engine.facts.engine.clone()) {
            let engines = &self.engines;
            let in_use = |slot| engines.iter().any(|engine| engine.ledger.of_tenant(slot).1 > 0);
            let tenant = self.tenants.slot(now, &promise.tenant, &self.settings, in_use);
            let (lease_until, book) = (now + self.settings.lease, &self.book);
            let Some(engine) = self.engines.get_mut(index) else { return };
            engine.know_pools(ranks);
            let block_size = engine.pools.first().map_or(1, |pool| pool.block_size);
            let Promise { prompts, most, n, class, .. } = promise;
            let outlook = Outlook { prompts, generated: Tokens::ZERO, most, n };
            let footprint = Footprint::of(&outlook, book.survival(&engine.model(), class), block_size);
            engine.take_up(now, &promise, Held { tenant, lease_until, block_size, footprint });
        }
    }
}

/// How a promise is held.
struct Held {
    tenant: Slot,
    lease_until: Mono,
    block_size: u64,
    footprint: Footprint,
}

impl Engine {
    fn take_up(&mut self, now: Mono, promise: &Promise, held: Held) {
        let Promise { id, admitted_at, prompts, uncached, output, granted, most, n, class, .. } = *promise;
        // A rank is known again when a reading shows it.
        let rank = (self.pools.len() == 1).then_some(0);
        let reservation = Reservation {
            admitted_at,
            rank,
            prompts,
            count: PromptCount::Estimated,
            text: None,
            output,
            granted,
            n,
            most,
            class,
            footprint: held.footprint,
            uncached,
            foreseen: None,
            came: None,
            passed: false,
            told: None,
            prefill: self.begin_prefill(rank, now, Work::of_all(prompts, uncached)),
            generated: Tokens::ZERO,
            generated_at: admitted_at,
            seen_at: None,
            shown: Blocks::ZERO,
            sure: Blocks::ZERO,
            total: prompts.held(output, n, held.block_size),
            lease_until: held.lease_until,
            session: None,
            tenant: held.tenant,
            orphan_since: None,
        };
        self.ledger.insert(id, reservation);
        self.ledger.make_orphan(id, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        node::Completed,
        observation::{EngineReading, Observation},
        request::{Completion, Outcome, Reference, Request, Verdict},
        settings::{Risk, Settings},
        testing::{at, facts, rank, request},
        units::Span,
    };

    fn strict() -> Settings {
        Settings { risk: Risk::NONE, ..Settings::default() }
    }

    /// A node that is told of engine `e` at `seconds`, with so many blocks in use by so many requests.
    fn read(node: &mut Node, seconds: f64, used: u64, running: u64) {
        let now = at(seconds);
        node.observe(now, Observation::Engine(Box::new(facts(now))));
        let ranks = vec![rank(used, running, 0, 0)];
        let reading = EngineReading { span: Span::at(now), ranks, ..EngineReading::default() };
        node.observe(now, Observation::Reading { engine: "e".into(), reading: Box::new(reading) });
    }

    fn asked(prompt: u64, output: u64) -> Request<'static> {
        Request { max_tokens: Some(Tokens(output)), request_id: Some("r"), tenant: "t", ..request(prompt) }
    }

    fn admitted(node: &mut Node, seconds: f64, request: &Request<'_>) -> Option<ReservationId> {
        match node.admit(at(seconds), request).unwrap().verdict {
            Verdict::Admit(admit) => Some(admit.reservation),
            Verdict::Deny(_) => None,
        }
    }

    /// A promise of 90 of 100 blocks, made at 0.0 by a daemon that is gone.
    fn promised() -> Promise {
        let mut node = Node::new(strict(), 1);
        read(&mut node, 0.0, 0, 0);
        let id = admitted(&mut node, 0.0, &asked(1340, 100)).unwrap();
        node.promise(id).unwrap()
    }

    fn taken_over() -> Node {
        let mut node = Node::new(strict(), 2);
        node.take_over(at(0.1), vec![promised()], Some(1));
        node
    }

    /// Of 21 blocks.
    fn other() -> Request<'static> {
        Request { max_tokens: Some(Tokens(16)), ..request(320) }
    }

    #[test]
    fn a_promise_that_the_engine_does_not_show_yet_is_kept() {
        let mut node = taken_over();
        read(&mut node, 0.2, 0, 0);
        assert_eq!(admitted(&mut node, 0.2, &other()), None, "21 of the 10 blocks left");
        // After the time of delivery it is clear that it never came.
        read(&mut node, 1.5, 0, 0);
        assert!(admitted(&mut node, 1.5, &other()).is_some());
    }

    #[test]
    fn a_promise_that_the_engine_shows_keeps_its_growth_and_is_no_strangers() {
        let mut node = taken_over();
        // 84 blocks of prompt are there; 6 more are promised.
        read(&mut node, 2.0, 84, 1);
        let snapshot = node.snapshot(at(2.0));
        assert_eq!(snapshot.engines[0].bypass_requests, Some(0));
        assert_eq!(admitted(&mut node, 2.0, &other()), None);
        let ten = Request { max_tokens: Some(Tokens(16)), ..request(144) };
        assert!(admitted(&mut node, 2.0, &ten).is_some(), "the last ten blocks are to be had");
    }

    #[test]
    fn its_gateway_may_go_on_with_it() {
        let promise = promised();
        for before_reading in [true, false] {
            let mut node = taken_over();
            if !before_reading {
                read(&mut node, 2.0, 84, 1);
            }
            let of = Reference::Request { peer_uid: 0, tenant: "t", request_id: "r" };
            assert!(node.progress(at(2.1), of, Tokens(10)).is_some(), "{before_reading}");
            let completion =
                Completion { outcome: Outcome::Ok, output_tokens: Some(Tokens(20)), prompt_tokens: None };
            assert_eq!(node.complete(at(2.2), Reference::Id(promise.id), completion), Completed::Held);
            assert_eq!(node.complete(at(2.2), Reference::Id(promise.id), completion), Completed::Ended);
        }
    }

    #[test]
    fn asked_again_it_is_the_same_promise() {
        let (promise, mut node) = (promised(), taken_over());
        read(&mut node, 2.0, 84, 1);
        assert_eq!(admitted(&mut node, 2.0, &asked(1340, 100)), Some(promise.id));
        assert_eq!(node.promise(promise.id), Some(promise));
    }

    #[test]
    fn promises_of_an_engine_that_never_comes_are_forgotten() {
        let mut node = taken_over();
        assert!(node.promised.has(promised().id));
        node.expire_promised(at(0.1 + 601.0));
        assert!(!node.promised.has(promised().id));
    }
}
