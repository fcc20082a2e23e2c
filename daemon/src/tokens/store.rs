//! The tokenizers that are loaded: each on its first need, at most so many at once, the one unused for longest making
//! room for another.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gpuadmit_core::observation::ModelSource;

use super::{files, tokenizer::Counter};

/// A tokenizer that could not be loaded is tried again after this time.
const RETRY: Duration = Duration::from_mins(1);
/// Most models remembered for which none could be loaded.
const MAX_FAILED: usize = 64;

/// A loaded tokenizer, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Folder or repository it was found by.
    pub model: Arc<str>,
    /// Memory that the process grew by when it was loaded, bytes; at least the size of its vocabulary's file.
    pub memory_bytes: u64,
    /// Whether chats can be counted too.
    pub has_template: bool,
    /// Time to load it.
    pub load_time: Duration,
}

/// A tokenizer that could not be loaded.
#[derive(Clone, Debug)]
struct Failed {
    source: Arc<ModelSource>,
    why: String,
    at: Instant,
}

struct Entry {
    source: Arc<ModelSource>,
    counter: Arc<Counter>,
    about: Loaded,
    /// Order of the last use.
    used: u64,
}

#[derive(Default)]
struct Shelf {
    entries: Vec<Entry>,
    failed: Vec<Failed>,
    uses: u64,
}

/// All of them.
pub(super) struct Store {
    most: usize,
    shelf: Mutex<Shelf>,
    /// Held while one is loaded: two at once would take twice the memory for nothing.
    loading: Mutex<()>,
}

impl Store {
    /// For at most `most` tokenizers.
    pub(super) fn new(most: usize) -> Self {
        Self { most, shelf: Mutex::default(), loading: Mutex::default() }
    }

    /// Most at once.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// The tokenizer for `source`; loads it where it is not loaded, which takes about a second: not for the reactor.
    pub(super) fn get(&self, source: &Arc<ModelSource>) -> Option<Arc<Counter>> {
        if let Some(known) = self.known(source) {
            return known;
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(source) {
            return known;
        }
        match load(source) {
            Ok((counter, about)) => {
                tracing::info!(model = %about.model, memory_bytes = about.memory_bytes, "tokenizer loaded");
                let counter = Arc::new(counter);
                self.put(source, &counter, about);
                Some(counter)
            }
            Err(why) => {
                tracing::info!(model = %source.name, %why, "no tokenizer: prompts go by their bounds");
                self.note_failure(source, why);
                None
            }
        }
    }

    /// What is loaded, and why others are not.
    pub(super) fn loaded(&self) -> (Vec<Loaded>, Vec<(Arc<str>, String)>) {
        let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = shelf.entries.iter().map(|entry| entry.about.clone()).collect();
        let failed = shelf.failed.iter().map(|failed| (Arc::clone(&failed.source.name), failed.why.clone()));
        (loaded, failed.collect())
    }

    /// `None`: it must be loaded first. `Some(None)`: it could not be, not long ago.
    fn known(&self, source: &Arc<ModelSource>) -> Option<Option<Arc<Counter>>> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.uses = shelf.uses.saturating_add(1);
        let uses = shelf.uses;
        if let Some(entry) = shelf.entries.iter_mut().find(|entry| entry.source == *source) {
            entry.used = uses;
            return Some(Some(Arc::clone(&entry.counter)));
        }
        shelf.failed.retain(|failed| failed.at.elapsed() < RETRY);
        shelf.failed.iter().any(|failed| failed.source == *source).then_some(None)
    }

    fn put(&self, source: &Arc<ModelSource>, counter: &Arc<Counter>, about: Loaded) {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        while shelf.entries.len() >= self.most.max(1) {
            let oldest = shelf.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
            let Some((index, _)) = oldest else { break };
            shelf.entries.swap_remove(index);
        }
        let (source, counter, used) = (Arc::clone(source), Arc::clone(counter), shelf.uses);
        shelf.entries.push(Entry { source, counter, about, used });
    }

    fn note_failure(&self, source: &Arc<ModelSource>, why: String) {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.failed.len() >= MAX_FAILED {
            shelf.failed.remove(0);
        }
        shelf.failed.push(Failed { source: Arc::clone(source), why, at: Instant::now() });
    }
}

fn load(source: &Arc<ModelSource>) -> Result<(Counter, Loaded), String> {
    let (before, started) = (resident_bytes(), Instant::now());
    let files = files::read(source).map_err(|missing| missing.to_string())?;
    let least = u64::try_from(files.tokenizer.len()).unwrap_or(u64::MAX);
    let counter = Counter::load(files)?;
    let grown = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    let about = Loaded {
        model: Arc::clone(&source.name),
        memory_bytes: grown.unwrap_or(least).max(least),
        has_template: counter.has_template(),
        load_time: started.elapsed(),
    };
    Ok((counter, about))
}

/// Resident memory of this process (`/proc/self/statm`, second field, in pages).
fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    pages.checked_mul(u64::try_from(page).ok()?)
}
