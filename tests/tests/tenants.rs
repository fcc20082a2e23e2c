//! Classes and tenants: what each may take, and that others do not notice who wants more.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::time::Duration;

use gpuadmit_core::{
    node::Node,
    queue::Answer,
    request::{Class, Completion, Decision, Outcome, Reason, Reference, Request, ReservationId, Verdict},
    settings::{ClassLimits, Mode, Settings, TenantLimits},
    units::{Mono, Tokens},
};
use gpuadmit_tests::node_kit::{
    BLOCK_SIZE, NaiveEngine, OK, admitted, at, complete, denied, rank, reading, ready_node, request, strict,
};

fn of(tenant: &'static str, prompt: u64, most: u64) -> Request<'static> {
    Request { tenant, ..request(prompt, Some(most)) }
}

fn in_class(class: Class, prompt: u64, most: u64) -> Request<'static> {
    Request { class, ..request(prompt, Some(most)) }
}

/// A strict node of 100 blocks of which a request of the anonymous tenant may come to need ten.
fn used_node(settings: Settings) -> Node {
    let mut node = ready_node(settings, 100);
    let _ = admitted(&node.admit(at(0.1), &request(144, Some(16))).unwrap());
    node
}

fn with_tenant(name: &str, limits: TenantLimits) -> Settings {
    let mut settings = strict();
    settings.tenants.insert(name.into(), limits);
    settings
}

#[test]
fn batch_is_admitted_up_to_its_own_share_and_others_beyond_it() {
    let mut node = used_node(strict());
    // 10 used; batch may bring it to 65 and not to 66.
    let over = node.admit(at(0.2), &in_class(Class::Batch, 880, 16)).unwrap(); // 56 blocks
    assert_eq!(denied(&over).reason, Reason::ClassLimit);
    let _ = admitted(&node.admit(at(0.2), &in_class(Class::Batch, 864, 16)).unwrap()); // 55 blocks
    let next = node.admit(at(0.3), &in_class(Class::Batch, 1, 1)).unwrap();
    assert_eq!((denied(&next).reason, denied(&next).reason.http_status()), (Reason::ClassLimit, 429));
    let _ = admitted(&node.admit(at(0.3), &request(300, Some(16))).unwrap());
}

#[test]
fn an_idle_engine_admits_batch_beyond_its_share() {
    let mut node = ready_node(strict(), 100);
    let _ = admitted(&node.admit(at(0.1), &in_class(Class::Batch, 1584, 16)).unwrap());
}

#[test]
fn what_is_held_back_for_interactive_requests_is_theirs_alone() {
    let mut settings = strict();
    settings.classes.standard.pool_share = 0.9;
    let mut node = used_node(settings);
    let _ = admitted(&node.admit(at(0.2), &request(1264, Some(16))).unwrap()); // 80 blocks: 90 in all
    let standard = node.admit(at(0.3), &request(16, Some(16))).unwrap();
    assert_eq!(denied(&standard).reason, Reason::ClassLimit);
    let _ = admitted(&node.admit(at(0.3), &in_class(Class::Interactive, 144, 16)).unwrap());
}

#[test]
fn max_tokens_is_capped_by_class_and_the_answer_says_so() {
    let mut settings = strict();
    settings.classes.batch = ClassLimits { max_tokens_limit: Some(Tokens(64)), ..settings.classes.batch };
    let mut node = ready_node(settings.clone(), 100);
    let granted = |node: &mut Node, class| {
        admitted(&node.admit(at(0.1), &in_class(class, 16, 100)).unwrap()).max_tokens
    };
    assert_eq!(granted(&mut node, Class::Batch), Some(Tokens(64)));
    assert_eq!(granted(&mut node, Class::Standard), Some(Tokens(100)));
    settings.clamp_max_tokens = false;
    let mut node = ready_node(settings, 100);
    let over = node.admit(at(0.1), &in_class(Class::Batch, 16, 100)).unwrap();
    assert_eq!(denied(&over).reason, Reason::MaxTokensOverLimit);
}

