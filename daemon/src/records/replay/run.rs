//! One run of the daemon, taken through a node again.

use std::collections::BTreeMap;

use gpuadmit_core::{
    node::Node,
    queue::{Answer, Ticket},
    request::{Completion, Outcome, Reference, Request, ReservationId, Verdict},
    settings::{Mode, Settings},
    units::{Mono, Tokens},
};

use super::{Policy, Report};
use crate::config::Config;
use crate::records::line::{Admit, Decided, Head, Input, Line, Of, session};

/// What a request is given back with that was not admitted when it was recorded.
const NOT_SENT: Completion =
    Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };

/// A node, and how far it follows what was recorded.
pub(super) struct Run {
    node: Node,
    epoch: u32,
    part: u64,
    policy: Policy,
    /// Whether its own decisions are carried out, and not the recorded ones.
    exact: bool,
    /// Recorded reservations and those that stand for them here.
    reservations: BTreeMap<u64, ReservationId>,
    /// Requests that wait, by their tickets.
    waiting: BTreeMap<u64, Box<Admit>>,
    /// What they were answered here and not yet when it was recorded.
    answers: BTreeMap<Ticket, (Decided, Option<ReservationId>)>,
}

impl Run {
    pub(super) fn new(head: Head, policy: &Policy, report: &mut Report) -> Self {
        let (recorded, settings) = (head.config.settings(), policy.settings(&head.config));
        let exact = head.part == 0 && !head.handed_over && settings == recorded;
        report.begins(head.part);
        let settings = if exact { settings } else { following(settings) };
        let mut node = Node::new(settings, head.epoch);
        if let Some(lengths) = head.lengths {
            node.take_up(lengths.into());
        }
        let (reservations, waiting, answers) = Default::default();
        let policy = policy.clone();
        Self { node, epoch: head.epoch, part: head.part, policy, exact, reservations, waiting, answers }
    }

    pub(super) const fn goes_on_with(&self, head: &Head) -> bool {
        head.epoch == self.epoch && head.part == self.part + 1
    }

    pub(super) fn next(mut self) -> Self {
        self.part += 1;
        self
    }

    pub(super) fn take(&mut self, line: Line, report: &mut Report) {
        let now = Mono(line.at_ns);
        match line.input {
            Input::Fact(fact) => self.node.observe(now, fact.observation()),
            Input::Admit(admit) => self.admit(now, admit, report),
            Input::Answer { ticket, decision } => self.answer(now, ticket, &decision, report),
            Input::Cancel { ticket } => {
                self.waiting.remove(&ticket);
                self.node.cancel(now, Ticket(ticket));
            }
            Input::Progress { of, generated } => {
                if let Some(of) = reference(&self.reservations, &of) {
                    self.node.progress(now, of, Tokens(generated));
                }
            }
            Input::Complete { of, outcome, output, prompt } => {
                let (output_tokens, prompt_tokens) = (output.map(Tokens), prompt.map(Tokens));
                let completion = Completion { outcome: outcome.into(), output_tokens, prompt_tokens };
                if let Some(of) = reference(&self.reservations, &of) {
                    self.node.complete(now, of, completion);
                }
                if let Of::Id(id) = of {
                    self.reservations.remove(&id);
                }
            }
            Input::Broken { session: number } => self.node.session_broken(now, session(number)),
            Input::Adopt { session: number, ids } => {
                let ids: Vec<_> = ids.iter().filter_map(|id| self.reservations.get(id).copied()).collect();
                self.node.adopt(now, session(number), &ids);
            }
            Input::Timeout {} => self.node.handle_timeout(now),
            Input::Reload(config) => self.reconfigure(now, &config),
            Input::Lost { lines } => report.lost_lines += lines,
        }
        self.fetch_answers();
    }

    /// The recorded daemon was reconfigured: the policy is asked what it makes of that.
    fn reconfigure(&mut self, now: Mono, config: &Config) {
        let (recorded, settings) = (config.settings(), self.policy.settings(config));
        self.exact &= settings == recorded;
        self.node.reconfigure(now, if self.exact { settings } else { following(settings) });
    }

