//! Which engine a session was last sent to, so that its prefix is found in that engine's cache.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Sessions remembered. A table of fixed size in which a newer session may displace an older one.
const SLOTS: u64 = 4096;

/// Session key → engine index.
#[derive(Debug)]
pub(crate) struct Affinity {
    slots: Vec<Option<(u64, usize)>>,
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

    /// Engine of that session.
    pub(crate) fn engine(&self, key: &str) -> Option<usize> {
        let (hash, slot) = Self::hash(key);
        let (kept, engine) = (*self.slots.get(slot)?)?;
        (kept == hash).then_some(engine)
    }

    /// The session went to `engine`.
    pub(crate) fn note(&mut self, key: &str, engine: usize) {
        let (hash, slot) = Self::hash(key);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some((hash, engine));
        }
    }
}
