//! Requests that wait for room: taking them in, and answering them the moment something changes.

use std::{sync::Arc, time::Duration};

use crate::{
    admit::{Asked, Chosen},
    node::Node,
    queue::{Answer, Engines, Ticket, Waiter},
    request::{Completion, Decision, Outcome, Reason, Reference, Request, RequestError, Verdict},
    tenants::Slot,
    units::{Blocks, Mono},
};

impl Reason {
    /// Whether time may change it, so that waiting makes sense. What is broken is answered at once.
    const fn passes(self) -> bool {
        matches!(
            self,
            Self::EngineStarting
                | Self::EngineSuspect
                | Self::KvFull
                | Self::DeviceMemory
                | Self::Ttft
                | Self::Pace
                | Self::ClassLimit
                | Self::TenantShare
        )
    }
}

impl Chosen {
    /// Whether what is freed at its engines is to be left to it while it waits. One for which there is room, but that leaves
    /// it to those who were told to come back, has no claim against these.
    fn claims(&self, barred: Engines) -> bool {
        let left_to_expected = self.weighed.held_back && !barred.meets(Engines::one(self.index));
        self.weighed.denied == Some(Reason::KvFull) && !left_to_expected
    }
}

impl Node {
    /// Answers a request that may wait up to [`Request::wait`] for room; the answer to one that waits comes by
    /// [`poll_grant`](Self::poll_grant).
    ///
    /// # Errors
    /// The caller's mistakes; a denial is a [`Decision`].
    pub fn admit_or_wait(&mut self, now: Mono, request: &Request<'_>) -> Result<Answer, RequestError> {
        if request.wait.is_zero() || self.settings.queue_depth == 0 {
            return self.admit(now, request).map(Answer::Decided);
        }
        request.check()?;
        if let Some(decision) = self.remembered(now, request)? {
            return Ok(Answer::Decided(decision));
        }
        let asked = self.asked(now, request);
        match self.choose(now, &asked) {
            Ok(chosen) if chosen.weighed.denied.is_some_and(Reason::passes) => {
                Ok(self.queue_up(now, &asked, chosen))
            }
            chosen => Ok(Answer::Decided(self.decide(now, &asked, &chosen))),
        }
    }

    /// An answer to a request that waited, and its ticket. To be called, until there is none, after every call that
    /// changes something.
    pub fn poll_grant(&mut self) -> Option<(Ticket, Decision)> {
        self.queue.answers.pop_front()
    }

    /// A caller waits no longer. Returns whether it waited, or had been answered without having fetched it.
    pub fn cancel(&mut self, now: Mono, ticket: Ticket) -> bool {
        if self.queue.take(ticket).is_some() {
            self.serve(now, Engines::ALL);
            return true;
        }
        let Some(index) = self.queue.answers.iter().position(|(of, _)| *of == ticket) else { return false };
        if let Some((_, Decision { verdict: Verdict::Admit(admit), .. })) = self.queue.answers.remove(index) {
            let not_sent = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
            self.complete(now, Reference::Id(admit.reservation), not_sent);
        }
        true
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.iter().count()
    }

    /// Takes a denied request into the queue of the engine that would have been chosen.
    fn queue_up(&mut self, now: Mono, asked: &Asked<'_>, chosen: Chosen) -> Answer {
        let Some(engine) = self.engines.get(chosen.index) else {
            return Answer::Decided(self.decide(now, asked, &Ok(chosen)));
        };
        let home = Arc::clone(&engine.facts.engine);
        let block_size = engine.pools.first().map_or(1, |pool| pool.block_size);
        let ticket = self.queue.new_ticket();
        let held = self.held_by(asked.tenant);
        let longest = self.settings.queue_time;
        let mut waiter = Waiter::new(now, ticket, asked.request, longest, (asked.tenant, held), home);
        waiter.need = chosen.weighed.need.map_or(Blocks::ZERO, |need| need.blocks(block_size));
        (waiter.engines, waiter.claims) = (chosen.candidates, chosen.claims(asked.barred));
        let (waiting, _) = self.queue.at(&waiter.home);
        if waiting >= self.settings.queue_depth || self.queue.is_full() {
            let Some(displaced) = self.queue.displaced_by(&waiter) else {
                return Answer::Decided(self.deny_full(now, asked, chosen));
            };
            self.displace(now, displaced);
        }
        // It has come, and waits like others from now on.
        self.came_back(now, asked.key, chosen.weighed.denied);
        self.queue.push(waiter);
        self.sort_queue(now, 0);
        Answer::Wait(ticket)
    }