    fn fetch_answers(&mut self) {
        while let Some((ticket, decision)) = self.node.poll_grant() {
            let decided = (Decided::of(&decision, &self.node), reservation(&decision.verdict));
            self.answers.insert(ticket, decided);
        }
    }

    fn admit(&mut self, now: Mono, recorded: Box<Admit>, report: &mut Report) {
        let request = recorded.request.borrow();
        if let Some(ticket) = recorded.decision.waits
            && !self.exact
        {
            // Asked when it is answered: a policy that would not have let it wait says so then.
            self.waiting.insert(ticket, recorded);
            return;
        }
        let Some((decided, own)) = self.ask(now, &request, recorded.may_wait && self.exact) else { return };
        if recorded.decision.waits.is_none() || decided.waits.is_none() {
            self.settle(now, &request, &recorded.decision, (&decided, own), report);
        }
        if let Some(ticket) = recorded.decision.waits {
            self.waiting.insert(ticket, recorded);
        }
    }

    /// A request that waited was answered.
    fn answer(&mut self, now: Mono, ticket: u64, recorded: &Decided, report: &mut Report) {
        let Some(asked) = self.waiting.remove(&ticket) else { return };
        let request = asked.request.borrow();
        let decided = if self.exact {
            Some(self.answers.remove(&Ticket(ticket)).unwrap_or_default())
        } else {
            self.ask(now, &request, false)
        };
        if let Some((decided, own)) = decided {
            self.settle(now, &request, recorded, (&decided, own), report);
        }
    }

    /// Compares, and carries out what was recorded.
    fn settle(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        recorded: &Decided,
        (decided, own): (&Decided, Option<ReservationId>),
        report: &mut Report,
    ) {
        report.compare(now, request, recorded, decided, self.exact);
        let stands = self.follow(now, request, recorded, decided, own);
        match (recorded.reservation, stands) {
            (Some(recorded), Some(own)) => {
                self.reservations.insert(recorded, own);
            }
            (Some(_), None) if !self.exact => report.not_followed += 1,
            _ => {}
        }
    }

    fn ask(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        may_wait: bool,
    ) -> Option<(Decided, Option<ReservationId>)> {
        let answer = if may_wait {
            self.node.admit_or_wait(now, request)
        } else {
            self.node.admit(now, request).map(Answer::Decided)
        };
        let answer = answer.ok()?;
        let own = match &answer {
            Answer::Decided(decision) => reservation(&decision.verdict),
            Answer::Wait(_) => None,
        };
        Some((Decided::of_answer(&answer, &self.node), own))
    }

    /// Carries out what was recorded; returns the reservation that stands for the recorded one.
    fn follow(
        &mut self,
        now: Mono,
        request: &Request<'_>,
        recorded: &Decided,
        decided: &Decided,
        own: Option<ReservationId>,
    ) -> Option<ReservationId> {
        let own = own?;
        let there = recorded.reservation.is_some() && recorded.engine == decided.engine;
        if self.exact || there {
            return Some(own);
        }
        self.node.complete(now, Reference::Id(own), NOT_SENT);
        recorded.reservation?;
        self.ask(now, &Request { engine: recorded.engine.as_deref(), ..*request }, false)?.1
    }
}

/// The reservation here that a recorded one stands for.
fn reference<'a>(known: &BTreeMap<u64, ReservationId>, of: &'a Of) -> Option<Reference<'a>> {
    match of {
        Of::Id(id) => known.get(id).map(|id| Reference::Id(*id)),
        Of::Request { .. } => Some(of.reference()),
    }
}

const fn reservation(verdict: &Verdict) -> Option<ReservationId> {
    match verdict {
        Verdict::Admit(admit) => Some(admit.reservation),
        Verdict::Deny(_) => None,
    }
}

/// Settings under which a node says what it would deny, and can be made to admit it all the same.
fn following(settings: Settings) -> Settings {
    Settings { mode: Mode::Observe, engine_modes: BTreeMap::new(), ..settings }
}
