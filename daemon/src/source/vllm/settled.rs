//! When the source has looked once. Whoever still has to look holds a [`FirstLook`]; when none is left it has settled.

use std::sync::Arc;

use tokio::sync::watch;

/// Held until something was looked at for the first time, however that ended.
#[derive(Clone, Debug)]
pub(super) struct FirstLook(
    #[expect(dead_code, reason = "that it is dropped is what it says")] Arc<watch::Sender<()>>,
);

/// To wait for that.
#[derive(Clone, Debug)]
pub struct Settled(watch::Receiver<()>);

pub(super) fn pair() -> (FirstLook, Settled) {
    let (sender, receiver) = watch::channel(());
    (FirstLook(Arc::new(sender)), Settled(receiver))
}

impl Settled {
    /// Returns when nobody has to look any more.
    pub async fn wait(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::pair;

    #[tokio::test]
    async fn it_settles_when_the_last_has_looked() {
        let (first, settled) = pair();
        let second = first.clone();
        drop(first);
        let early = timeout(Duration::from_millis(20), settled.clone().wait()).await;
        assert!(early.is_err(), "one has not looked yet");
        drop(second);
        settled.wait().await;
    }
}
