//! Small cases calculated by hand.

use super::*;

const BASE: Duration = Duration::from_millis(10);

/// 9 blocks (8 usable) of 4 tokens, a window of 32, 4 requests and 16 tokens a step, 10 ms + 1 ms a request + 1 ms a
/// prompt token.
fn limits() -> EngineLimits {
    EngineLimits {
        blocks: 9,
        block_size: 4,
        max_model_len: 32,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        step_base: BASE,
        step_per_sequence: Duration::from_millis(1),
        step_per_prefill_token: Duration::from_millis(1),
        step_jitter: 0.0,
    }
}

fn job(id: u64, prompt_tokens: u64, max_tokens: u64) -> Job {
    Job { id, prompt_tokens, max_tokens, natural_tokens: u64::MAX }
}

struct Bench {
    engine: Engine,
    now: Duration,
}

impl Bench {
    fn new(limits: EngineLimits, jobs: &[Job]) -> Self {
        let mut engine = Engine::new(limits, 1);
        for job in jobs {
            engine.submit(Duration::ZERO, *job).unwrap();
        }
        Self { engine, now: Duration::ZERO }
    }

    /// One step; returns (id, generated) of each output.
    fn step(&mut self) -> Vec<(u64, u64)> {
        let took = self.engine.begin_step(self.now).expect("there is something to do");
        self.now += took;
        self.engine.finish_step(self.now).iter().map(|output| (output.id, output.generated)).collect()
    }

    /// (running, waiting, blocks in use).
    fn gauges(&self) -> (u64, u64, f64) {
        let gauges = self.engine.stats().gauges;
        (gauges.running, gauges.waiting, gauges.kv_usage * 8.0)
    }
}

#[test]
fn blocks_are_taken_at_block_boundaries_and_given_back_at_the_end() {
    // 6 prompt tokens: 2 blocks. The token of step k is computed in step k+1, so step 3 computes the 8th token and step
    // 4 the 9th, which needs block 3. Output 4 ends it.
    let mut bench = Bench::new(limits(), &[job(1, 6, 4)]);
    assert_eq!(bench.step(), [(1, 1)]);
    assert_eq!(bench.gauges(), (1, 0, 2.0));
    assert_eq!(bench.step(), [(1, 2)]);
    assert_eq!(bench.step(), [(1, 3)]);
    assert_eq!(bench.gauges(), (1, 0, 2.0));
    assert_eq!(bench.step(), [(1, 4)]);
    assert_eq!(bench.gauges(), (0, 0, 0.0));
    assert_eq!(bench.engine.begin_step(bench.now), None);

    let mut longer = Bench::new(limits(), &[job(1, 6, 5)]);
    for _ in 0..4 {
        longer.step();
    }
    assert_eq!(longer.gauges(), (1, 0, 3.0));
}

#[test]
fn a_step_takes_its_base_and_what_is_in_it() {
    // Prefill of 6 and 4 tokens: 10 + 2 x 1 + 10 x 1 ms. Decode of two: 10 + 2 x 1 ms.
    let mut bench = Bench::new(limits(), &[job(1, 6, 4), job(2, 4, 4)]);
    assert_eq!(bench.engine.begin_step(bench.now), Some(Duration::from_millis(22)));
    bench.engine.finish_step(bench.now);
    assert_eq!(bench.engine.begin_step(bench.now), Some(Duration::from_millis(12)));
}

#[test]
fn a_long_prompt_is_prefilled_in_chunks_and_counted_when_it_has_passed() {
    // 20 prompt tokens, 16 a step: the first step yields no token and counts nothing.
    let mut bench = Bench::new(limits(), &[job(1, 20, 4)]);
    assert!(bench.step().is_empty());
    assert_eq!(bench.gauges(), (1, 0, 4.0));
    assert_eq!((bench.engine.stats().prompt_tokens, bench.engine.stats().steps()), (0, 0));
    assert_eq!(bench.step(), [(1, 1)]);
    assert_eq!(bench.gauges(), (1, 0, 5.0));
    let stats = bench.engine.stats();
    assert_eq!((stats.prompt_tokens, stats.generation_tokens, stats.steps()), (20, 1, 1));
    assert_eq!(stats.iteration_tokens.sum(), 21.0);
    // 10 + 1 + 16 ms, then 10 + 1 + 4 ms.
    assert_eq!(stats.ttft.sum(), 0.042);
}

#[test]
fn the_queue_is_first_come_first_served() {
    // 20 tokens need 5 of 8 blocks; the next needs 4 and must wait, and the small one behind it does not overtake.
    let mut bench = Bench::new(limits(), &[job(1, 20, 4), job(2, 16, 4), job(3, 2, 4)]);
    bench.step();
    bench.step();
    assert_eq!(bench.gauges(), (1, 2, 5.0));
}

