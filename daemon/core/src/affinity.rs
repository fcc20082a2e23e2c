//! Which engine a session was last sent to, and how long it was, so that its prefix is found in that engine's cache.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::units::Tokens;

/// Sessions remembered. A table of fixed size in which a newer session may displace an older one.
const SLOTS: u64 = 4096;

/// Session key → engine index and prompt tokens.
#[derive(Debug)]
pub(crate) struct Affinity {
    slots: Vec<Option<(u64, usize, Tokens)>>,
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

    /// Engine of that session, and the prompt tokens it was sent with.
    pub(crate) fn engine(&self, key: &str) -> Option<(usize, Tokens)> {
        let (hash, slot) = Self::hash(key);
        let (kept, engine, prompt) = (*self.slots.get(slot)?)?;
        (kept == hash).then_some((engine, prompt))
    }

    /// The session went to `engine` with a prompt of so many tokens.
    pub(crate) fn note(&mut self, key: &str, engine: usize, prompt: Tokens) {
        let (hash, slot) = Self::hash(key);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some((hash, engine, prompt));
        }
    }
}
