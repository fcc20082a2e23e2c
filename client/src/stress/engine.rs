//! What the engine tells of itself meanwhile: preemptions by its own counter, its pool by the daemon's readings.

use std::time::Duration;

use gpuadmit_client::{CALL_DEADLINE, Connection, v1::StatusRequest, within};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::target::Target;

/// How often the daemon is asked for the pool.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// vLLM's counter, as it is called with and without the suffix of newer formats.
const COUNTER: &str = "vllm:num_preemptions";

/// Preemptions since the engine was started, all ranks together; `None`: it does not tell.
pub(super) async fn preemptions(target: &Target) -> Option<u64> {
    counted(&target.address.get("/metrics", &target.headers()).await.ok()?)
}

fn counted(metrics: &str) -> Option<u64> {
    let samples = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(COUNTER)?;
        let rest = rest.strip_prefix("_total").unwrap_or(rest);
        let value = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        // Counters are written as floats.
        value.split_whitespace().next()?.split('.').next()?.parse::<u64>().ok()
    });
    samples.fold(None, |sum: Option<u64>, one| Some(sum.unwrap_or(0).saturating_add(one)))
}

impl Target {
    /// Headers of each request.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let json = ("content-type", "application/json".to_owned());
        let key = self.api_key.as_ref().map(|key| ("authorization", format!("Bearer {key}")));
        std::iter::once(json).chain(key).collect()
    }
}

/// The pool while the load ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Watched {
    /// Most blocks in use that the engine reported, of the pool that was fullest, and that pool's blocks.
    pub(crate) fullest: Option<(u64, u64)>,
    /// Most requests that waited in the engine.
    pub(crate) waiting: Option<u64>,
    /// Requests that did not ask, at most.
    pub(crate) bypass: Option<u64>,
}

impl Watched {
    /// Whether a pool was full.
    pub(crate) fn was_full(&self) -> Option<bool> {
        self.fullest.map(|(used, total)| used >= total)
    }

    fn see(&mut self, engine: &gpuadmit_client::v1::Engine) {
        for pool in &engine.pools {
            if let (Some(used), Some(total)) = (pool.blocks_reported, pool.blocks_total) {
                let share =
                    |(used, total): (u64, u64)| u128::from(used) * 1_000_000 / u128::from(total.max(1));
                if self.fullest.is_none_or(|before| share((used, total)) > share(before)) {
                    self.fullest = Some((used, total));
                }
            }
            self.waiting = self.waiting.max(pool.waiting);
        }
        self.bypass = self.bypass.max(engine.bypass_requests);
    }
}

/// Looks at the pool again and again until it is `ended`.
pub(super) async fn watch_pool(
    connection: Connection,
    id: String,
    mut ended: watch::Receiver<bool>,
) -> Watched {
    let mut watched = Watched::default();
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = ended.wait_for(|ended| *ended) => return watched,
        }
        let request = within(CALL_DEADLINE, StatusRequest { events: Some(0) });
        let Ok(status) = connection.node().status(request).await else { continue };
        if let Some(engine) = status.get_ref().engines.iter().find(|engine| engine.id == id) {
            watched.see(engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuadmit_client::v1::{Engine, Pool};

    use super::*;

    #[test]
    fn preemptions_of_all_ranks_add_up() {
        let metrics = "# TYPE vllm:num_preemptions counter\n\
            vllm:num_preemptions_total{engine=\"0\",model_name=\"a}b\"} 3.0\n\
            vllm:num_preemptions_total{engine=\"1\",model_name=\"m\"} 4.0\n\
            vllm:num_preemptions_created{engine=\"0\"} 1.7e+09\n";
        assert_eq!(counted(metrics), Some(7));
        assert_eq!(counted("vllm:num_preemptions 2\n"), Some(2));
        assert_eq!(counted("vllm:num_requests_running 2\n"), None);
    }

    #[test]
    fn the_fullest_pool_counts() {
        let pool = |used, total, waiting| Pool {
            blocks_reported: Some(used),
            blocks_total: Some(total),
            waiting: Some(waiting),
            ..Pool::default()
        };
        let mut watched = Watched::default();
        assert_eq!(watched.was_full(), None);
        watched.see(&Engine { pools: vec![pool(90, 100, 1), pool(150, 200, 3)], ..Engine::default() });
        assert_eq!((watched.fullest, watched.waiting), (Some((90, 100)), Some(3)));
        assert_eq!(watched.was_full(), Some(false));
        watched.see(&Engine { pools: vec![pool(1, 100, 0), pool(200, 200, 0)], ..Engine::default() });
        assert_eq!((watched.fullest, watched.was_full()), (Some((200, 200)), Some(true)));
    }
}
