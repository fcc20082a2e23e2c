//! The truth: what every request in the engine will turn out to need. Only the clairvoyant policy and the judge of
//! denials may look.

use std::collections::HashMap;

use crate::{
    engine::{EngineSetup, RequestId},
    request::{Denial, Fate, Phase, Request},
    run::{InUse, Resource},
    situation::Objective,
    time::{Nanos, SECOND, nanos},
    trace::Content,
};

/// Share of the objective within which a predicted first token counts as in time: the prediction is not exact.
const TTFT_SHARE: f64 = 0.9;
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
    /// What was said in conversations, tokens.
    said: HashMap<u64, u64>,
    /// When documents' blocks were used.
    blocks_used: HashMap<u32, Nanos>,
}

/// One request's future: it holds `held` tokens from step `start` on, and one more with every step until it ends.
#[derive(Clone, Copy, Debug)]
struct Course {
    start: u64,
    held: u64,
    remaining: u64,
}

impl Course {
    fn end(&self) -> u64 {
        self.start + self.remaining
    }
}

/// Tokens held by many courses together, for ever later steps.
struct Sums {
    by_start: Vec<Course>,
    by_end: Vec<Course>,
    started: usize,
    ended: usize,
    /// Of those there: held tokens at their start, and their starts.
    held: u64,
    starts: u64,
}

impl Sums {
    fn new(courses: &[Course]) -> Self {
        let (mut by_start, mut by_end) = (courses.to_vec(), courses.to_vec());
        by_start.sort_unstable_by_key(|course| course.start);
        by_end.sort_unstable_by_key(Course::end);
        Self { by_start, by_end, started: 0, ended: 0, held: 0, starts: 0 }
    }

    /// Tokens held in the last step before `end`, and by how many.
    fn before(&mut self, end: u64) -> (u64, u64) {
        while let Some(course) = self.by_start.get(self.started).filter(|course| course.start < end) {
            (self.held, self.starts) = (self.held + course.held, self.starts + course.start);
            self.started += 1;
        }
        while let Some(course) = self.by_end.get(self.ended).filter(|course| course.end() < end) {
            (self.held, self.starts) = (self.held - course.held, self.starts - course.start);
            self.ended += 1;
        }
        let count = (self.started - self.ended) as u64;
        (self.held + count * (end - 1) - self.starts, count)
    }
}

