//! What a connection does: how many calls are open on it, and since when there has been none.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Shared by a connection and its calls.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    open: u32,
    quiet_since: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(State { open: 0, quiet_since: Instant::now() }))
    }
}

impl Activity {
    /// A call begins.
    pub(super) fn begin(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.open = state.open.saturating_add(1);
    }

    /// A call has ended.
    pub(super) fn end(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.open = state.open.saturating_sub(1);
        state.quiet_since = Instant::now();
    }

    /// When the connection will have been without a call for `idle`; while a call is open, `idle` from now.
    pub(super) fn idle_at(&self, idle: Duration) -> Instant {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.open > 0 { Instant::now() + idle } else { state.quiet_since + idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_an_open_call_is_not_idle() {
        let activity = Activity::default();
        activity.begin();
        tokio::time::advance(10 * IDLE).await;
        assert!(activity.idle_at(IDLE) > Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_end_of_the_last_call() {
        let activity = Activity::default();
        activity.begin();
        tokio::time::advance(IDLE).await;
        activity.end();
        assert_eq!(activity.idle_at(IDLE), Instant::now() + IDLE);
    }
}
