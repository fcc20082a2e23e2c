//! Demand against what an engine can do, set against a hand calculation, whatever is admitted of it.

use std::time::Duration;

use gpuadmit_core::{
    event::EventKind,
    node::Node,
    request::{Class, Completion, Outcome, Reason, Reference, Request, Verdict},
    settings::Settings,
    snapshot::{Demand, RejectionsReading},
    units::{Mono, Tokens},
};
use gpuadmit_tests::node_kit::{NaiveEngine, at, complete, denied, ready_node, request};

/// Requests per second, prompt tokens, output tokens, and tokens per second of each: by Little's law they hold
/// 10 × (256 / 50 s) × (160 + 256 / 2) / 16 blocks = 922 blocks on the average.
const ASKS: u32 = 10;
const PROMPT: u64 = 160;
const OUTPUT: u64 = 256;
const TOKENS_PER_SECOND: u64 = 50;
const HELD: f64 = 922.0;

struct Load {
    node: Node,
    engine: NaiveEngine,
}

impl Load {
    fn new(settings: Settings, blocks: u64) -> Self {
        let engine = NaiveEngine::new(blocks, TOKENS_PER_SECOND, at(0.0));
        Self { node: ready_node(settings, blocks), engine }
    }

    /// Asks from `from` to `to` seconds; what is admitted runs, what is denied goes away. With a request id all asks are
    /// one, and it is never sent.
    fn run(&mut self, from: u32, to: u32, request_id: Option<&str>) {
        for tick in from * ASKS..to * ASKS {
            let now = at(f64::from(tick) / f64::from(ASKS));
            for id in self.engine.run(now) {
                let output_tokens = Some(Tokens(OUTPUT));
                let completion = Completion { outcome: Outcome::Ok, output_tokens, prompt_tokens: None };
                self.node.complete(now, Reference::Id(id), completion);
            }
            if tick % (ASKS / 5) == 0 {
                self.node.observe(now, self.engine.reading());
            }
            self.node.handle_timeout(now);
            let ask = Request { request_id, ..request(PROMPT, Some(OUTPUT)) };
            if let Verdict::Admit(admit) = self.node.admit(now, &ask).unwrap().verdict {
                if request_id.is_some() {
                    let outcome = Outcome::NotSent;
                    let completion = Completion { outcome, output_tokens: None, prompt_tokens: None };
                    self.node.complete(now, Reference::Id(admit.reservation), completion);
                    continue;
                }
                self.engine.send(Some(admit.reservation), PROMPT, OUTPUT, OUTPUT, now);
            }
        }
    }

    fn demand(&mut self, now: Mono) -> Demand {
        self.node.snapshot(now).engines[0].demand
    }

    fn told(&self) -> Vec<EventKind> {
        let (events, _) = self.node.history().after(0, usize::MAX);
        let kinds = events.iter().map(|event| event.kind);
        kinds.filter(|kind| matches!(kind, EventKind::ScaleUp | EventKind::ScaleUpOver)).collect()
    }
}

#[test]
fn demand_is_what_littles_law_says_even_when_most_is_denied() {
    for blocks in [2 * 922, 922 / 2] {
        let mut load = Load::new(Settings::default(), blocks);
        load.run(0, 150, None);
        let occupancy = load.demand(at(150.0)).occupancy.unwrap();
        let expected = HELD / f64::from(u32::try_from(blocks).unwrap());
        assert!((occupancy / expected - 1.0).abs() < 0.15, "{occupancy} instead of {expected}");
    }
}

#[test]
fn an_engine_asked_for_too_much_is_told_once_and_again_when_it_is_over() {
    let mut load = Load::new(Settings::default(), 922 / 2);
    load.run(0, 150, None);
    assert_eq!(load.told(), [EventKind::ScaleUp]);
    let rejections = load.node.snapshot(at(150.0)).engines[0].rejections;
    assert_eq!(rejections.reading, Some(RejectionsReading::LosingUsers));
    for second in 150..400 {
        let now = at(f64::from(second));
        load.engine.run(now);
        load.node.observe(now, load.engine.reading());
        load.node.handle_timeout(now);
    }
    assert_eq!(load.told(), [EventKind::ScaleUp, EventKind::ScaleUpOver]);
}

#[test]
fn an_engine_that_can_do_what_is_asked_is_not_told() {
    let mut load = Load::new(Settings::default(), 2 * 922);
    load.run(0, 150, None);
    assert_eq!(load.told(), []);
}

#[test]
fn retries_of_one_request_are_one_ask() {
    let mut load = Load::new(Settings::default(), 922 / 2);
    load.run(0, 60, None);
    let before = load.demand(at(60.0)).ratio.unwrap();
    load.run(60, 120, Some("the same"));
    let after = load.demand(at(120.0)).ratio.unwrap();
    assert!(after < before / 5.0, "{before} then {after}");
}

#[test]
fn batch_is_held_back_only_where_the_operator_wants_that() {
    for tighten_batch in [false, true] {
        let mut settings = Settings { tighten_batch, ..Settings::default() };
        settings.classes.batch.pool_share = 1.0;
        let mut load = Load::new(settings, 922 / 2);
        load.run(0, 150, None);
        // All have ended: there is room, and still nobody says that the demand is over.
        let now = at(160.0);
        for id in load.engine.run(now) {
            complete(&mut load.node, now, id);
        }
        load.node.observe(now, load.engine.reading());
        let batch = Request { class: Class::Batch, ..request(16, Some(1)) };
        let decision = load.node.admit(now, &batch).unwrap();
        let held_back = matches!(&decision.verdict, Verdict::Deny(deny) if deny.reason == Reason::ClassLimit);
        if tighten_batch {
            assert_eq!(denied(&decision).retry_after, Some(Duration::from_secs(30)));
        }
        assert_eq!(held_back, tighten_batch);
    }
}