impl World {
    pub(crate) fn new(setup: EngineSetup, objective: Objective, requests: Vec<Request>) -> Self {
        let mut bypass: Vec<_> =
            requests.iter().filter(|request| request.bypass).map(|request| request.id).collect();
        bypass.sort_by_key(|id| requests[*id as usize].at);
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
    fn cached(&self, at: Nanos, request: &Request) -> u64 {
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

    /// Whether `request`, let in now, would meet its objectives and harm nobody: by true lengths the pool never
    /// overflows until all that is known has ended, and its first token comes in time.
    pub(crate) fn fits(&self, at: Nanos, request: &Request) -> bool {
        let ttft = self.ttft(at, request);
        self.in_time(request, ttft) && !self.delays_others(at, ttft) && self.has_room(at, request)
    }

    /// How things stand as `request` is denied.
    pub(crate) fn denial(&self, at: Nanos, request: &Request, reason: &'static str) -> Denial {
        let usage = self.used.blocks as f64 / self.setup.blocks as f64;
        Denial { at, fits: self.fits(at, request), usage, reason }
    }

    /// What a denial for `reason` was for.
    pub(crate) fn denied_for(&self, reason: &str) -> Option<Resource> {
        let computing = |id: &&RequestId| self.fates[**id as usize].phase != Phase::Decoding;
        let waiting = self.live.iter().filter(computing);
        let prompts: u64 = waiting.map(|id| self.request(*id).prompt).sum();
        let prompts_wait = prompts.saturating_sub(self.partial) > self.setup.max_num_batched_tokens;
        Resource::of(reason, self.used.slots >= self.setup.max_num_seqs, prompts_wait)
    }

    /// Whether the pool does not overflow until `request`, let in now, has ended: afterwards all is as without it.
    fn has_room(&self, at: Nanos, request: &Request) -> bool {
        let mut courses: Vec<_> = self.live.iter().map(|id| self.course(*id)).collect();
        self.foresee(at, request, &mut courses);
        courses.push(Course { start: 0, held: request.prompt, remaining: request.length });
        let capacity = self.setup.blocks + self.shared();
        // Use only falls where a request ends: just before is where it may be most.
        let mut ends: Vec<_> = courses.iter().map(Course::end).filter(|end| *end <= request.length).collect();
        ends.sort_unstable();
        let mut sums = Sums::new(&courses);
        ends.into_iter().all(|end| {
            let (tokens, count) = sums.before(end);
            let size = self.setup.block_size;
            // Whole blocks are counted one by one only where rounding decides.
            tokens.div_ceil(size) <= capacity
                && ((tokens + count * (size - 1)) / size <= capacity
                    || self.held_at(&courses, end) <= capacity)
        })
    }

    /// Blocks that several requests share: the engine counts them once.
    fn shared(&self) -> u64 {
        if !self.setup.prefix_caching {
            return 0;
        }
        let decoding = self.live.iter().filter(|id| self.fates[**id as usize].phase == Phase::Decoding);
        let held: u64 = decoding.map(|id| self.blocks(self.course(*id).held)).sum();
        held.saturating_sub(self.used.blocks)
    }

    /// Blocks held in the last step before `end`.
    fn held_at(&self, courses: &[Course], end: u64) -> u64 {
        let there = courses.iter().filter(|one| one.start < end && one.end() >= end);
        there.map(|one| self.blocks(one.held + (end - one.start) - 1)).sum()
    }

    fn course(&self, id: RequestId) -> Course {
        let (request, fate) = (&self.requests[id as usize], &self.fates[id as usize]);
        let remaining = request.length.saturating_sub(fate.generated).max(1);
        Course { start: 0, held: request.prompt + fate.generated, remaining }
    }

    /// Adds what will come without asking while `request` lives.
    fn foresee(&self, at: Nanos, request: &Request, courses: &mut Vec<Course>) {
        for coming in self.coming(at) {
            let start = (coming.at - at) / self.step_time.max(1);
            if start >= request.length {
                break;
            }
            courses.push(Course { start, held: coming.prompt, remaining: coming.length });
        }
    }

    /// What will come without asking, in the order in which it will.
    fn coming(&self, at: Nanos) -> impl Iterator<Item = &Request> {
        let next = self.bypass.partition_point(|id| self.request(*id).at <= at);
        self.bypass[next..].iter().map(|id| self.request(*id))
    }

    /// Whether the prefill of `request`, which takes until `ttft` from now, would make the first token of one that comes
    /// without asking too late.
    fn delays_others(&self, at: Nanos, ttft: Nanos) -> bool {
        let (_, _, decoding, context) = self.backlog();
        let per_step = self.setup.max_num_batched_tokens.saturating_sub(decoding).max(1);
        let per_token = self.decode_milliseconds(decoding, context) / per_step as f64;
        let mut free = at + ttft;
        for coming in self.coming(at) {
            if coming.at >= free {
                return false;
            }
            let prompt = coming.prompt as f64;
            let cost = &self.setup.cost;
            let work = prompt * (per_token + cost.per_prefill_token + cost.per_prefill_pair * prompt / 2.0);
            free += nanos(work / 1e3);
            let wait = free - coming.at;
            if !self.in_time(coming, wait) && self.in_time(coming, wait - ttft.min(wait)) {
                return true;
            }
        }
        false
    }

    /// Whether a predicted time to first token counts as in time.
    fn in_time(&self, request: &Request, ttft: Nanos) -> bool {
        let deadline = self.deadline(request, self.cached(request.at, request));
        ttft as f64 <= deadline as f64 * TTFT_SHARE
    }

    /// Prompt tokens that wait for their prefill, the quadratic part of their cost, and sequences that decode.
    fn backlog(&self) -> (u64, f64, u64, u64) {
        let (mut tokens, mut pairs, mut decoding, mut context) = (0, 0.0, 0, 0);
        for id in &self.live {
            let (request, fate) = (&self.requests[*id as usize], &self.fates[*id as usize]);
            if fate.phase == Phase::Decoding {
                decoding += 1;
                context += request.prompt + fate.generated;
            } else {
                let fresh = request.prompt - fate.cached.min(request.prompt);
                tokens += fresh;
                pairs += fresh as f64 * (fate.cached as f64 + fresh as f64 / 2.0);
            }
        }
        (tokens.saturating_sub(self.partial), pairs, decoding, context)
    }

    /// Time to its first token.
    fn ttft(&self, at: Nanos, request: &Request) -> Nanos {
        let cost = &self.setup.cost;
        let (ahead, mut pairs, decoding, context) = self.backlog();
        let cached = self.cached(at, request);
        let fresh = request.prompt - cached;
        pairs += fresh as f64 * (cached as f64 + fresh as f64 / 2.0);
        let tokens = ahead + fresh;
        let per_step = self.setup.max_num_batched_tokens.saturating_sub(decoding).max(1);
        let steps = tokens.div_ceil(per_step) as f64;
        let decode =
            cost.base + cost.per_sequence * (decoding + 1) as f64 + cost.per_context_token * context as f64;
        let milliseconds =
            steps * decode + cost.per_prefill_token * tokens as f64 + cost.per_prefill_pair * pairs;
        self.step_end.saturating_sub(at) + nanos(milliseconds / 1e3) + self.wait_for_a_seat(decode)
    }

    /// What a step takes for all that decodes.
    fn decode_milliseconds(&self, decoding: u64, context: u64) -> f64 {
        let cost = &self.setup.cost;
        cost.base + cost.per_sequence * (decoding + 1) as f64 + cost.per_context_token * context as f64
    }

    /// Time until the batch has a place, if all are taken.
    fn wait_for_a_seat(&self, step_milliseconds: f64) -> Nanos {
        let over = (self.live.len() as u64 + 1).saturating_sub(self.setup.max_num_seqs) as usize;
        if over == 0 {
            return 0;
        }
        let mut remaining: Vec<_> = self.live.iter().map(|id| self.course(*id).remaining).collect();
        remaining.sort_unstable();
        nanos(remaining[over - 1] as f64 * step_milliseconds / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_summed_over_those_that_are_there() {
        let course = |start, held, remaining| Course { start, held, remaining };
        let courses = [course(0, 100, 10), course(5, 40, 20), course(30, 7, 5)];
        let mut sums = Sums::new(&courses);
        // Before step 10 ends: 100 + 9 and 40 + 4.
        assert_eq!(sums.before(10), (153, 2));
        assert_eq!(sums.before(25), (40 + 19, 1));
        assert_eq!(sums.before(35), (7 + 4, 1));
    }
}