#[test]
fn a_blocked_tenant_is_denied_in_observe_mode_as_well() {
    let blocked = TenantLimits { blocked: true, ..TenantLimits::default() };
    for mode in [Mode::Enforce, Mode::Observe] {
        let mut node = ready_node(Settings { mode, ..with_tenant("mallory", blocked.clone()) }, 100);
        let decision = node.admit(at(0.1), &of("mallory", 16, 16)).unwrap();
        assert_eq!(denied(&decision).reason, Reason::TenantBlocked);
        let _ = admitted(&node.admit(at(0.1), &of("alice", 16, 16)).unwrap());
    }
}

#[test]
fn a_share_gives_back_what_ends_and_is_the_tenants_own() {
    let limits = TenantLimits { pool_share: 0.3, ..TenantLimits::default() };
    let mut node = used_node(Settings { tenant_default: limits, ..with_tenant("", TenantLimits::default()) });
    let first = admitted(&node.admit(at(0.2), &of("a", 304, 16)).unwrap()).reservation; // 20 blocks
    let over = node.admit(at(0.3), &of("a", 160, 16)).unwrap(); // 11
    assert_eq!(denied(&over).reason, Reason::TenantShare);
    let _ = admitted(&node.admit(at(0.3), &of("b", 304, 16)).unwrap());
    complete(&mut node, at(0.4), first);
    let _ = admitted(&node.admit(at(0.5), &of("a", 464, 16)).unwrap()); // 30
}

#[test]
fn a_reading_does_not_change_what_counts_to_a_tenant() {
    let limits = TenantLimits { pool_share: 0.3, ..TenantLimits::default() };
    let mut node = used_node(with_tenant("a", limits));
    let id = admitted(&node.admit(at(0.2), &of("a", 304, 16)).unwrap()).reservation;
    node.observe(at(1.5), reading("e", at(1.5), vec![rank(0, 100, 29, 2, 0, 0)]));
    assert_eq!(denied(&node.admit(at(1.6), &of("a", 160, 16)).unwrap()).reason, Reason::TenantShare);
    complete(&mut node, at(1.7), id);
    node.observe(at(2.0), reading("e", at(2.0), vec![rank(0, 100, 10, 1, 0, 1)]));
    let _ = admitted(&node.admit(at(2.1), &of("a", 464, 16)).unwrap());
}

#[test]
fn a_token_rate_counts_tokens_and_gives_back_what_was_not_generated() {
    let limits =
        TenantLimits { tokens_per_second: Some(100.0), burst: Some(Tokens(1000)), ..TenantLimits::default() };
    let mut node = ready_node(with_tenant("a", limits), 1000);
    let ask = |node: &mut Node, now: f64, prompt, most| node.admit(at(now), &of("a", prompt, most)).unwrap();
    let first = admitted(&ask(&mut node, 0.1, 200, 600)).reservation;
    let _ = admitted(&ask(&mut node, 0.1, 100, 100));
    let short = ask(&mut node, 0.1, 100, 100);
    assert_eq!(denied(&short).reason, Reason::TenantShare);
    // The bucket is empty: 200 tokens come in two seconds.
    assert_eq!(denied(&short).retry_after, Some(Duration::from_secs(2)));
    let completion = Completion { output_tokens: Some(Tokens(100)), ..OK };
    node.complete(at(0.1), Reference::Id(first), completion);
    // 500 of its 600 were not generated.
    let never_sent = admitted(&ask(&mut node, 0.1, 100, 400)).reservation;
    let completion = Completion { outcome: Outcome::NotSent, ..OK };
    node.complete(at(0.1), Reference::Id(never_sent), completion);
    let _ = admitted(&ask(&mut node, 0.1, 100, 400));
    let _ = admitted(&node.admit(at(0.1), &of("b", 1000, 1000)).unwrap());
}

#[test]
fn tenants_beyond_the_table_share_one_account() {
    let limits = TenantLimits { pool_share: 0.1, ..TenantLimits::default() };
    let settings = Settings { tenant_default: limits, ..with_tenant("", TenantLimits::default()) };
    let mut node = ready_node(settings, 10_000);
    let _ = admitted(&node.admit(at(0.1), &request(16, Some(16))).unwrap());
    let names: Vec<_> = (0..1_000).map(|number| format!("tenant-{number}")).collect();
    let mut denials = 0;
    for name in &names {
        let asked = Request { tenant: name, ..request(144, Some(16)) };
        denials += u32::from(matches!(node.admit(at(0.2), &asked).unwrap().verdict, Verdict::Deny(_)));
    }
    // 254 have accounts of their own; the other 746 share one with room for 100 of their requests of ten blocks.
    assert_eq!(denials, 646);
}

