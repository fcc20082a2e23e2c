//! Is the engine serving, frozen, asleep, or dead? A state machine in which no state closes for ever.
//!
//! ```text
//!  Starting ──reading──▶ Ready ◀──a step──┬──────────────┐
//!     ▲                   │  └─frozen─▶ Suspect ─probe─▶ Stalled (probed on)
//!     │                   ├─ unreadable ─▶ Unknown ─reading─▶ Ready
//!  restart                ├─ sleep gauge ─▶ Asleep  ─gauge─▶ Ready
//!     └────── Down ◀──────┴─ refused, gone            Down ─reading─▶ Ready
//! ```
//!
//! An error of its device makes an engine suspect as well, and holds it: for a while steps count for nothing, and nothing
//! is let through.

use std::time::Duration;

use crate::{
    request::{Reason, ReservationId},
    snapshot::EngineState,
    units::Mono,
};

/// A gap between two steps is healthy up to this many times the longest one seen.
const GAP_FACTOR: u32 = 10;
/// An engine is never suspected before this time without a step.
const SHORTEST_FREEZE: Duration = Duration::from_secs(2);
/// And always after this.
const LONGEST_FREEZE: Duration = Duration::from_secs(60);
/// Without a reading for so long, an engine's state is not known.
const UNREAD: Duration = Duration::from_secs(30);
/// With an answer that tells nothing (401, no series), after this.
const UNREADABLE: Duration = Duration::from_secs(3);
/// An engine that has yet to answer, and at whose address something listens that does not speak as it should, is only
/// observed after this.
const UNANSWERED: Duration = Duration::from_secs(30);
/// And one that says nothing, for it may listen before it has loaded its model, after this.
const SILENT: Duration = Duration::from_mins(10);
/// A stalled engine is given one real request each this often.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// A planned stop that has not ended the engine by then was called off.
const LONGEST_DRAIN: Duration = Duration::from_mins(10);
/// After the death of a process, figures of the others may still move for so long: outputs that were on their way.
const AFTERGLOW: Duration = Duration::from_secs(5);
/// Readings in a row that found requests lost in an idle engine before it is suspected.
const LOST_BEFORE_SUSPECT: u32 = 3;

/// How an engine fares.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    pub(crate) state: EngineState,
    pub(crate) since: Mono,
    pub(crate) why: String,
    /// `not_before` of the reading that last showed a step, or of the first reading.
    moved_at: Option<Mono>,
    /// Longest gap between two steps seen while steps were due.
    longest_gap: Duration,
    /// Whether steps were due at the last reading.
    was_busy: bool,
    /// When a good reading was last made.
    read_at: Option<Mono>,
    /// Since when something listens there without answering, while it has yet to answer.
    unanswered_since: Option<Mono>,
    /// Since when a process that it cannot do without is dead: only a step shows otherwise.
    dead: Option<Mono>,
    /// Until then it is held, for its device has failed.
    held: Option<Mono>,
    /// What the scheduler says that explains a freeze; empty: nothing.
    pub(crate) evidence: String,
    /// The one request let through to a suspect engine.
    probe: Option<(ReservationId, Mono)>,
    /// Probes that showed no step.
    failed_probes: u32,
    /// Readings in a row in which requests admitted to an idle engine had never shown.
    lost: u32,
    /// Time from being found to being ready, of the last start.
    pub(crate) load_time: Option<Duration>,
    found_at: Mono,
}

/// What a reading says of liveness.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pulse {
    pub(crate) moved: bool,
    /// Steps are due.
    pub(crate) busy: bool,
    pub(crate) asleep: bool,
    /// The idle rule found requests of ours that never showed.
    pub(crate) lost: bool,
}

impl Liveness {
    pub(crate) fn new(now: Mono) -> Self {
        Self {
            state: EngineState::Starting,
            since: now,
            why: "found; has not answered yet".into(),
            moved_at: None,
            longest_gap: Duration::ZERO,
            was_busy: false,
            read_at: None,
            unanswered_since: None,
            dead: None,
            held: None,
            evidence: String::new(),
            probe: None,
            failed_probes: 0,
            lost: 0,
            load_time: None,
            found_at: now,
        }
    }

