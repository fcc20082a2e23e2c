//! What the lock protects: the node, and all that must see each of its changes in order.

use std::collections::BTreeMap;

use gpuadmit_core::{
    node::Node,
    queue::Ticket,
    request::{Decision, Verdict},
    snapshot::Snapshot,
    units::Mono,
};
use tokio::sync::oneshot;

use crate::{page, promises, records::Journal};

#[derive(Debug)]
pub(super) struct Locked {
    pub(super) node: Node,
    /// What [`super::Handle::run_timeouts`] sleeps for; `None`: for nothing.
    pub(super) armed: Option<Mono>,
    pub(super) page: Option<page::Writer>,
    pub(super) journal: Option<Journal>,
    pub(super) promises: Option<promises::Writer>,
    /// Where those who wait for room are answered; as many as the node lets wait.
    pub(super) waiting: BTreeMap<Ticket, oneshot::Sender<Decision>>,
}

impl Locked {
    pub(super) fn new(node: Node) -> Self {
        Self { node, armed: None, page: None, journal: None, promises: None, waiting: BTreeMap::new() }
    }

    /// Answers of the node to those who waited, to be sent without the lock.
    pub(super) fn answers(&mut self, now: Mono) -> Vec<(oneshot::Sender<Decision>, Decision)> {
        let mut answers = Vec::new();
        while let Some((ticket, decision)) = self.node.poll_grant() {
            if let Some(journal) = &mut self.journal {
                journal.answer(now, ticket, &decision, &self.node);
            }
            self.keep(&decision);
            answers.extend(self.waiting.remove(&ticket).map(|waiting| (waiting, decision)));
        }
        answers
    }

    /// Shows what the last call changed.
    pub(super) fn show(&mut self, now: Mono) {
        let touched = self.node.take_touched();
        if let Some(page) = &mut self.page {
            page.touched(touched, &self.node, now);
        }
    }

    /// Keeps what was promised for the next run.
    pub(super) fn keep(&mut self, decision: &Decision) {
        if let (Some(promises), Verdict::Admit(admit)) = (&mut self.promises, &decision.verdict)
            && !promises.has(admit.reservation)
            && let Some(promise) = self.node.promise(admit.reservation)
        {
            promises.give(&promise);
        }
    }

    /// Shows everything.
    pub(super) fn refresh(&mut self, now: Mono) -> Snapshot {
        let snapshot = self.node.snapshot(now);
        if let Some(promises) = &mut self.promises {
            promises.sweep(&self.node);
        }
        if let Some(page) = &mut self.page {
            page.refresh(&self.node, &snapshot);
        }
        snapshot
    }
}
