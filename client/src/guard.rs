//! A promise that is kept track of.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use gpuadmit_proto::v1::{Admitted, CompleteRequest, Outcome, denied::Reason};
use tokio::sync::mpsc;

use crate::session::{Order, by_id};

/// An admitted request. Hold it while the request runs; drop it, or better [`complete`](Self::complete) it, when the request
/// has ended, however it ended.
#[derive(Debug)]
#[must_use = "dropped, it tells the daemon that the request has ended"]
pub struct Guard {
    by: By,
    /// What is told of it once it is over.
    over: bool,
}

#[derive(Debug)]
enum By {
    /// The daemon keeps a reservation.
    Daemon { admitted: Box<Admitted>, orders: mpsc::Sender<Order> },
    /// The local budget does.
    Budget { tokens: u64, in_flight: Arc<AtomicU64> },
    /// Nobody does.
    Nobody,
}

impl Guard {
    pub(crate) fn of_daemon(admitted: Admitted, orders: mpsc::Sender<Order>) -> Self {
        Self { by: By::Daemon { admitted: Box::new(admitted), orders }, over: false }
    }

    pub(crate) const fn of_budget(tokens: u64, in_flight: Arc<AtomicU64>) -> Self {
        Self { by: By::Budget { tokens, in_flight }, over: false }
    }

    pub(crate) const fn of_nobody() -> Self {
        Self { by: By::Nobody, over: false }
    }

    /// The daemon's answer; `None` when there was none and the request was admitted without it.
    #[must_use]
    pub fn admitted(&self) -> Option<&Admitted> {
        match &self.by {
            By::Daemon { admitted, .. } => Some(admitted),
            By::Budget { .. } | By::Nobody => None,
        }
    }

    /// Where to send the request: `http://127.0.0.1:8000` or `unix:/path`. `None` without a daemon.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.admitted().map(|admitted| admitted.address.as_str())
    }

    /// What to forward as max_tokens; `None`: the client's own, or none.
    #[must_use]
    pub fn max_tokens(&self) -> Option<u64> {
        self.admitted()?.max_tokens
    }

    /// What to send as `X-Data-Parallel-Rank`.
    #[must_use]
    pub fn data_parallel_rank(&self) -> Option<u32> {
        self.admitted()?.data_parallel_rank
    }

    /// In observe mode: what enforce mode would have denied for.
    #[must_use]
    pub fn observed(&self) -> Option<Reason> {
        Reason::try_from(self.admitted()?.observed_reason?).ok()
    }

    /// The request has generated `tokens` output tokens so far, all sequences together. Tell of the first at once, for it
    /// shows how far the engine is with its prompts; then once a second is enough, which renews the lease.
    pub fn progress(&self, tokens: u64) {
        if let By::Daemon { admitted, orders } = &self.by {
            // Where it cannot be told now, the next one tells more.
            let _ = orders.try_send(Order::Progress(admitted.reservation_id, tokens));
        }
    }

    /// The request has ended. The counts, where known (OpenAI's `usage`), are what the daemon learns from.
    pub fn complete(mut self, outcome: Outcome, output_tokens: Option<u64>, prompt_tokens: Option<u64>) {
        self.end(outcome, output_tokens, prompt_tokens);
    }

    fn end(&mut self, outcome: Outcome, output_tokens: Option<u64>, prompt_tokens: Option<u64>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        match &self.by {
            By::Daemon { admitted, orders } => {
                let reservation = by_id(admitted.reservation_id);
                let outcome = outcome.into();
                let request = CompleteRequest { reservation, outcome, output_tokens, prompt_tokens };
                // Where it cannot be told, the lease ends and the engine shows the rest.
                let _ = orders.try_send(Order::Complete(request));
            }
            By::Budget { tokens, in_flight } => drop(in_flight.fetch_sub(*tokens, Ordering::AcqRel)),
            By::Nobody => {}
        }
    }
}

impl Drop for Guard {
    /// Whoever forgot to say how it ended, or could not, gave it up.
    fn drop(&mut self) {
        self.end(Outcome::Cancelled, None, None);
    }
}
