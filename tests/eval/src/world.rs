//! The truth: what every request in the engine will turn out to need. Only references and the judge of denials may look.

use std::collections::HashMap;

use crate::{
    engine::{EngineSetup, RequestId},
    reference,
    request::{Denial, Fate, Phase, Request},
    run::{InUse, Resource},
    situation::Objective,
    time::{Nanos, SECOND, nanos},
    trace::Content,
};

/// A document's block is taken to be in the prefix cache for so long after its last use.
const CACHED_FOR: Nanos = 60 * SECOND;

/// A run's requests, and what became of them so far.
pub(crate) struct World {
    pub(crate) setup: EngineSetup,
    /// By what requests are judged.
    pub(crate) objective: Objective,
    pub(crate) requests: Vec<Request>,
    pub(crate) fates: Vec<Fate>,
    /// Requests in the engine or on their way.
    pub(crate) live: Vec<RequestId>,
    /// In use in the step that is under way.
    pub(crate) used: InUse,
    /// When that step ends.
    pub(crate) step_end: Nanos,
    /// How long steps take on average.
    pub(crate) step_time: Nanos,
    /// Prompt tokens computed for requests without a token.
    pub(crate) partial: u64,
    /// Those that ask nobody, by time of arrival.
    bypass: Vec<RequestId>,
    /// Those that ask, by time of arrival.
    asking: Vec<RequestId>,
    /// What was said in conversations, tokens.
    said: HashMap<u64, u64>,
    /// When documents' blocks were used.
    blocks_used: HashMap<u32, Nanos>,
}

impl World {
    pub(crate) fn new(setup: EngineSetup, objective: Objective, requests: Vec<Request>) -> Self {
        let mut by_arrival: Vec<_> = requests.iter().collect();
        by_arrival.sort_by_key(|request| request.at);
        let (bypass, asking): (Vec<_>, Vec<_>) = by_arrival.iter().partition(|request| request.bypass);
        let ids = |of: Vec<&Request>| of.iter().map(|request| request.id).collect();
        let (bypass, asking) = (ids(bypass), ids(asking));
        Self {
            setup,
            objective,
            fates: vec![Fate::default(); requests.len()],
            requests,
            live: Vec::new(),
            used: InUse::default(),
            step_end: 0,
            step_time: nanos(setup.cost.base / 1e3),
            partial: 0,
            bypass,
            asking,
            said: HashMap::new(),
            blocks_used: HashMap::new(),
        }
    }

    pub(crate) fn request(&self, id: RequestId) -> &Request {
        &self.requests[id as usize]
    }

    pub(crate) fn fate(&mut self, id: RequestId) -> &mut Fate {
        &mut self.fates[id as usize]
    }

    /// The longest time from admission to first token of `request`, so many of whose prompt tokens are cached.
    pub(crate) fn deadline(&self, request: &Request, cached: u64) -> Nanos {
        self.objective.deadline(&self.setup, request, cached)
    }

    /// Whether a request ended and met its objective.
    pub(crate) fn good(&self, id: RequestId) -> bool {
        self.objective.met(&self.setup, self.request(id), &self.fates[id as usize])
    }

    pub(crate) fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.setup.block_size)
    }

    /// A request ended in the engine: its blocks stay in the prefix cache.
    pub(crate) fn served(&mut self, at: Nanos, id: RequestId) {
        let request = &self.requests[id as usize];
        match &request.content {
            Content::Own => {}
            Content::Session(session) | Content::Conversation { session, .. } => {
                self.said.insert(*session, request.prompt + request.length);
            }
            Content::Blocks { ids, .. } => self.blocks_used.extend(ids.iter().map(|id| (*id, at))),
        }
    }

    /// Prompt tokens that are probably in the prefix cache.
    pub(crate) fn cached(&self, at: Nanos, request: &Request) -> u64 {
        if !self.setup.prefix_caching {
            return 0;
        }
        let recent = |id: &&u32| self.blocks_used.get(id).is_some_and(|used| at - used < CACHED_FOR);
        let known = match &request.content {
            Content::Own => 0,
            Content::Session(session) => self.said.get(session).copied().unwrap_or(0),
            // Some conversation with the same system prompt was probably there before.
            Content::Conversation { session, shared, .. } => {
                self.said.get(session).map_or(*shared, |said| *said)
            }
            Content::Blocks { ids, size } => ids.iter().take_while(recent).count() as u64 * size,
        };
        known.min(request.prompt - 1) / self.setup.block_size * self.setup.block_size
    }

    /// How things stand as `request` is denied.
    pub(crate) fn denial(&self, at: Nanos, request: &Request, reason: &'static str) -> Denial {
        let usage = self.used.blocks as f64 / self.setup.blocks as f64;
        Denial { at, fits: reference::fits(self, at, request), usage, reason }
    }

    /// What a denial for `reason` was for.
    pub(crate) fn denied_for(&self, reason: &str) -> Option<Resource> {
        let computing = |id: &&RequestId| self.fates[**id as usize].phase != Phase::Decoding;
        let waiting = self.live.iter().filter(computing);
        let prompts: u64 = waiting.map(|id| self.request(*id).prompt).sum();
        let prompts_wait = prompts.saturating_sub(self.partial) > self.setup.max_num_batched_tokens;
        Resource::of(reason, self.used.slots >= self.setup.max_num_seqs, prompts_wait)
    }

    /// Blocks that several requests share: the engine counts them once.
    pub(crate) fn shared(&self) -> u64 {
        if !self.setup.prefix_caching {
            return 0;
        }
        let fates = self.live.iter().map(|id| (id, &self.fates[*id as usize]));
        let decoding = fates.filter(|(_, fate)| fate.phase == Phase::Decoding);
        let held: u64 =
            decoding.map(|(id, fate)| self.blocks(self.request(*id).prompt + fate.generated)).sum();
        held.saturating_sub(self.used.blocks)
    }

    /// The longest time that `request`, let in now, probably takes.
    pub(crate) fn lifetime(&self, request: &Request) -> Nanos {
        self.deadline(request, 0) + request.length * self.step_time
    }

    /// What will come without asking, in the order in which it will.
    pub(crate) fn bypassing(&self, at: Nanos) -> impl Iterator<Item = &Request> {
        self.later(&self.bypass, at)
    }

    /// What will ask, in the order in which it will.
    pub(crate) fn asking(&self, at: Nanos) -> impl Iterator<Item = &Request> {
        self.later(&self.asking, at)
    }

    fn later<'a>(&'a self, of: &'a [RequestId], at: Nanos) -> impl Iterator<Item = &'a Request> {
        let next = of.partition_point(|id| self.request(*id).at <= at);
        of[next..].iter().map(|id| self.request(*id))
    }
}
