//! Counting the tokens of prompts.
//!
//! A prompt that comes as a text or as an OpenAI body is measured ([`measure`]) and goes to the core by its size, which
//! has bounds for it. Only where the decision depends on it is the text counted exactly ([`tokenizer`]), on a thread of
//! its own, at most so many at once and within a time bound; else the upper bound counts. Text is dropped as soon as it
//! is measured or counted. It is in no log and no error.

pub mod body;
mod files;
pub mod jinja;
pub mod measure;
pub mod message;
mod store;
mod template;
mod tokenizer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use gpuadmit_core::{observation::ModelSource, snapshot::Snapshot};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use self::{
    body::Body,
    store::Store,
    tokenizer::{Counter, Uncounted},
};
pub use self::{store::Loaded, tokenizer::Counted};
use crate::config;

/// The text of a prompt.
pub enum Text {
    /// Plain.
    Plain(String),
    /// A request body.
    Body(Vec<u8>),
}

/// Counts prompts. Cheap to clone.
#[derive(Clone)]
pub struct Tokens(Arc<Shared>);

struct Shared {
    exact: bool,
    deadline: Duration,
    media_tokens: u64,
    /// By model name.
    configured: Vec<(String, Arc<ModelSource>)>,
    store: Store,
    threads: Arc<Semaphore>,
    /// KiB of texts that are counted or wait to be.
    room: Arc<Semaphore>,
    tally: Tally,
}

/// How texts were counted since start.
#[derive(Debug, Default)]
struct Tally {
    texts: AtomicU64,
    counted: AtomicU64,
    uncounted: AtomicU64,
}

/// Stack of a thread that counts: a template's tree is taken down level by level.
const STACK_BYTES: usize = 16 << 20;
/// Most texts that are counted or wait to be, KiB.
const ROOM_KIB: usize = 64 << 10;

/// What is loaded, for `status`.
#[derive(Clone, Debug, Default)]
pub struct TokenizerStatus {
    /// Loaded ones.
    pub loaded: Vec<Loaded>,
    /// Models for which none can be loaded, and why.
    pub absent: Vec<(Arc<str>, String)>,
    /// Most loaded at once; 0: exact counting is switched off.
    pub most: usize,
    /// Texts since start.
    pub texts: u64,
    /// Of those, counted exactly because their bounds did not decide.
    pub counted: u64,
    /// Of those whose bounds did not decide, the ones that went by their upper bound.
    pub uncounted: u64,
}

impl Tokens {
    /// As configured.
    #[must_use]
    pub fn new(config: &config::Config) -> Self {
        let config::Tokens { exact, deadline_ms, loaded, at_once, media_tokens } = config.tokens;
        let configured = config.tokenizer.iter().map(|one| (one.model.clone(), Arc::new(one.source())));
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self(Arc::new(Shared {
            exact,
            deadline: Duration::from_millis(deadline_ms),
            media_tokens,
            configured: configured.collect(),
            store: Store::new(count(loaded)),
            threads: Arc::new(Semaphore::new(count(at_once))),
            room: Arc::new(Semaphore::new(ROOM_KIB)),
            tally: Tally::default(),
        }))
    }

    /// Tokens that a picture or another medium is taken for.
    #[must_use]
    pub fn media_tokens(&self) -> u64 {
        self.0.media_tokens
    }

    /// What is loaded.
    #[must_use]
    pub fn status(&self) -> TokenizerStatus {
        let (loaded, absent) = self.0.store.loaded();
        let most = if self.0.exact { self.0.store.most() } else { 0 };
        let Tally { texts, counted, uncounted } = &self.0.tally;
        let [texts, counted, uncounted] = [texts, counted, uncounted].map(|count| count.load(Relaxed));
        TokenizerStatus { loaded, absent, most, texts, counted, uncounted }
    }

    /// A prompt came as a text.
    pub fn note_text(&self) {
        self.0.tally.texts.fetch_add(1, Relaxed);
    }

    /// Counts a prompt for `model` exactly; `None` where that cannot be done in time: no tokenizer, too many at once,
    /// too long.
    pub async fn count(&self, model: &str, snapshot: &Snapshot, text: Text) -> Option<Counted> {
        let counted = self.try_count(model, snapshot, text).await;
        let tally = if counted.is_some() { &self.0.tally.counted } else { &self.0.tally.uncounted };
        tally.fetch_add(1, Relaxed);
        counted
    }

    async fn try_count(&self, model: &str, snapshot: &Snapshot, text: Text) -> Option<Counted> {
        let shared = Arc::clone(&self.0);
        let source = shared.source(model, snapshot)?;
        let room = Arc::clone(&shared.room).try_acquire_many_owned(text.kib()).ok()?;
        let deadline = shared.deadline;
        let counted = timeout(deadline, async {
            let permit = Arc::clone(&shared.threads).acquire_owned().await.ok()?;
            let (answer, counted) = oneshot::channel();
            // What a tokenizer remembers of a text belongs to its thread, and ends with it. The permits stay with the
            // thread, which goes on when nobody waits any more.
            let counting = move || {
                let counted = shared.store.get(&source).map(|counter| shared.count_with(&counter, text));
                drop((permit, room));
                let _ = answer.send(counted);
            };
            thread::Builder::new().name("tokens".into()).stack_size(STACK_BYTES).spawn(counting).ok()?;
            counted.await.ok()?
        });
        match counted.await.ok()?? {
            Ok(counted) => Some(counted),
            Err(why) => {
                tracing::debug!(%why, "a prompt was not counted");
                None
            }
        }
    }
}

impl Text {
    fn kib(&self) -> u32 {
        let bytes = match self {
            Self::Plain(text) => text.len(),
            Self::Body(bytes) => bytes.len(),
        };
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
    }
}

impl Shared {
    /// Where the tokenizer of `model` is: as configured, else as its engine has it.
    fn source(&self, model: &str, snapshot: &Snapshot) -> Option<Arc<ModelSource>> {
        if !self.exact {
            return None;
        }
        let serves = |names: &[Arc<str>]| names.iter().any(|name| **name == *model);
        let engine = snapshot.engines.iter().find(|engine| serves(&engine.models));
        let engine =
            engine.or_else(|| snapshot.engines.first()).and_then(|engine| engine.model_source.clone());
        let Some((_, configured)) = self.configured.iter().find(|(name, _)| name == model) else {
            return engine;
        };
        // How chats are rendered is the engine's own choice, wherever its tokenizer is read from.
        Some(engine.map_or_else(
            || Arc::clone(configured),
            |engine| {
                let ModelSource { chat_template, template_kwargs, content_format, .. } = (*engine).clone();
                let configured = (**configured).clone();
                Arc::new(ModelSource { chat_template, template_kwargs, content_format, ..configured })
            },
        ))
    }

    fn count_with(&self, counter: &Counter, text: Text) -> Result<Counted, Uncounted> {
        match text {
            Text::Plain(text) => counter.text(&text),
            Text::Body(bytes) => {
                let body = Body::read(&bytes).map_err(|_| Uncounted::Body)?;
                counter.body(&body, self.media_tokens)
            }
        }
    }
}
