//! Bounds on how much is written, so that a storm of one thing neither floods the log nor hides another.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Time over which is counted.
pub(super) const WINDOW: Duration = Duration::from_secs(30);
/// Most of one kind that is written in that time: one for each of the 64 engines, and as many again.
pub(super) const BURST: u32 = 128;
/// Most kinds that are told apart; what is beyond them is left out while they last.
const MOST_KINDS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    written: u32,
    left_out: u64,
    /// Of those left out, how many were told.
    told: u64,
}

/// Counts what is written, by kind.
#[derive(Debug)]
pub(super) struct Limit<K> {
    windows: HashMap<K, Window>,
    /// Left out because there are too many kinds, and when such were last told.
    strangers: u64,
    strangers_told: Option<Instant>,
}

impl<K> Default for Limit<K> {
    fn default() -> Self {
        Self { windows: HashMap::new(), strangers: 0, strangers_told: None }
    }
}

impl<K: Copy + Eq + Hash> Limit<K> {
    /// Whether one more of `kind` may be written; counts it either way.
    pub(super) fn allows(&mut self, kind: K, now: Instant) -> bool {
        if self.windows.len() >= MOST_KINDS && !self.windows.contains_key(&kind) {
            self.strangers = self.strangers.saturating_add(1);
            return false;
        }
        let window =
            self.windows.entry(kind).or_insert(Window { since: now, written: 0, left_out: 0, told: 0 });
        if now.duration_since(window.since) >= WINDOW {
            (window.since, window.written) = (now, 0);
        }
        let allowed = window.written < BURST;
        if allowed {
            window.written += 1;
        } else {
            window.left_out = window.left_out.saturating_add(1);
        }
        allowed
    }

    /// What was left out and not yet told, by kind (`None`: all the rest): when that begins, and when its time is over.
    pub(super) fn left_out(&mut self, now: Instant) -> Vec<(Option<K>, u64)> {
        let mut told = Vec::new();
        self.windows.retain(|kind, window| {
            let over = now.duration_since(window.since) >= WINDOW;
            let new = window.left_out.saturating_sub(window.told);
            if new > 0 && (over || window.told == 0) {
                told.push((Some(*kind), new));
                window.told = window.left_out;
            }
            !over
        });
        let due = self.strangers_told.is_none_or(|told| now.duration_since(told) >= WINDOW);
        if self.strangers > 0 && due {
            told.push((None, std::mem::take(&mut self.strangers)));
            self.strangers_told = Some(now);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_cut_off_and_counted_while_others_pass() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        let written = (0..1000).filter(|_| limit.allows('a', start)).count();
        assert_eq!(written, 128);
        assert!(limit.allows('b', start));
        assert_eq!(limit.left_out(start + WINDOW / 3), [(Some('a'), 872)], "that it begins is told at once");
        assert_eq!((0..10).filter(|_| limit.allows('a', start + WINDOW / 2)).count(), 0);
        assert_eq!(limit.left_out(start + WINDOW / 2), [], "the rest is told at the end");
        assert_eq!(limit.left_out(start + WINDOW), [(Some('a'), 10)]);
        assert_eq!(limit.left_out(start + WINDOW), []);
        assert!(limit.allows('a', start + WINDOW));
    }

    #[test]
    fn what_was_left_out_is_told_though_the_storm_goes_on() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        assert_eq!((0..200).filter(|_| limit.allows('a', start)).count(), 128);
        assert_eq!((0..200).filter(|_| limit.allows('a', start + WINDOW)).count(), 128);
        assert_eq!(limit.left_out(start + 2 * WINDOW), [(Some('a'), 144)]);
    }

    #[test]
    fn kinds_are_bounded() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        let written = (0..2000_u32).filter(|kind| limit.allows(*kind, start)).count();
        assert_eq!(written, 1024);
        assert_eq!(limit.left_out(start), [(None, 976)]);
        assert!(!limit.allows(5000, start));
        assert_eq!(limit.left_out(start + WINDOW / 2), []);
        assert!(limit.left_out(start + WINDOW).contains(&(None, 1)));
    }
}