    /// Changes the state; returns whether it is another one.
    pub(crate) fn enter(&mut self, now: Mono, state: EngineState, why: impl Into<String>) -> bool {
        if self.state == state {
            return false;
        }
        if matches!(state, EngineState::Starting | EngineState::Down) {
            self.found_at = now;
            (self.moved_at, self.read_at, self.held) = (None, None, None);
        }
        if state == EngineState::Ready && matches!(self.state, EngineState::Starting | EngineState::Down) {
            self.load_time = Some(now.since(self.found_at));
        }
        (self.dead, self.unanswered_since) = (None, None);
        if state != EngineState::Stalled {
            (self.probe, self.failed_probes) = (None, 0);
        }
        (self.state, self.since, self.why) = (state, now, why.into());
        true
    }

    /// Longest time without a step that is still healthy.
    pub(crate) fn freeze_bound(&self) -> Duration {
        (self.longest_gap * GAP_FACTOR).clamp(SHORTEST_FREEZE, LONGEST_FREEZE)
    }

    /// Takes in a good reading made at `read`; returns whether the state changed.
    pub(crate) fn pulse(&mut self, now: Mono, read: Mono, pulse: Pulse) -> bool {
        self.read_at = Some(read);
        let was_busy = std::mem::replace(&mut self.was_busy, pulse.busy);
        if self.state == EngineState::Draining && now.since(self.since) < LONGEST_DRAIN {
            return false;
        }
        // What the others still hand out for a dead EngineCore are steps of before.
        if self.dead.is_some_and(|dead| read.since(dead) < AFTERGLOW) {
            return false;
        }
        // Steps of what was under way, or of another device.
        if self.is_held(now) {
            self.moved_at = if pulse.moved { Some(read) } else { self.moved_at };
            return false;
        }
        if pulse.asleep {
            return self.enter(now, EngineState::Asleep, "the engine reports sleep mode");
        }
        if pulse.moved {
            // A gap longer than the bound is a freeze that ended, not a healthy gap.
            if let Some(moved) = self.moved_at.filter(|_| was_busy) {
                let gap = read.since(moved);
                if gap < self.freeze_bound() {
                    self.longest_gap = self.longest_gap.max(gap);
                }
            }
            (self.moved_at, self.lost) = (Some(read), 0);
            return self.enter(now, EngineState::Ready, "answers and makes progress");
        }
        if self.dead.is_some() {
            return false;
        }
        self.lost = self.lost.saturating_add(u32::from(pulse.lost));
        let moved = *self.moved_at.get_or_insert(read);
        match self.state {
            EngineState::Suspect | EngineState::Stalled => self.judge_probe(now),
            _ if pulse.busy && read.since(moved) > self.freeze_bound() => {
                let seconds = read.since(moved).as_secs_f64();
                self.enter(
                    now,
                    EngineState::Suspect,
                    self.with_evidence(format!("requests are due, but no step for {seconds:.1} s")),
                )
            }
            _ if self.lost >= LOST_BEFORE_SUSPECT => {
                let lost = self.lost;
                self.enter(
                    now,
                    EngineState::Suspect,
                    format!("{lost} admitted requests in a row never showed"),
                )
            }
            EngineState::Ready => false,
            _ => self.enter(now, EngineState::Ready, "answers"),
        }
    }

    /// `why`, with what the scheduler says.
    fn with_evidence(&self, why: String) -> String {
        if self.evidence.is_empty() { why } else { format!("{why}: {}", self.evidence) }
    }

    /// A probe that has had its time without a step has failed.
    fn judge_probe(&mut self, now: Mono) -> bool {
        let Some((_, sent)) = self.probe else { return false };
        if now.since(sent) <= self.freeze_bound() {
            return false;
        }
        (self.probe, self.failed_probes) = (None, self.failed_probes.saturating_add(1));
        let why = format!("{}, and a request let through made no step", self.why);
        let why = if self.why.contains(&self.evidence) { why } else { self.with_evidence(why) };
        self.state == EngineState::Suspect && self.enter(now, EngineState::Stalled, why)
    }

