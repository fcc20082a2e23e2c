//! Answering a request: choosing the engine, granting or denying, and keeping the record of it.

use std::sync::Arc;

use crate::{
    affinity::Home,
    book::ClassKey,
    cost::Work,
    counts::Ruling,
    decision::{self, Grounds, Weighed},
    engine::Engine,
    explain::Record,
    idempotency,
    ledger::Reservation,
    node::Node,
    queue::Engines,
    request::{Admit, Decision, Deny, Headroom, Reason, Request, RequestError, ReservationId, Verdict},
    tenants::Slot,
    units::{Blocks, Mono, Tokens},
};

/// A request that was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) tenant: Slot,
    /// Engines whose room it must leave to those who wait.
    pub(crate) barred: Engines,
    /// Fingerprint of its question, where somebody is expected back.
    pub(crate) key: Option<u64>,
}

/// The engine for it.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) index: usize,
    pub(crate) weighed: Weighed,
    /// All engines that could serve it.
    pub(crate) candidates: Engines,
}

impl Node {
    /// Answers a request at once; [`admit_or_wait`](Self::admit_or_wait) lets it wait.
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn admit(&mut self, now: Mono, request: &Request<'_>) -> Result<Decision, RequestError> {
        request.check()?;
        if let Some(decision) = self.remembered(now, request)? {
            return Ok(decision);
        }
        let asked = self.asked(now, request);
        let chosen = self.choose(now, &asked);
        Ok(self.decide(now, &asked, &chosen))
    }

    /// A new request, its tenant's account, and what it must leave to those who wait.
    pub(crate) fn asked<'a>(&mut self, now: Mono, request: &'a Request<'a>) -> Asked<'a> {
        let (engines, queue) = (&self.engines, &self.queue);
        let in_use = |slot| {
            engines.iter().any(|engine| engine.ledger.of_tenant(slot).1 > 0)
                || queue.iter().any(|waiter| waiter.tenant == slot)
        };
        let tenant = self.tenants.slot(now, request.tenant, &self.settings, in_use);
        let barred = self.queue.barred(request.class, self.settings.queue_time);
        Asked { request, tenant, barred, key: self.key(request) }
    }

    /// Grants or denies, as was weighed.
    pub(crate) fn decide(
        &mut self,
        now: Mono,
        asked: &Asked<'_>,
        chosen: &Result<Chosen, Reason>,
    ) -> Decision {
        let request = asked.request;
        let denied = chosen.as_ref().map_or_else(|reason| Some(*reason), |chosen| chosen.weighed.denied);
        self.came_back(now, asked.key, denied);
        match chosen {
            Err(reason) => self.deny(now, request, *reason, None),
            Ok(Chosen { index, weighed, .. }) => match weighed.denied {
                Some(reason) => self.deny(now, request, reason, Some((*index, weighed))),
                None if self.reservations() >= self.settings.reservations => {
                    self.deny(now, request, Reason::LedgerFull, Some((*index, weighed)))
                }
                None => self.grant(now, asked, *index, weighed),
            },
        }
    }

    /// The answer already given to this request id, while its reservation is held.
    pub(crate) fn remembered(
        &mut self,
        now: Mono,
        request: &Request<'_>,
    ) -> Result<Option<Decision>, RequestError> {
        let Some(request_id) = request.request_id else { return Ok(None) };
        let Some(known) = self.request_ids.get(request.peer_uid, request.tenant, request_id) else {
            return Ok(None);
        };
        let Some(index) = self.holder(known.reservation) else { return Ok(None) };
        if known.content != idempotency::content(request) {
            return Err(RequestError::IdReused(request_id.into()));
        }
        self.renew(now, index, known.reservation, request.session);
        let headroom =
            self.engines.get(index).and_then(|e| decision::headroom(e, now, &self.settings, request.class));
        Ok(self.answer(now, index, known.reservation, None, headroom))
    }

