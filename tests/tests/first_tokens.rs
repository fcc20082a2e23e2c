//! When first tokens come, set against a queue that takes prompts in order, computes them at one rate, and is told of in
//! part only: some of the prompts in it never asked.

use std::{collections::VecDeque, time::Duration};

use gpuadmit_core::{
    node::Node,
    observation::RankReading,
    request::{Completion, Outcome, Reason, Reference, Request, ReservationId, Verdict},
    settings::Settings,
    units::{Mono, Tokens},
};
use gpuadmit_tests::node_kit::{admitted, at, denied, rank, reading, ready_node, request};

/// Usable blocks: far more than are ever used.
const BLOCKS: u64 = 100_000;
/// Prompt tokens per second.
const RATE: f64 = 10_000.0;
const OBJECTIVE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(20);

/// One prompt in the queue, and when it will have been computed.
struct Prompt {
    id: Option<ReservationId>,
    tokens: u64,
    due: Mono,
}

/// Takes prompts in order; what is computed ends with its first token.
struct Queue {
    clock: Mono,
    prompts: VecDeque<Prompt>,
    free_at: Mono,
    computed: u64,
    finished: u64,
    hits: u64,
}

impl Queue {
    const fn new(now: Mono) -> Self {
        Self { clock: now, prompts: VecDeque::new(), free_at: now, computed: 0, finished: 0, hits: 0 }
    }

    /// How long one more prompt takes to its first token.
    fn wait(&self, tokens: u64) -> Duration {
        let own = Duration::from_secs_f64(f64::from(u32::try_from(tokens).unwrap()) / RATE);
        self.free_at.max(self.clock).since(self.clock) + own
    }

    fn push(&mut self, id: Option<ReservationId>, tokens: u64) {
        self.free_at = self.clock + self.wait(tokens);
        self.prompts.push_back(Prompt { id, tokens, due: self.free_at });
    }

    /// Goes on to `now`; each of ours that is computed tells of its first token and ends.
    fn run(&mut self, now: Mono, node: &mut Node) {
        while self.prompts.front().is_some_and(|first| first.due <= now) {
            let first = self.prompts.pop_front().unwrap();
            (self.computed, self.finished) = (self.computed + first.tokens, self.finished + 1);
            let Some(id) = first.id else { continue };
            node.progress(first.due, Reference::Id(id), Tokens(1));
            let completion =
                Completion { outcome: Outcome::Ok, output_tokens: Some(Tokens(1)), prompt_tokens: None };
            node.complete(first.due, Reference::Id(id), completion);
        }
        self.clock = now;
    }

    /// One is computed, the others wait.
    fn observe(&self, node: &mut Node) {
        let there = self.prompts.len() as u64;
        let figures = RankReading {
            prompt_tokens: Some(self.computed),
            generation_tokens: Some(self.finished),
            prefix_hits: Some(self.hits),
            ..rank(0, BLOCKS, 0, there.min(1), there.saturating_sub(1), self.finished)
        };
        node.observe(self.clock, reading("e", self.clock, vec![figures]));
    }
}

fn ask(prompt: u64) -> Request<'static> {
    Request { ttft_objective: Some(OBJECTIVE), ..request(prompt, Some(1)) }
}

/// A seeded stream of numbers below `most`.
fn draw(state: &mut u64, most: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % most
}

/// What became of those who asked.
#[derive(Debug, Default)]
struct Tally {
    admitted: u32,
    late: u32,
    denied: u32,
    /// Denied that would have had their first token in half of the time they had.
    early: u32,
}