/// Six seconds of a node with two tenants: `quiet` asks steadily for little, and `greedy`, if there, sends a hundred requests
/// of max_tokens 65,536 in the first second. Returns what became of quiet's, and the most that greedy held.
fn side_by_side(greedy: bool) -> (Vec<Option<Duration>>, u64) {
    const BLOCKS: u64 = 40_000;
    let limits = TenantLimits { pool_share: 0.5, ..TenantLimits::default() };
    let mut node = ready_node(Settings { queue_depth: 64, ..with_tenant("greedy", limits) }, BLOCKS);
    let mut engine = NaiveEngine::new(BLOCKS, 200, at(0.0));
    let mut greedys: Vec<(ReservationId, u64)> = Vec::new();
    let (mut quiet, mut most) = (Vec::new(), 0);
    let mut asked: Vec<(gpuadmit_core::queue::Ticket, Mono)> = Vec::new();
    for tick in 0..600_u32 {
        let now = at(0.1 + f64::from(tick) * 0.01);
        for id in engine.run(now) {
            complete(&mut node, now, id);
            greedys.retain(|(of, _)| *of != id);
        }
        if tick % 20 == 19 {
            node.observe(now, engine.reading());
        }
        node.handle_timeout(now);
        if greedy && tick < 100 {
            let big = Request { wait: Duration::from_secs(5), ..of("greedy", 500, 65_536) };
            if let Answer::Decided(Decision { verdict: Verdict::Admit(admit), .. }) =
                node.admit_or_wait(now, &big).unwrap()
            {
                engine.send(Some(admit.reservation), 500, 65_536, 65_536, now);
                greedys.push((admit.reservation, admit.blocks.0));
            }
        }
        if tick % 5 == 0 {
            let small = Request { wait: Duration::from_secs(5), ..of("quiet", 300, 200) };
            match node.admit_or_wait(now, &small).unwrap() {
                Answer::Wait(ticket) => asked.push((ticket, now)),
                Answer::Decided(decision) => match decision.verdict {
                    Verdict::Admit(admit) => {
                        engine.send(Some(admit.reservation), 300, 200, 150, now);
                        quiet.push(Some(Duration::ZERO));
                    }
                    Verdict::Deny(_) => quiet.push(None),
                },
            }
        }
        while let Some((ticket, decision)) = node.poll_grant() {
            let of_quiet = asked.iter().find(|(of, _)| *of == ticket).map(|(_, since)| *since);
            match (decision.verdict, of_quiet) {
                (Verdict::Admit(admit), Some(since)) => {
                    engine.send(Some(admit.reservation), 300, 200, 150, now);
                    quiet.push(Some(now.since(since)));
                }
                (Verdict::Admit(admit), None) => {
                    engine.send(Some(admit.reservation), 500, 65_536, 65_536, now);
                    greedys.push((admit.reservation, admit.blocks.0));
                }
                (Verdict::Deny(_), Some(_)) => quiet.push(None),
                (Verdict::Deny(_), None) => {}
            }
        }
        most = most.max(greedys.iter().map(|(_, blocks)| blocks).sum());
    }
    (quiet, most)
}

#[test]
fn a_tenant_that_floods_takes_its_share_and_others_do_not_notice() {
    let (alone, _) = side_by_side(false);
    let (beside, most) = side_by_side(true);
    assert_eq!(alone.len(), 120);
    assert!(alone.iter().all(|one| *one == Some(Duration::ZERO)));
    assert_eq!(beside, alone, "quiet fares as if it were alone");
    // 500 + 65,536 tokens each, in blocks of 16: four fit half of 40,000 blocks.
    let each = (500_u64 + 65_536).div_ceil(BLOCK_SIZE);
    assert_eq!(most, 4 * each);
}