    fn deny_full(&mut self, now: Mono, asked: &Asked<'_>, mut chosen: Chosen) -> Decision {
        chosen.weighed.retry_after = self.behind_the_queue(now, &chosen);
        self.deny(now, asked.request, Reason::QueueFull, Some((chosen.index, &chosen.weighed)))
    }

    /// One that waits must go, for another comes before it.
    fn displace(&mut self, now: Mono, ticket: Ticket) {
        let Some(waiter) = self.queue.take(ticket) else { return };
        let request = waiter.question.request(now.since(waiter.since));
        let (tenant, key) = (waiter.tenant, self.key(&request));
        let asked = Asked { request: &request, tenant, barred: Engines::default(), key };
        let decision = match self.choose(now, &asked) {
            Ok(chosen) => self.deny_full(now, &asked, chosen),
            Err(reason) => self.deny(now, &request, reason, None),
        };
        self.queue.answers.push_back((ticket, decision));
    }

    /// When there is room for all that wait at an engine, and for one more.
    pub(crate) fn behind_the_queue(&self, now: Mono, chosen: &Chosen) -> Option<Duration> {
        let engine = self.engines.get(chosen.index)?;
        let (_, waiting) = self.queue.at(&engine.facts.engine);
        let pool = engine.pools.get(chosen.weighed.rank.unwrap_or(0));
        let by_forecast = chosen.weighed.terms.is_some_and(|terms| terms.peak.is_some());
        let drain = pool.map(|pool| if by_forecast { &pool.drain } else { &pool.promised_drain });
        let behind = drain.and_then(|drain| drain.wait_for(now, chosen.weighed.excess + waiting));
        behind.max(chosen.weighed.retry_after)
    }

    /// What the requests of a tenant may come to need, on all engines.
    fn held_by(&self, tenant: Slot) -> Blocks {
        self.engines.iter().map(|engine| engine.ledger.of_tenant(tenant).0).sum()
    }

    fn sort_queue(&mut self, now: Mono, from: usize) {
        let engines = &self.engines;
        let held = |tenant| engines.iter().map(|engine| engine.ledger.of_tenant(tenant).0).sum();
        self.queue.sort(now, self.settings.queue_time, from, held);
    }

    /// Something has changed at `engines`: answers those who waited for it.
    pub(crate) fn serve(&mut self, now: Mono, engines: Engines) {
        if self.queue.is_empty() {
            return;
        }
        self.sort_queue(now, 0);
        let mut place = 0;
        while let Some(waiter) = self.queue.get(place) {
            let due = now >= waiter.deadline || waiter.engines.meets(engines);
            let answered = due && self.look_at(now, place);
            if answered {
                // What its tenant holds has changed.
                self.sort_queue(now, place);
            } else {
                place += 1;
            }
        }
    }

    /// Asks again for the one in place `place`; returns whether it was answered and is gone.
    fn look_at(&mut self, now: Mono, place: usize) -> bool {
        let barred = self.queue.barred_from(place);
        let Some(waiter) = self.queue.get(place).cloned() else { return false };
        let request = waiter.question.request(now.since(waiter.since));
        let asked = Asked { request: &request, tenant: waiter.tenant, barred, key: self.key(&request) };
        let decision = match self.remembered(now, &request) {
            Ok(Some(decision)) => decision,
            // Its id was given to another request meanwhile: this one is asked as if it had none.
            Ok(None) | Err(_) => match self.choose(now, &asked) {
                Ok(chosen) if chosen.weighed.denied.is_some_and(Reason::passes) => {
                    if now < waiter.deadline {
                        if let Some(waiter) = self.queue.get_mut(place) {
                            waiter.engines = chosen.candidates;
                            waiter.claims = chosen.claims(barred);
                        }
                        return false;
                    }
                    self.deny(now, &request, Reason::WaitExpired, Some((chosen.index, &chosen.weighed)))
                }
                chosen => self.decide(now, &asked, &chosen),
            },
        };
        self.queue.take(waiter.ticket);
        self.queue.answers.push_back((waiter.ticket, decision));
        true
    }
}
