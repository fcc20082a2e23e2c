//! What is allocated.

use std::{
    collections::BTreeMap,
    env,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

const SCRIPT: &str = "GPUADMIT_FAKE_LIBCUDA";
/// First address, and the distance between two.
const FIRST: u64 = 0x7_0000_0000;
const DISTANCE: u64 = 2 << 20;

static MEMORY: LazyLock<Mutex<Memory>> =
    LazyLock::new(|| Mutex::new(Memory::new(&env::var(SCRIPT).unwrap_or_default())));

/// The memory of this process.
pub(crate) fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sizes by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    held: BTreeMap<u64, u64>,
    given_back: Vec<u64>,
    in_use: u64,
    asked: u64,
    fail_every: Option<u64>,
    most: Option<u64>,
}

impl Memory {
    fn new(script: &str) -> Self {
        let value = |name: &str| {
            script
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        Self { fail_every: value("fail_every"), most: value("memory"), ..Self::default() }
    }

    /// Address of `bytes`; `None`: there is not so much.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        self.asked = self.asked.saturating_add(1);
        let scripted = self.fail_every.is_some_and(|every| self.asked.checked_rem(every) == Some(0));
        let in_use = self.in_use.checked_add(bytes)?;
        if scripted || self.most.is_some_and(|most| in_use > most) {
            return None;
        }
        let next = u64::try_from(self.held.len()).ok()?.checked_mul(DISTANCE)?.checked_add(FIRST)?;
        let address = self.given_back.pop().unwrap_or(next);
        self.held.insert(address, bytes);
        self.in_use = in_use;
        Some(address)
    }

    /// Whether it was allocated.
    pub(crate) fn give_back(&mut self, address: u64) -> bool {
        let Some(bytes) = self.held.remove(&address) else { return false };
        self.in_use = self.in_use.saturating_sub(bytes);
        self.given_back.push(address);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_says_which_allocations_fail() {
        let mut memory = Memory::new("fail_every=3 memory=100");
        let first = memory.take(60).unwrap();
        assert_eq!(memory.take(60), None, "there are 40 left");
        assert_eq!(memory.take(1), None, "the third fails");
        assert!(memory.give_back(first) && !memory.give_back(first));
        assert_eq!(memory.take(100), Some(first));
    }
}