    /// The max_tokens that would be granted now.
    ///
    /// # Errors
    /// Why it would be denied, or would be if denials were binding.
    pub(crate) fn foretell(&self, now: Mono, request: &Request<'_>) -> Result<Option<Tokens>, Reason> {
        let tenant = self.tenants.find(request.tenant);
        let barred = self.queue.barred(request.class, self.settings.queue_time);
        let Chosen { weighed, .. } =
            self.choose(now, &Asked { request, tenant, barred, key: self.key(request) })?;
        match weighed.denied.or(weighed.observed) {
            Some(reason) => Err(reason),
            None => Ok(weighed.need.and_then(|need| need.granted)),
        }
    }

    /// The engine for a request: the caller's choice, then the session's, then the one with most room.
    pub(crate) fn choose(&self, now: Mono, asked: &Asked<'_>) -> Result<Chosen, Reason> {
        let Asked { request, tenant, barred, key } = *asked;
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
        let known = request.session_key.map(|key| self.affinity.home(key));
        let home = known.flatten().map(|home| home.engine);
        let class = ClassKey::of(request);
        let payer = self.tenants.get(tenant).map(|account| (tenant, account));
        let mut candidates = Engines::default();
        let rating = |index: usize, weighed: &Weighed| {
            let (admitted, left, status, wait) = weighed.rating();
            (admitted, admitted && home == Some(index), left, status, wait)
        };
        let returning = self.returning(now, key);
        let mut best: Option<Chosen> = None;
        for (index, engine) in self.engines.iter().enumerate() {
            if !named(engine) || !serves(engine) {
                continue;
            }
            candidates = candidates.with(Engines::one(index));
            // A session that is new here, or was elsewhere, has nothing cached but what all share.
            let here =
                known.map(|known| known.filter(|home| home.engine == index && engine.keeps(home.written)));
            let cached = here.map(|here| here.map_or(Tokens::ZERO, |home| home.prompt));
            let (settings, book, guard) = (&self.settings, &self.book, &self.guard);
            let grounds = Grounds { now, settings, book, class, cached, guard, payer };
            let mut weighed = decision::weigh(engine, request, &grounds);
            engine.hold_back(request, &self.settings, &mut weighed);
            if !returning {
                engine.leave_to_expected(now, request.class, &self.settings, &mut weighed);
            }
            if barred.meets(Engines::one(index)) {
                weighed.leave_to_others();
            }
            let better = |best: &Chosen| rating(index, &weighed) >= rating(best.index, &best.weighed);
            if best.as_ref().is_none_or(better) {
                best = Some(Chosen { index, weighed, candidates });
            }
        }
        if let Some(best) = &mut best {
            best.candidates = candidates;
            if best.weighed.held_back {
                best.weighed.retry_after = self.behind_the_queue(now, best);
            }
        }
        best.ok_or(Reason::UnknownModel)
    }

