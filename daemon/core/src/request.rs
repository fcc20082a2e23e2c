//! The question and its answers.

use std::{borrow::Cow, fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use crate::{
    count::TextSize,
    explain::Terms,
    prompts::Prompts,
    units::{Blocks, Tokens},
};

/// Longest model name, bytes.
pub const MAX_MODEL_BYTES: usize = 256;
/// Longest engine id, tenant, session key, or request id, bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Most sequences per prompt.
pub const MAX_SEQUENCES: u32 = 128;
/// Most prompts per request.
pub const MAX_PROMPTS: u32 = 4096;
/// Largest token or byte count that a caller may give.
pub const MAX_COUNT: u64 = u32::MAX as u64;

/// Names a reservation. The upper 24 bits are the daemon's epoch, the lower 40 count up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

impl ReservationId {
    const SEQUENCE_BITS: u32 = 40;

    /// The `sequence`-th reservation of `epoch`.
    #[must_use]
    pub const fn new(epoch: u32, sequence: u64) -> Self {
        Self(((epoch as u64) << Self::SEQUENCE_BITS) | (sequence & ((1 << Self::SEQUENCE_BITS) - 1)))
    }

    /// Epoch of the daemon that gave it out, 24 bits.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> Self::SEQUENCE_BITS
    }

    /// Position among that daemon's reservations.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One stream of a gateway; its reservations become orphans when it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// How long a prompt is, or several that come in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Counted.
    Tokens(Tokens),
    /// Several prompts, counted.
    Several(Prompts),
    /// Only its length in bytes is known. A token is at least one byte, so this is an upper bound in tokens.
    Bytes(u64),
    /// A text that is not counted; [`Node::settle_count`](crate::node::Node::settle_count) says whether it must be.
    Text(TextSize),
    /// A text and what it counts as.
    Counted {
        /// The text's size.
        text: TextSize,
        /// Its tokens.
        prompts: Prompts,
        /// How they were found.
        count: PromptCount,
    },
}

impl Prompt {
    /// The text's size, of a text.
    #[must_use]
    pub const fn text(&self) -> Option<TextSize> {
        match *self {
            Self::Text(text) | Self::Counted { text, .. } => Some(text),
            Self::Tokens(_) | Self::Several(_) | Self::Bytes(_) => None,
        }
    }

    /// Tokens of all prompts and how they were counted; `None`: they were not.
    #[must_use]
    pub const fn counted(&self) -> Option<(Tokens, PromptCount)> {
        match *self {
            Self::Tokens(tokens) => Some((tokens, PromptCount::Exact)),
            Self::Several(prompts) => Some((prompts.total, PromptCount::Exact)),
            Self::Counted { prompts, count, .. } => Some((prompts.total, count)),
            Self::Bytes(_) | Self::Text(_) => None,
        }
    }
}

/// How the prompt tokens of a decision were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptCount {
    /// Counted.
    Exact,
    /// Learned estimate.
    Estimated,
    /// Upper bound.
    Bounded,
}

/// Priority class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A person waits.
    Interactive,
    /// The default.
    #[default]
    Standard,
    /// Nobody waits.
    Batch,
}

/// One request that wants to go to an engine. Borrowed from the message it came in.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Model name.
    pub model: &'a str,
    /// Only this engine.
    pub engine: Option<&'a str>,
    /// The prompt's length.
    pub prompt: Prompt,
    /// Output limit per sequence, where the client set one; 0: nothing is generated (embeddings, scoring).
    pub max_tokens: Option<Tokens>,
    /// Sequences per prompt, at least 1.
    pub n: u32,
    /// Whether stop sequences are set.
    pub has_stop: bool,
    /// Class.
    pub class: Class,
    /// Who pays; empty for the anonymous tenant.
    pub tenant: &'a str,
    /// Requests with one key share a prefix.
    pub session_key: Option<&'a str>,
    /// First token wanted within.
    pub ttft_objective: Option<Duration>,
    /// Time between two tokens wanted.
    pub pace_objective: Option<Duration>,
    /// How long the caller would wait for room.
    pub wait: Duration,
    /// Idempotency key, with the peer's uid.
    pub request_id: Option<&'a str>,
    /// Uid of the calling process.
    pub peer_uid: u32,
    /// The stream it came over, if any.
    pub session: Option<SessionId>,
    /// Whether the caller forwards the rank it is told.
    pub forwards_rank: bool,
}