    /// A scrape was answered, but tells nothing of the engine.
    pub(crate) fn unreadable(&mut self, now: Mono, why: &str) -> bool {
        let stale = self.read_at.is_none_or(|read| now.since(read) > UNREADABLE);
        let open = !matches!(self.state, EngineState::Draining | EngineState::Asleep) && !self.is_held(now);
        stale
            && open
            && self.enter(now, EngineState::Unknown, format!("alive, but metrics are unreadable: {why}"))
    }

    /// Something listens at its address and does not answer, for `why`; `None`: it says nothing. One that has yet to answer is then only observed,
    /// for it may never; one that is down as well where its processes are not `seen`, which would tell of a new start.
    /// Returns whether the state changed.
    pub(crate) fn unanswered(&mut self, now: Mono, why: Option<&str>, seen: bool) -> bool {
        if self.state != EngineState::Starting && (self.state != EngineState::Down || seen) {
            return false;
        }
        let since = *self.unanswered_since.get_or_insert(now);
        let why_not = why.unwrap_or("it does not answer");
        now.since(since) >= if why.is_some() { UNANSWERED } else { SILENT }
            && self.enter(
                now,
                EngineState::Unknown,
                format!("only observed, for it cannot be asked: {why_not}"),
            )
    }

    /// Nothing listens at its address.
    pub(crate) const fn refused(&mut self) {
        self.unanswered_since = None;
    }

    /// A process that it cannot do without is dead. Where `others_answer`, only a step after a while shows otherwise.
    pub(crate) fn died(&mut self, now: Mono, why: String, others_answer: bool) {
        self.enter(now, EngineState::Down, why);
        self.dead = if others_answer { self.dead.or(Some(now)) } else { None };
    }

    /// Whether it was found dead after `asked`: a reading that was asked for then says nothing of what lives now.
    pub(crate) fn ended_after(&self, asked: Mono) -> bool {
        self.state == EngineState::Down && asked < self.since
    }

    /// Its device has failed: nothing is let through for `hold`, then one request at a time until a step is seen. Returns
    /// whether the state changed.
    pub(crate) fn device_failed(&mut self, now: Mono, hold: Duration, why: String) -> bool {
        if !matches!(
            self.state,
            EngineState::Ready | EngineState::Unknown | EngineState::Suspect | EngineState::Stalled
        ) {
            return false;
        }
        let changed = self.enter(now, EngineState::Suspect, why.clone());
        (self.held, self.why) = (self.held.max(Some(now + hold)), why);
        changed
    }

    fn is_held(&self, now: Mono) -> bool {
        self.held.is_some_and(|until| now < until)
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now: Mono) -> bool {
        if matches!(self.state, EngineState::Suspect | EngineState::Stalled) && !self.is_held(now) {
            return self.judge_probe(now);
        }
        let unread = self.read_at.is_some_and(|read| now.since(read) > UNREAD);
        let why = "no reading for 30 s; the ledger alone decides";
        unread && self.state == EngineState::Ready && self.enter(now, EngineState::Unknown, why)
    }

    /// Whether a request may go to the engine in its state.
    pub(crate) fn gate(&self, now: Mono) -> Gate {
        if let Some(until) = self.held.filter(|until| now < *until && self.state != EngineState::Down) {
            return Gate::Closed(Reason::EngineSuspect, Some(until.since(now)));
        }
        match self.state {
            EngineState::Ready | EngineState::Unknown => Gate::Open,
            EngineState::Starting => Gate::Closed(Reason::EngineStarting, self.load_left(now)),
            EngineState::Draining => Gate::Closed(Reason::EngineDraining, self.load_time),
            EngineState::Asleep => Gate::Closed(Reason::EngineAsleep, None),
            EngineState::Down => Gate::Closed(Reason::EngineDown, self.load_time),
            EngineState::Suspect => self.probe_gate(now, Reason::EngineSuspect, Duration::ZERO),
            EngineState::Stalled => self.probe_gate(now, Reason::EngineStalled, PROBE_INTERVAL),
        }
    }

    fn probe_gate(&self, now: Mono, reason: Reason, pause: Duration) -> Gate {
        match self.probe {
            Some((_, sent)) => {
                let wait = self.freeze_bound() + pause;
                Gate::Closed(reason, Some(wait.saturating_sub(now.since(sent))))
            }
            None if now.since(self.since) < pause => {
                Gate::Closed(reason, Some(pause.saturating_sub(now.since(self.since))))
            }
            None => Gate::Probe,
        }
    }

