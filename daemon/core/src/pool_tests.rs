use super::*;
use crate::testing::{at, facts, rank};

fn pool(used: u64, running: u64) -> Pool {
    let mut pool = Pool::new(0, &facts(at(0.0)));
    pool.read(Span::at(at(0.0)), Duration::from_secs(1), rank(used, running, 0, 0));
    pool
}

#[test]
fn the_null_block_holds_nothing() {
    assert_eq!(pool(37, 1).total, Some(Blocks(100)));
    assert_eq!(pool(37, 1).figures.unwrap().used, Some(Blocks(37)));
}

#[test]
fn a_hybrid_models_block_size_follows_from_the_pool_in_tokens() {
    let mut pool = pool(0, 0);
    let raw = RankReading { block_size: Some(4), kv_cache_size_tokens: Some(101 * 256), ..rank(0, 0, 0, 0) };
    pool.read(Span::at(at(1.0)), Duration::from_secs(1), raw);
    assert_eq!(pool.block_size, 256);
}

#[test]
fn a_pool_whose_size_is_not_told_has_no_limit_and_no_use() {
    let mut pool = Pool::new(0, &facts(at(0.0)));
    let raw = RankReading { num_gpu_blocks: None, ..rank(50, 1, 0, 0) };
    pool.read(Span::at(at(0.0)), Duration::from_secs(1), raw);
    let terms = pool.terms(at(0.0), Sums::default(), None, &Settings::default());
    assert_eq!((terms.limit, terms.reported), (None, None));
    assert_eq!(terms.excess(), Blocks::ZERO);
}

#[test]
fn arrivals_are_what_came_into_the_engine_whether_it_stayed_or_ended() {
    let mut pool = pool(10, 2);
    // 2 in the engine; 5 ended since and 3 are there now: 6 came.
    let change = pool.read(Span::at(at(1.0)), Duration::from_secs(1), rank(10, 2, 1, 5));
    assert_eq!(change.arrivals, Some(6));
    assert!(change.moved && !change.restarted);
    let change = pool.read(Span::at(at(2.0)), Duration::from_secs(1), rank(10, 2, 1, 5));
    assert_eq!((change.arrivals, change.moved), (Some(0), false));
    let change = pool.read(Span::at(at(3.0)), Duration::from_secs(1), rank(0, 0, 0, 0));
    assert!(change.restarted);
}

#[test]
fn the_token_rate_is_per_running_request() {
    let mut pool = pool(10, 4);
    let raw = RankReading { generation_tokens: Some(200), ..rank(12, 4, 0, 0) };
    pool.read(Span::at(at(2.0)), Duration::from_secs(1), raw);
    // 200 tokens, 4 requests, 2 seconds.
    assert_eq!(pool.token_rate.get(), Some(25.0));
}

#[test]
fn the_operators_ceiling_lowers_the_limit() {
    let settings = Settings { ceiling: 0.8, ..Settings::default() };
    assert_eq!(pool(0, 0).limit(&settings), Some(Blocks(80)));
}

#[test]
fn requests_that_are_not_ours_are_given_room_to_grow() {
    let mut pool = pool(30, 3);
    pool.bypass = 2;
    let raw = RankReading {
        waiting: Some(1),
        prompt_tokens: Some(1600),
        generation_lengths: vec![(32.0, 10), (f64::INFINITY, 10)],
        ..rank(30, 3, 1, 10)
    };
    pool.read(Span::at(at(1.0)), Duration::from_secs(1), raw);
    // One running may grow by 32 tokens = 2 blocks; one waits with 160 + 32 tokens = 12 blocks.
    let terms = pool.terms(at(1.0), Sums::default(), None, &Settings::default());
    assert_eq!(terms.bypass, Blocks(2 + 12));
}

#[test]
fn a_step_that_computes_prompts_takes_as_long_as_its_prompt_tokens() {
    let mut pool = Pool::new(0, &facts(at(0.0)));
    for (seconds, tokens) in [(0.0, 0), (1.0, 20)] {
        let raw = RankReading { generation_tokens: Some(tokens), ..rank(10, 1, 0, 0) };
        pool.read(Span::at(at(seconds)), Duration::from_secs(1), raw);
    }
    assert_eq!(pool.step_at(at(1.0), Tokens(1024)), Duration::from_millis(50));
    // 3,000 prompt tokens a second, and one of 6,000 to be computed.
    let left = Work::of(Tokens(6000), Tokens(6000));
    pool.prefill.read(Passed {
        among_ours: true,
        at: at(1.0),
        elapsed: Duration::from_secs(1),
        work: Work::default(),
        told: Some((30_000.0, 10.0)),
        arrived: 0,
        others: None,
        stranger: Work::default(),
        left,
        ours: left,
        backlogged: true,
    });
    let step = pool.step_at(at(1.0), Tokens(1024)).as_secs_f64();
    assert!((step - 1024.0 / 3000.0).abs() < 1e-6, "{step}");
    assert_eq!(pool.step_at(at(1.0), Tokens(8192)), LONGEST_STEP);
    assert_eq!(pool.step_at(at(4.0), Tokens(1024)), Duration::from_millis(50));
}