/// What went wrong with a request: the caller's mistake, not a denial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A field is out of its range.
    #[error("{field}: {value} is not allowed; {allowed}")]
    OutOfRange {
        /// Field as in the `.proto` file.
        field: &'static str,
        /// What was sent.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A field is wrong in another way.
    #[error("{field}: {why}; {allowed}")]
    Wrong {
        /// Field as in the `.proto` file.
        field: &'static str,
        /// How: `missing`, `129 bytes are too many`.
        why: Cow<'static, str>,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The request body is not understood: what of it, by its key.
    #[error("openai_body: {0}")]
    Body(String),
    /// A request id came again with other content.
    #[error(
        "request_id: {0:?} was used before with other content; a request id names one request, so use a new one"
    )]
    IdReused(String),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Yes or no.
    pub verdict: Verdict,
    /// Prompt tokens used.
    pub prompt: Option<(Tokens, PromptCount)>,
    /// Headroom of the engine afterwards.
    pub headroom: Option<Headroom>,
    /// Age of the reading it rests on.
    pub data_age: Option<Duration>,
}

/// Yes or no.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It may go in.
    Admit(Admit),
    /// It must not go in now.
    Deny(Deny),
}

/// A promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Admit {
    /// Names it.
    pub reservation: ReservationId,
    /// Renewed by progress.
    pub lease: Duration,
    /// Engine id.
    pub engine: Arc<str>,
    /// Where to send the request.
    pub address: Arc<str>,
    /// Rank to name to the engine.
    pub rank: Option<u32>,
    /// Output tokens granted per sequence; `None`: the client set no limit and none is imposed.
    pub max_tokens: Option<Tokens>,
    /// Blocks reserved.
    pub blocks: Blocks,
    /// What enforce mode would have denied for.
    pub observed: Option<Reason>,
}

/// A denial.
#[derive(Clone, Debug, PartialEq)]
pub struct Deny {
    /// Why.
    pub reason: Reason,
    /// When room is predicted.
    pub retry_after: Option<Duration>,
    /// Engine considered.
    pub engine: Option<Arc<str>>,
    /// The sum, where one was made.
    pub terms: Option<Terms>,
    /// One sentence.
    pub message: String,
}

/// How much more an engine can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headroom {
    /// Blocks that can still be promised.
    pub blocks: Blocks,
    /// With the error band subtracted.
    pub blocks_lower: Blocks,
    /// `blocks` in tokens.
    pub tokens: Tokens,
    /// `blocks_lower` in tokens.
    pub tokens_lower: Tokens,
    /// Age of the reading it rests on.
    pub age: Duration,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $status:literal;)*) => {
        /// Why a request is denied: a closed list, numbered and spelled as in `admission.proto`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The one spelling, for metrics, journal, command line and manual.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// HTTP status to send to the client.
            #[must_use]
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$variant => $status),* }
            }

            /// Number in `admission.proto`.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self { $(Self::$variant => $number),* }
            }
        }
    };
}