#[test]
fn the_last_running_one_gives_up_its_blocks_and_is_computed_again_from_the_front_of_the_queue() {
    // Two of 15 tokens: 4 blocks each, the pool is full. Both get token 1 (16 tokens, still 4 blocks), then token 2
    // needs block 5: the first preempts the second.
    let roomy = EngineLimits { max_num_batched_tokens: 64, ..limits() };
    let mut bench = Bench::new(roomy, &[job(1, 15, 4), job(2, 15, 4), job(3, 1, 1)]);
    assert_eq!(bench.step(), [(1, 1), (2, 1)]);
    assert_eq!(bench.gauges(), (2, 1, 8.0));
    assert_eq!(bench.step(), [(1, 2), (2, 2)]);
    assert_eq!(bench.step(), [(1, 3)]);
    assert_eq!(bench.gauges(), (1, 2, 5.0));
    assert_eq!(bench.engine.stats().preemptions, 0, "counted with its next token");
    // The second has 17 tokens, 5 blocks; 3 are free until the first ends, so the third waits behind it.
    assert_eq!(bench.step(), [(1, 4)]);
    assert_eq!(bench.gauges(), (0, 2, 0.0));
    assert_eq!(bench.step(), [(2, 3), (3, 1)]);
    let stats = bench.engine.stats();
    assert_eq!(stats.preemptions, 1);
    assert_eq!(stats.prompt_tokens, 15 + 15 + 1, "a prompt computed again is counted once");
    assert_eq!(bench.gauges(), (1, 0, 5.0));
}

#[test]
fn a_request_that_finds_no_block_and_is_the_last_gives_up_itself() {
    // 7 and 1 blocks: the second, at 4 tokens, needs a second block and none is free.
    let roomy = EngineLimits { max_num_batched_tokens: 64, ..limits() };
    let mut bench = Bench::new(roomy, &[job(1, 25, 7), job(2, 4, 4)]);
    assert_eq!(bench.step(), [(1, 1), (2, 1)]);
    assert_eq!(bench.step(), [(1, 2)]);
    assert_eq!(bench.gauges(), (1, 1, 7.0));
}

#[test]
fn ends_are_counted_by_reason() {
    let natural = Job { natural_tokens: 2, ..job(1, 4, 9) };
    let mut bench = Bench::new(limits(), &[natural, job(2, 4, 2), job(3, 4, 9)]);
    bench.step();
    bench.engine.abort(3);
    bench.step();
    let stats = bench.engine.stats();
    assert_eq!((stats.stopped, stats.length_limited), (1, 1));
    assert_eq!((stats.request_generation_tokens.count(), stats.request_generation_tokens.sum()), (2, 4.0));
    assert_eq!(stats.inter_token.count(), 2);
    assert_eq!(bench.gauges(), (0, 0, 0.0));
}

#[test]
fn an_abort_in_the_middle_of_a_step_frees_its_blocks_and_shows_after_one_more_step() {
    let mut bench = Bench::new(limits(), &[job(1, 8, 4)]);
    bench.step();
    assert_eq!(bench.gauges(), (1, 0, 2.0));
    bench.engine.abort(1);
    assert_eq!(bench.gauges(), (1, 0, 2.0), "gauges are those of the last step");
    assert!(bench.step().is_empty());
    assert_eq!(bench.gauges(), (0, 0, 0.0));
    assert_eq!(bench.engine.begin_step(bench.now), None);
}

#[test]
fn the_batch_holds_no_more_than_its_most_requests() {
    let jobs: Vec<Job> = (1..=5).map(|id| job(id, 1, 4)).collect();
    let mut bench = Bench::new(limits(), &jobs);
    bench.step();
    assert_eq!(bench.gauges(), (4, 1, 4.0));
}

#[test]
fn what_can_never_run_is_refused() {
    let mut engine = Engine::new(limits(), 1);
    let too_long = Err(Refusal::TooLong { max_model_len: 32 });
    assert_eq!(engine.submit(Duration::ZERO, job(1, 29, 4)), too_long);
    assert_eq!(engine.submit(Duration::ZERO, job(1, 0, 4)), too_long);
    assert_eq!(engine.submit(Duration::ZERO, job(1, 4, u64::MAX)), too_long);
    assert_eq!(engine.submit(Duration::ZERO, job(1, 28, 4)), Ok(()));
    for id in 2..=4096 {
        engine.submit(Duration::ZERO, job(id, 1, 1)).unwrap();
    }
    assert_eq!(engine.submit(Duration::ZERO, job(5000, 1, 1)), Err(Refusal::QueueFull));
}

#[test]
fn under_any_load_no_block_is_lost() {
    let mut random = Random::new(3);
    let mut bench = Bench::new(limits(), &[]);
    let mut next = 0;
    for _ in 0..5000 {
        if random.chance(0.3) {
            next += 1;
            let prompt = 1 + random.bits() % 16;
            let sent = Job { natural_tokens: 1 + random.bits() % 20, ..job(next, prompt, 16) };
            bench.engine.submit(bench.now, sent).unwrap();
        }
        if random.chance(0.05) {
            bench.engine.abort(random.bits() % (next + 1));
        }
        if let Some(took) = bench.engine.begin_step(bench.now) {
            bench.now += took;
            bench.engine.finish_step(bench.now);
        }
        let held: u64 = bench.engine.running.iter().map(|sequence| sequence.blocks).sum();
        assert_eq!(held + bench.engine.pool.free(), 8);
        let enough = bench.engine.running.iter().all(|sequence| sequence.blocks * 4 >= sequence.computed);
        assert!(enough, "a request computes only into blocks it holds");
    }
    assert!(bench.engine.stats().preemptions > 0, "the load was heavy enough to mean something");
}