    /// What is left of the learned load time.
    fn load_left(&self, now: Mono) -> Option<Duration> {
        self.load_time.map(|load| load.saturating_sub(now.since(self.found_at)))
    }

    /// `id` was let through to find out whether the engine lives.
    pub(crate) fn probing(&mut self, now: Mono, id: ReservationId) {
        self.probe = Some((id, now));
    }

    /// A request ended; if it was the probe, another may go. Only a step reopens.
    pub(crate) fn probe_ended(&mut self, id: ReservationId) {
        if self.probe.is_some_and(|(probe, _)| probe == id) {
            self.probe = None;
        }
    }
}

/// Whether requests may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Yes, by the figures.
    Open,
    /// One, whatever the figures say: they may be stuck.
    Probe,
    /// No; with the time after which it may be otherwise.
    Closed(Reason, Option<Duration>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const STILL: Pulse = Pulse { moved: false, busy: true, asleep: false, lost: false };
    const MOVED: Pulse = Pulse { moved: true, busy: true, asleep: false, lost: false };
    const PROBE: ReservationId = ReservationId(7);

    fn frozen_at(seconds: f64) -> Liveness {
        let mut live = Liveness::new(at(0.0));
        live.pulse(at(0.1), at(0.1), MOVED);
        live.pulse(at(0.2), at(0.2), MOVED);
        live.pulse(at(seconds), at(seconds), STILL);
        live
    }

    #[test]
    fn a_reading_opens_an_engine_that_starts() {
        let mut live = Liveness::new(at(0.0));
        assert_eq!(live.gate(at(0.0)), Gate::Closed(Reason::EngineStarting, None));
        assert!(live.pulse(at(18.0), at(18.0), Pulse { busy: false, ..STILL }));
        assert_eq!(live.gate(at(18.0)), Gate::Open);
        assert_eq!(live.load_time, Some(Duration::from_secs(18)));
    }

    #[test]
    fn one_that_listens_and_never_answers_is_only_observed_after_a_while() {
        let mut live = Liveness::new(at(0.0));
        assert!(!live.unanswered(at(1.0), Some("TLS"), true));
        live.refused();
        assert!(!live.unanswered(at(40.0), Some("TLS"), true), "nothing listened meanwhile");
        assert!(!live.unanswered(at(69.9), Some("TLS"), true));
        assert_eq!(live.gate(at(69.9)), Gate::Closed(Reason::EngineStarting, None));
        assert!(live.unanswered(at(70.0), Some("TLS"), true));
        assert_eq!((live.state, live.gate(at(70.0))), (EngineState::Unknown, Gate::Open));
        assert_eq!(live.why, "only observed, for it cannot be asked: TLS");
        let mut loads = Liveness::new(at(0.0));
        loads.unanswered(at(0.0), None, true);
        assert!(!loads.unanswered(at(599.9), None, true) && loads.unanswered(at(600.0), None, true));
        // Children of a dead API server may hold its socket. A new start is told by new processes.
        live.died(at(80.0), "killed".into(), false);
        live.unanswered(at(80.1), Some("TLS"), true);
        assert!(!live.unanswered(at(200.0), Some("TLS"), true));
        live.unanswered(at(201.0), Some("TLS"), false);
        assert!(live.unanswered(at(231.0), Some("TLS"), false));
    }

    #[test]
    fn running_requests_without_a_step_make_it_suspect_only_beyond_the_bound() {
        assert_eq!(frozen_at(2.1).state, EngineState::Ready);
        assert_eq!(frozen_at(2.3).state, EngineState::Suspect);
    }

    #[test]
    fn an_engine_with_slow_steps_is_given_ten_times_its_longest_gap() {
        let mut live = Liveness::new(at(0.0));
        for step in 0..4 {
            let now = at(f64::from(step));
            live.pulse(now, now, MOVED); // one step a second
        }
        assert_eq!(live.freeze_bound(), Duration::from_secs(10));
        live.pulse(at(12.9), at(12.9), STILL);
        assert_eq!(live.state, EngineState::Ready);
        live.pulse(at(13.1), at(13.1), STILL);
        assert_eq!(live.state, EngineState::Suspect);
    }

    #[test]
    fn a_suspect_engine_gets_one_probe_and_a_step_reopens_it() {
        let mut live = frozen_at(3.0);
        assert_eq!(live.gate(at(3.0)), Gate::Probe);
        live.probing(at(3.0), PROBE);
        assert!(matches!(live.gate(at(3.1)), Gate::Closed(Reason::EngineSuspect, Some(_))));
        assert!(live.pulse(at(3.2), at(3.2), MOVED));
        assert_eq!(live.gate(at(3.2)), Gate::Open);
    }

    #[test]
    fn a_failed_probe_stalls_it_and_it_is_probed_on_for_ever() {
        let mut live = frozen_at(3.0);
        live.probing(at(3.0), PROBE);
        assert!(live.tick(at(5.1)));
        assert_eq!(live.state, EngineState::Stalled);
        for round in 0..100 {
            let now = at(20.0 * f64::from(round + 1));
            assert_eq!(live.gate(now), Gate::Probe);
            live.probing(now, PROBE);
            live.pulse(now + Duration::from_secs(6), now, STILL);
        }
        live.pulse(at(5000.0), at(5000.0), MOVED);
        assert_eq!(live.gate(at(5000.0)), Gate::Open);
    }

    #[test]
    fn one_whose_device_failed_is_held_and_then_a_step_reopens_it() {
        let hold = Duration::from_secs(10);
        let mut live = frozen_at(0.3);
        assert!(live.device_failed(at(1.0), hold, "Xid 64".into()));
        live.pulse(at(5.0), at(5.0), MOVED);
        assert!(!live.unreadable(at(9.0), "HTTP status 500"));
        assert_eq!(live.gate(at(9.0)), Gate::Closed(Reason::EngineSuspect, Some(Duration::from_secs(2))));
        assert_eq!(live.gate(at(11.0)), Gate::Probe, "no state closes for ever");
        live.pulse(at(11.1), at(11.1), MOVED);
        assert_eq!(live.gate(at(11.1)), Gate::Open);
    }

    #[test]
    fn one_that_was_started_again_is_held_no_more() {
        let mut live = frozen_at(0.3);
        live.device_failed(at(1.0), Duration::from_secs(60), "Xid 79".into());
        live.enter(at(2.0), EngineState::Starting, "started again");
        live.pulse(at(20.0), at(20.0), Pulse { busy: false, ..STILL });
        assert_eq!(live.gate(at(20.0)), Gate::Open);
    }

    #[test]
    fn a_slow_scrape_changes_nothing_until_thirty_seconds_without_a_reading() {
        let mut live = frozen_at(0.3);
        assert!(!live.tick(at(29.0)));
        assert!(live.tick(at(30.4)));
        assert_eq!(live.state, EngineState::Unknown);
        assert_eq!(live.gate(at(30.4)), Gate::Open);
    }

    #[test]
    fn a_refused_connection_closes_and_the_next_reading_opens() {
        let mut live = frozen_at(0.3);
        assert!(live.enter(at(1.0), EngineState::Down, "nothing listens at its address"));
        assert_eq!(live.gate(at(1.0)), Gate::Closed(Reason::EngineDown, Some(Duration::from_millis(100))));
        assert!(live.pulse(at(9.0), at(9.0), Pulse { busy: false, ..STILL }));
        assert_eq!(live.load_time, Some(Duration::from_secs(8)));
    }

    #[test]
    fn requests_that_vanish_in_an_idle_engine_make_it_suspect() {
        let mut live = Liveness::new(at(0.0));
        let lost = Pulse { moved: false, busy: false, asleep: false, lost: true };
        live.pulse(at(1.0), at(1.0), MOVED);
        live.pulse(at(2.0), at(2.0), lost);
        live.pulse(at(3.0), at(3.0), lost);
        assert_eq!(live.state, EngineState::Ready);
        live.pulse(at(4.0), at(4.0), lost);
        assert_eq!(live.state, EngineState::Suspect);
    }
}