reasons! {
    /// No engine serves that model.
    UnknownModel = 1, "UNKNOWN_MODEL", 404;
    /// No engine has that id.
    UnknownEngine = 2, "UNKNOWN_ENGINE", 404;
    /// Does not fit the context window.
    ContextTooLong = 3, "CONTEXT_TOO_LONG", 400;
    /// Needs more than the whole pool.
    NeverFits = 4, "NEVER_FITS", 413;
    /// Above the operator's limit.
    MaxTokensOverLimit = 5, "MAX_TOKENS_OVER_LIMIT", 400;
    /// Blocked by the operator.
    TenantBlocked = 6, "TENANT_BLOCKED", 429;
    /// Loading.
    EngineStarting = 7, "ENGINE_STARTING", 503;
    /// Dead or not answering.
    EngineDown = 8, "ENGINE_DOWN", 503;
    /// Shutting down as planned.
    EngineDraining = 9, "ENGINE_DRAINING", 503;
    /// In sleep mode.
    EngineAsleep = 10, "ENGINE_ASLEEP", 503;
    /// Perhaps frozen, and a probing request is under way.
    EngineSuspect = 11, "ENGINE_SUSPECT", 503;
    /// Frozen.
    EngineStalled = 12, "ENGINE_STALLED", 503;
    /// The KV cache would overflow.
    KvFull = 13, "KV_FULL", 429;
    /// Co-tenants took the device memory.
    DeviceMemory = 14, "DEVICE_MEMORY", 429;
    /// The first token would come too late.
    Ttft = 15, "TTFT", 429;
    /// Tokens would come too slowly.
    Pace = 16, "PACE", 429;
    /// Batch is held back.
    ClassLimit = 17, "CLASS_LIMIT", 429;
    /// The tenant has its share.
    TenantShare = 18, "TENANT_SHARE", 429;
    /// The wait queue is full.
    QueueFull = 19, "QUEUE_FULL", 429;
    /// No room appeared in time.
    WaitExpired = 20, "WAIT_EXPIRED", 429;
    /// The ledger is full.
    LedgerFull = 21, "LEDGER_FULL", 503;
    /// Prompts of this size keep killing the engine.
    LearnedGuard = 22, "LEARNED_GUARD", 429;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names a reservation by either of its names.
#[derive(Clone, Copy, Debug)]
pub enum Reference<'a> {
    /// By id.
    Id(ReservationId),
    /// By the caller's own key.
    Request {
        /// Uid of the calling process.
        peer_uid: u32,
        /// Tenant.
        tenant: &'a str,
        /// Request id.
        request_id: &'a str,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished by the engine.
    Ok,
    /// Cancelled by the client.
    Cancelled,
    /// Failed in the engine.
    EngineError,
    /// Never sent.
    NotSent,
}

/// What is known of a request at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// How it ended.
    pub outcome: Outcome,
    /// Output tokens, all sequences together.
    pub output_tokens: Option<Tokens>,
    /// Prompt tokens as the engine counted them.
    pub prompt_tokens: Option<Tokens>,
}

impl Request<'_> {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`RequestError::OutOfRange`] for the first field that is out of it.
    pub fn check(&self) -> Result<(), RequestError> {
        name("model", self.model, 1, MAX_MODEL_BYTES, "1 to 256 bytes without control characters")?;
        let names = [
            ("engine", self.engine),
            ("tenant", Some(self.tenant)),
            ("session_key", self.session_key),
            ("request_id", self.request_id),
        ];
        for (field, value) in names {
            name(
                field,
                value.unwrap_or(""),
                0,
                MAX_NAME_BYTES,
                "at most 128 bytes without control characters",
            )?;
        }
        let (field, count) = match self.prompt {
            Prompt::Tokens(tokens) => ("prompt_tokens", tokens.0),
            Prompt::Bytes(bytes) => ("prompt_bytes", bytes),
            Prompt::Text(text) => ("prompt", text.bytes),
            Prompt::Several(prompts) | Prompt::Counted { prompts, .. } => ("prompt", prompts.total.0),
        };
        within(field, count, 0, MAX_COUNT, "0 to 4294967295")?;
        let max_tokens = self.max_tokens.unwrap_or_default().0;
        within("max_tokens", max_tokens, 0, MAX_COUNT, "0 to 4294967295")?;
        within("n", u64::from(self.n), 1, u64::from(MAX_SEQUENCES), "1 to 128")
    }
}

fn name(
    field: &'static str,
    value: &str,
    least: usize,
    most: usize,
    allowed: &'static str,
) -> Result<(), RequestError> {
    RequestError::check_length(field, value, least..=most, allowed)?;
    // Names appear on terminals, in logs and as labels.
    match value.chars().find(|c| c.is_control()) {
        Some(c) => Err(RequestError::wrong(field, format!("contains {c:?}"), allowed)),
        None => Ok(()),
    }
}

impl RequestError {
    /// `field` is wrong in the way that `why` says.
    pub fn wrong(field: &'static str, why: impl Into<Cow<'static, str>>, allowed: &'static str) -> Self {
        Self::Wrong { field, why: why.into(), allowed }
    }

    /// Checks the length of `value`, in bytes.
    ///
    /// # Errors
    /// [`RequestError::Wrong`] with the length, and nothing of the text.
    pub fn check_length(
        field: &'static str,
        value: &str,
        range: RangeInclusive<usize>,
        allowed: &'static str,
    ) -> Result<(), Self> {
        match value.len() {
            length if range.contains(&length) => Ok(()),
            0 => Err(Self::wrong(field, "missing", allowed)),
            length => Err(Self::wrong(field, format!("{length} bytes are too many"), allowed)),
        }
    }
}

fn within(
    field: &'static str,
    value: u64,
    least: u64,
    most: u64,
    allowed: &'static str,
) -> Result<(), RequestError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(RequestError::OutOfRange { field, value: value.to_string(), allowed })
}
