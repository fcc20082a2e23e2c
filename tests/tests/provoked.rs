//! Each end of an engine and each precursor, provoked in the simulated node of `gpuadmitd --simulate`.

use std::time::Duration;

use gpuadmit_core::{
    event::{Event, EventKind},
    verdict::Cause,
};
use gpuadmit_sim::Scenario;
use gpuadmit_tests::served::quiet;
use gpuadmitd::{daemon::Daemon, handle::Handle};
use tokio::time::{sleep, timeout};

/// Everything has happened long before; the machine may be busy.
const DEADLINE: Duration = Duration::from_mins(2);
/// What is told twice is told by then.
const MORE: Duration = Duration::from_secs(1);

/// Engines `e0` to `e4` on a GPU each, all idle: their requests come from bursts alone.
fn engines(memory_mib: [u64; 5]) -> String {
    let engine = |(index, memory): (usize, u64)| {
        format!(
            "[[gpu]]\n[[engine]]\nname='e{index}'\nmodel='m{index}'\ngpus=[{index}]\nmemory_mib={memory}\n"
        )
    };
    let engines: String = memory_mib.into_iter().enumerate().map(engine).collect();
    format!("{engines}[traffic]\nrequests_per_second=0\n")
}

/// Runs a scenario in the daemon until what was told is `enough` and some more, and returns all of it.
async fn told(scenario: &str, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let folder = tempfile::tempdir().unwrap();
    let mut config = quiet();
    config.socket.path = folder.path().join("s");
    let daemon = Daemon::start(config, Some(Scenario::parse(scenario).unwrap())).unwrap();
    let handle = daemon.handle().clone();
    let serving = tokio::spawn(daemon.serve(std::future::pending()));
    let all = async {
        while !enough(&events(&handle)) {
            sleep(Duration::from_millis(50)).await;
        }
        sleep(MORE).await;
    };
    let came = timeout(DEADLINE, all).await;
    serving.abort();
    let events = events(&handle);
    assert!(came.is_ok(), "not enough: {events:#?}");
    events
}

fn has_all(wanted: &[EventKind]) -> impl Fn(&[Event]) -> bool {
    move |events| wanted.iter().all(|kind| events.iter().any(|event| event.kind == *kind))
}

fn events(handle: &Handle) -> Vec<Event> {
    handle.events_after(0, usize::MAX).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_end_is_told_once_with_its_author() {
    let ends = ["sigkill", "oom_killer", "oom_daemon", "segfault", "cuda_oom"];
    let kills: String = ends
        .iter()
        .enumerate()
        .map(|(index, by)| {
            format!("[[incident]]\nkind='kill'\nat_s=3\nengine='e{index}'\nrestart_after_s=60\nby='{by}'\n")
        })
        .collect();
    let scenario = engines([70_000; 5]) + &kills;
    let down = |events: &[Event]| {
        let down = events.iter().filter(|event| event.kind == EventKind::EngineDown);
        let named = down.map(|event| (event.engine.as_deref().unwrap_or("").to_owned(), event.cause));
        let mut named: Vec<_> = named.map(|(engine, cause)| (engine, cause.map(Cause::as_str))).collect();
        named.sort();
        named
    };
    let events = told(&scenario, |events| down(events).len() >= ends.len()).await;
    let wanted = ["KILLED", "KERNEL_OOM", "OOM_DAEMON", "CRASH", "CUDA_OOM"];
    let wanted: Vec<_> =
        wanted.iter().enumerate().map(|(index, cause)| (format!("e{index}"), Some(*cause))).collect();
    assert_eq!(down(&events), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_precursor_can_be_provoked() {
    // What an engine needs when it wakes is known from what it held before: lists of processes come once a second.
    let incidents = "
        [[incident]]\nkind='stuck_gauge'\nat_s=0\nfor_s=90\nengine='e0'\nusage=0.99
        [[incident]]\nkind='oom_score'\nat_s=3\nengine='e0'\nto=300
        [[incident]]\nkind='failed_allocation'\nat_s=3\nengine='e1'\nmib=512
        [[incident]]\nkind='failed_allocation'\nat_s=3\nengine='e2'\nmib=512
        [[incident]]\nkind='co_tenant'\nat_s=3\ngpu=2\nmib_per_s=500\nmax_mib=9000\nhold_s=90
        [[incident]]\nkind='xid'\nat_s=4\ngpu=3\ncode=63
        [[incident]]\nkind='nvml_hang'\nat_s=5\ngpu=3\nfor_s=5
        [[incident]]\nkind='sleep'\nat_s=8\nengine='e4'\nfor_s=90
        [[incident]]\nkind='co_tenant'\nat_s=10\ngpu=4\nmib_per_s=20000\nmax_mib=40000\nhold_s=90
        [[incident]]\nkind='host_memory'\nat_s=2\nfor_s=12\nengine='e0'\nwhat='cgroup'\nshare=0.97
        [[incident]]\nkind='host_memory'\nat_s=2\nfor_s=60\nengine='e0'\nwhat='pressure'\nshare=0.5
        [[incident]]\nkind='host_memory'\nat_s=2\nfor_s=60\nengine='e0'\nwhat='shared_memory'\nshare=0.97
    ";
    let incidents: String = incidents.lines().map(|line| format!("{}\n", line.trim())).collect();
    let wanted = [
        EventKind::MetricsStuck,
        EventKind::OomScoreRaised,
        EventKind::AllocationFailed,
        EventKind::AllocationRefused,
        EventKind::CoTenantGrowth,
        EventKind::XidNotice,
        EventKind::NvmlHung,
        EventKind::DeviceMemoryLow,
        EventKind::CgroupNearLimit,
        EventKind::MemoryPressure,
        EventKind::SharedMemoryNearFull,
        EventKind::AlertOver,
    ];
    let events =
        told(&(engines([70_000, 80_900, 70_000, 70_000, 70_000]) + &incidents), has_all(&wanted)).await;
    let host = [EventKind::CgroupNearLimit, EventKind::MemoryPressure, EventKind::SharedMemoryNearFull];
    let alerts = events.iter().filter(|event| host.contains(&event.kind) && event.caused_by.is_none());
    assert_eq!(alerts.count(), 1, "one shortage of host memory: {events:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_past_admission_fills_the_cache_and_makes_the_engine_preempt() {
    let scenario = "
        gpu = [{}]
        [[engine]]\nname='e'\ngpus=[0]\nblocks=1025
        [traffic]\nrequests_per_second=0.5\nprompt_tokens={median=100,p95=200,max=300}
        output_tokens={median=800,p95=1500,max=2000}\nmax_tokens=1500
        [[incident]]\nkind='burst'\nat_s=3\nfor_s=40\nrequests_per_second=4
    ";
    let scenario: String = scenario.lines().map(|line| format!("{}\n", line.trim())).collect();
    let wanted = [EventKind::KvFilling, EventKind::PreemptionOnset];
    let _events = told(&scenario, has_all(&wanted)).await;
}