/// Five minutes in which a little more is asked than can be computed, in waves, `strangers` of a hundred without asking.
fn load(strangers: u64) -> Tally {
    let mut node = ready_node(Settings::default(), BLOCKS);
    let (mut queue, mut tally, mut state) = (Queue::new(at(0.0)), Tally::default(), 7);
    for tick in 0..15_000_u32 {
        let now = at(0.0) + TICK * tick;
        queue.run(now, &mut node);
        if tick % 6 == 0 {
            queue.observe(&mut node);
        }
        node.handle_timeout(now);
        // 8 in a hundred ticks, and twice that in every other ten seconds, of 1,500 tokens on the average.
        let wave = if tick / 500 % 2 == 0 { 16 } else { 8 };
        if draw(&mut state, 100) >= wave {
            continue;
        }
        let tokens = 100 + draw(&mut state, 2_800);
        if draw(&mut state, 100) < strangers {
            queue.push(None, tokens);
            continue;
        }
        let wait = queue.wait(tokens);
        match node.admit(now, &ask(tokens)).unwrap().verdict {
            Verdict::Admit(admit) => {
                queue.push(Some(admit.reservation), tokens);
                tally.admitted += 1;
                tally.late += u32::from(wait > OBJECTIVE);
            }
            Verdict::Deny(deny) => {
                assert_eq!(deny.reason, Reason::Ttft);
                tally.denied += 1;
                tally.early += u32::from(wait < OBJECTIVE / 2);
            }
        }
    }
    tally
}

#[test]
fn denied_are_those_whose_first_token_would_be_late() {
    let tally = load(0);
    assert!(tally.denied > 30 && tally.admitted > 500, "{tally:?}");
    assert!(tally.late * 100 <= tally.admitted, "{tally:?}");
    assert!(tally.early * 100 <= tally.denied, "{tally:?}");
}

#[test]
fn prompts_that_never_asked_count_in_the_queue() {
    let tally = load(40);
    assert!(tally.denied > 30 && tally.admitted > 300, "{tally:?}");
    assert!(tally.late * 20 <= tally.admitted, "{tally:?}");
    assert!(tally.early * 10 <= tally.denied, "{tally:?}");
}

#[test]
fn before_it_is_known_how_fast_an_engine_is_an_idle_one_takes_any_prompt_and_no_long_queue_behind_it() {
    let mut node = ready_node(Settings::default(), BLOCKS);
    let first = node.admit(at(0.0), &ask(60_000)).unwrap();
    let _ = admitted(&first);
    // Three seconds at least, even at 20,000 tokens a second.
    let second = node.admit(at(0.0), &ask(10)).unwrap();
    assert_eq!(denied(&second).reason, Reason::Ttft);
    assert!(denied(&second).message.contains("how fast"), "{}", denied(&second).message);
    assert_eq!(denied(&second).retry_after, Some(Duration::from_secs(1)));
    // It was told when to come back, and does; who names no time to its first token never waited for this.
    let _ = admitted(&node.admit(at(1.1), &ask(10)).unwrap());
    let _ = admitted(&node.admit(at(1.1), &request(10, Some(1))).unwrap());
}

#[test]
fn a_sessions_prefix_is_believed_to_be_cached_until_the_engine_has_written_more_than_was_free() {
    let mut node = ready_node(Settings::default(), BLOCKS);
    let mut queue = Queue::new(at(0.0));
    let compute = |node: &mut Node, queue: &mut Queue, prompt: u64, session_key| {
        let asked = Request { session_key, ..request(prompt, Some(1)) };
        let decision = node.admit(queue.clock, &asked).unwrap();
        queue.push(Some(admitted(&decision).reservation), prompt);
        queue.run(queue.free_at + TICK, node);
        queue.observe(node);
    };
    let turn = Request { session_key: Some("s"), ..ask(30_000) };
    for _ in 0..20 {
        compute(&mut node, &mut queue, 10_000, None);
    }
    assert_eq!(denied(&node.admit(queue.clock, &turn).unwrap()).reason, Reason::Ttft);
    compute(&mut node, &mut queue, 30_000, Some("s"));
    let cached = node.admit(queue.clock, &turn).unwrap();
    let not_sent = Completion { outcome: Outcome::NotSent, output_tokens: None, prompt_tokens: None };
    node.complete(queue.clock, Reference::Id(admitted(&cached).reservation), not_sent);
    // The pool holds 1.6 million tokens.
    for _ in 0..165 {
        compute(&mut node, &mut queue, 10_000, None);
    }
    assert_eq!(denied(&node.admit(queue.clock, &turn).unwrap()).reason, Reason::Ttft);
}