    fn grant(&mut self, now: Mono, asked: &Asked<'_>, index: usize, weighed: &Weighed) -> Decision {
        let Asked { request, tenant, .. } = *asked;
        let id = ReservationId::new(self.epoch, self.next);
        let lease_until = now + self.settings.lease;
        let (Some(need), Some(engine)) = (weighed.need, self.engines.get_mut(index)) else {
            return self.deny(now, request, Reason::UnknownEngine, None);
        };
        self.next = self.next.saturating_add(1);
        let pool = engine.pools.get(weighed.rank.unwrap_or(0));
        let block_size = pool.map_or(1, |pool| pool.block_size);
        let total = if engine.pools.is_empty() { Blocks::ZERO } else { need.blocks(block_size) };
        let reservation = Reservation {
            admitted_at: now,
            rank: weighed.rank,
            prompts: need.prompts,
            count: need.shown,
            text: request.prompt.text().map(|text| (served(engine, request), text)),
            output: need.output,
            granted: need.granted,
            n: need.n,
            most: need.most,
            class: ClassKey::of(request),
            footprint: weighed.footprint.clone(),
            uncached: weighed.uncached,
            passed: false,
            told: Some(false),
            foreseen: weighed.ttft.filter(|_| pool.is_some_and(|pool| pool.prefill.foresees())),
            came: weighed.rank.and(pool).map(|pool| pool.prefill.strangers.came(now)),
            prefill: engine.begin_prefill(weighed.rank, now, Work::of_all(need.prompts, weighed.uncached)),
            generated: Tokens::ZERO,
            generated_at: now,
            seen_at: None,
            shown: Blocks::ZERO,
            sure: Blocks::ZERO,
            total,
            lease_until,
            session: request.session,
            tenant,
            orphan_since: None,
        };
        engine.ledger.insert(id, reservation);
        if weighed.probe {
            engine.live.probing(now, id);
        }
        if weighed.guard_probe {
            self.guard.probing(now, &engine.facts.engine, need.prompts.longest, id);
        }
        if let Some(key) = request.session_key {
            let written = self.engines.get(index).map(Engine::written).unwrap_or_default();
            self.affinity.note(key, Home { engine: index, prompt: need.prompts.longest, written });
        }
        if let Some(request_id) = request.request_id {
            self.request_ids.note(request, request_id, id);
        }
        if weighed.observed.is_none() {
            self.tenants.charge(now, tenant, need.tokens());
        }
        self.record(now, request, Some(index), Some(weighed), Some(id), None);
        let headroom = self.engines.get(index).and_then(|e| decision::headroom_after(e, now, weighed));
        match self.answer(now, index, id, weighed.observed, headroom) {
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
        headroom: Option<Headroom>,
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
            prompt: Some((reservation.prompts.total, reservation.count)),
            headroom,
            data_age: engine.pools.first().and_then(|pool| pool.age(now)),
        })
    }

    pub(crate) fn deny(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        reason: Reason,
        of: Option<(usize, &Weighed)>,
    ) -> Decision {
        let (index, weighed) = of.unzip();
        self.record(now, request, index, weighed, None, Some(reason));
        let foreseen = weighed.and_then(|weighed| weighed.retry_after);
        let retry_after = foreseen.map(|foreseen| self.come_back(now, request, reason, of, foreseen));
        let engine = index.and_then(|index| self.engines.get(index));
        let deny = Deny {
            reason,
            retry_after,
            engine: engine.map(|engine| Arc::clone(&engine.facts.engine)),
            terms: weighed.and_then(|weighed| weighed.terms),
            message: decision::sentence(reason, request, engine, weighed),
        };
        Decision {
            verdict: Verdict::Deny(deny),
            prompt: weighed.and_then(Weighed::prompt).or(request.prompt.counted()),
            headroom: engine
                .and_then(|engine| decision::headroom(engine, now, &self.settings, request.class)),
            data_age: engine.and_then(|engine| engine.pools.first()?.age(now)),
        }
    }

    fn note_ask(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        index: usize,
        weighed: &Weighed,
        denied: Option<Reason>,
    ) {
        self.touch(index);
        if let Some(engine) = self.engines.get_mut(index) {
            engine.asked.take(now, weighed, denied, idempotency::fingerprint(request));
            for pool in &mut engine.pools {
                pool.prefill.strangers.ask();
            }
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
        if let (Some(index), Some(weighed)) = (index, weighed) {
            self.note_ask(at, request, index, weighed, denied);
        }
        let engine = index.and_then(|index| self.engines.get(index));
        let observed = weighed.and_then(|weighed| weighed.observed);
        self.counts.take(request.class, request.tenant, Ruling::of(denied, observed));
        if let Some(engine) = engine {
            self.reports.decided(&engine.facts.engine, at, denied, observed);
        }
        let model = engine.map_or_else(|| request.model.into(), |engine| served(engine, request));
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
            observed,
            terms: weighed.and_then(|weighed| weighed.terms),
        });
    }
}

/// The model's name as the engine has it: a name that is there already.
fn served(engine: &Engine, request: &Request<'_>) -> Arc<str> {
    let listed = engine.facts.models.iter().find(|served| &*served.name == request.model);
    listed.map_or_else(|| request.model.into(), |served| Arc::clone(&served.name))
}
