//! Which engine a session was last sent to, and how long it was, so that its prefix is found in that engine's cache.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::units::Tokens;

/// Sessions remembered. A table of fixed size in which a newer session may displace an older one.
const SLOTS: u64 = 4096;

/// Where a session was last sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// Index of the engine.
    pub(crate) engine: usize,
    /// Prompt tokens that it was sent with.
    pub(crate) prompt: Tokens,
    /// Tokens that the engine had written to its pool by then.
    pub(crate) written: Tokens,
}

/// Session key → where it was last sent.
#[derive(Debug)]
pub(crate) struct Affinity {
    slots: Vec<Option<(u64, Home)>>,
}

impl Default for Affinity {
    fn default() -> Self {
        let slots = usize::try_from(SLOTS).unwrap_or_default();
        Self { slots: vec![None; slots] }
    }
}

impl Affinity {
    fn hash(key: &str) -> (u64, usize) {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        (hash, usize::try_from(hash % SLOTS).unwrap_or_default())
    }

    /// Where that session was last sent.
    pub(crate) fn home(&self, key: &str) -> Option<Home> {
        let (hash, slot) = Self::hash(key);
        let (kept, home) = (*self.slots.get(slot)?)?;
        (kept == hash).then_some(home)
    }

    /// The cache of an engine is gone.
    pub(crate) fn forget(&mut self, engine: usize) {
        for slot in &mut self.slots {
            *slot = slot.filter(|(_, home)| home.engine != engine);
        }
    }

    /// An engine is no longer kept: those behind it move up.
    pub(crate) fn remove(&mut self, engine: usize) {
        self.forget(engine);
        for (_, home) in self.slots.iter_mut().flatten().filter(|(_, home)| home.engine > engine) {
            home.engine = home.engine.saturating_sub(1);
        }
    }

    /// The session went to `home`.
    pub(crate) fn note(&mut self, key: &str, home: Home) {
        let (hash, slot) = Self::hash(key);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some((hash, home));
        }
    }
}
