//! The NVML source over a real child process and a fake library.

mod gpu_script;
mod rig;

use std::{
    io::{BufRead, BufReader},
    time::Duration,
};

use gpuadmit_core::{
    observation::{DeviceEvent, DeviceMemory, DeviceProcess, MigInstance, Observation, SourceHealth},
    units::Bytes,
};
use nix::{sys::signal, unistd::Pid};
use rig::{Parts, Rig};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// 140 GiB: 1 reserved, 39 used, 100 free.
fn gpu(name: &str) -> Value {
    json!({
        "uuid": format!("GPU-{name}"),
        "pci": format!("00000000:{name}:00.0"),
        "name": "NVIDIA H200",
        "memory": {"total": 140 * GIB, "reserved": GIB, "used": 39 * GIB, "free": 100 * GIB},
        "utilisation": 37,
    })
}

fn node(devices: &[Value]) -> Value {
    json!({"driver": "580.82.07", "devices": devices})
}

fn with(mut value: Value, key: &str, field: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), field);
    }
    value
}

fn memory(reserved: Option<u64>, used: u64, free: u64) -> Option<DeviceMemory> {
    let (total, reserved) = (Bytes(140 * GIB), reserved.map(|gib| Bytes(gib * GIB)));
    Some(DeviceMemory { total, reserved, used: Bytes(used * GIB), free: Bytes(free * GIB) })
}

async fn processes(rig: &mut Rig, uuid: &str, fits: impl Fn(&[DeviceProcess]) -> bool) -> Vec<DeviceProcess> {
    rig.until("a process list", |observation| match observation {
        Observation::DeviceProcesses(list) if &*list.uuid == uuid && fits(&list.processes) => {
            Some(list.processes)
        }
        _ => None,
    })
    .await
}

#[tokio::test]
async fn every_figure_arrives_as_the_library_tells_it() {
    let listed = json!([{"pid": 4711, "used": 38 * GIB}, {"pid": 4712}]);
    let world = node(&[gpu("41"), with(gpu("61"), "processes", listed)]);
    let mut rig = Parts::new(&world).start();

    let reading = rig.reading("GPU-61", |_| true).await;
    assert_eq!(reading.memory, memory(Some(1), 39, 100));
    assert_eq!(
        (reading.index, reading.name.as_str(), reading.pci.as_str()),
        (1, "NVIDIA H200", "00000000:61:00.0")
    );
    assert_eq!(
        (reading.utilisation_percent, reading.parent.as_deref(), reading.problem.as_str()),
        (Some(37), None, "")
    );
    assert!(reading.span.not_before <= reading.span.not_after);
    assert!(reading.span.not_after <= gpuadmitd::clock::now());

    let list = processes(&mut rig, "GPU-61", |_| true).await;
    let told = DeviceProcess { pid: 4711, used: Some(Bytes(38 * GIB)) };
    assert_eq!(list, [told, DeviceProcess { pid: 4712, used: None }]);

    let report = rig.report(SourceHealth::Ok, "2 GPUs").await;
    assert!(report.busy.is_some_and(|busy| busy > Duration::ZERO));

    let less = json!({"total": 140 * GIB, "reserved": GIB, "used": 129 * GIB, "free": 10 * GIB});
    rig.change(&node(&[gpu("41"), with(gpu("61"), "memory", less)]));
    rig.reading("GPU-61", |reading| reading.memory == memory(Some(1), 129, 10)).await;
}

#[tokio::test]
async fn a_library_with_the_old_memory_call_only_is_read_by_it() {
    for error in ["FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "NOT_SUPPORTED"] {
        let world = node(&[with(gpu("41"), "errors", json!({"nvmlDeviceGetMemoryInfo_v2": error}))]);
        let reading = Parts::new(&world).start().reading("GPU-41", |_| true).await;
        assert_eq!(reading.memory, memory(None, 40, 100), "{error}");
        assert_eq!(reading.problem, "");
    }
}

#[tokio::test]
async fn mig_instances_are_devices_under_their_gpu() {
    let instance = |n: u64| {
        json!({
            "uuid": format!("MIG-{n}"),
            "name": "NVIDIA H200 MIG 1g.18gb",
            "memory": {"total": 16 * GIB, "reserved": 0, "used": n * GIB, "free": (16 - n) * GIB},
            "processes": [{"pid": 100 + n, "used": n * GIB}],
            "ids": [4 + n, 0],
        })
    };
    let world = node(&[with(gpu("41"), "instances", json!([instance(1), instance(2)]))]);
    let mut rig = Parts::new(&world).start();
    let reading = rig.reading("MIG-2", |_| true).await;
    assert_eq!(reading.parent.as_deref(), Some("GPU-41"));
    assert_eq!((reading.index, reading.pci.as_str()), (1, "00000000:41:00.0"));
    assert_eq!(reading.instance, Some(MigInstance { gpu: 6, compute: 0 }));
    assert_eq!(reading.memory.map(|memory| memory.used), Some(Bytes(2 * GIB)));
    assert_eq!(reading.utilisation_percent, None);
    let list = processes(&mut rig, "MIG-1", |_| true).await;
    assert_eq!(list, [DeviceProcess { pid: 101, used: Some(Bytes(GIB)) }]);

    rig.change(&node(&[with(gpu("41"), "instances", json!([instance(3)]))]));
    assert_eq!(rig.reading("MIG-3", |_| true).await.index, 0);
}

#[tokio::test]
async fn a_gpu_without_memory_of_its_own_is_told_as_such_and_is_no_failure() {
    let mut rig = Parts::new(&node(&[with(gpu("41"), "memory", Value::Null)])).start();
    let reading = rig.reading("GPU-41", |_| true).await;
    assert_eq!(reading.memory, None);
    assert!(reading.problem.contains("no memory of its own"), "{}", reading.problem);
    rig.report(SourceHealth::Ok, "1 GPU").await;
}

#[tokio::test]
async fn a_lost_gpu_is_told_once_and_so_is_its_return() {
    let lost = with(gpu("41"), "errors", json!({"*": "GPU_IS_LOST"}));
    let mut rig = Parts::new(&node(&[gpu("41"), gpu("61")])).start();
    rig.reading("GPU-41", |_| true).await;
    rig.change(&node(&[lost, gpu("61")]));
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::Lost);
    rig.report(SourceHealth::Degraded, "GPU 0: device fell off the bus").await;
    rig.forget();
    let seen = rig.meanwhile(30, "GPU-61").await;
    let of_lost = |seen: &Observation| match seen {
        Observation::Device(reading) => &*reading.uuid == "GPU-41",
        Observation::DeviceEvent { .. } => true,
        _ => false,
    };
    assert_eq!(seen.iter().filter(|seen| of_lost(seen)).count(), 0);
    rig.change(&node(&[gpu("41"), gpu("61")]));
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::Recovered);
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn a_hung_call_stops_its_own_device_only() {
    let hung = with(gpu("41"), "hang", json!(["nvmlDeviceGetMemoryInfo_v2"]));
    let mut rig = Parts::new(&node(&[gpu("41"), gpu("61")])).start();
    rig.reading("GPU-41", |_| true).await;
    rig.change(&node(&[hung, gpu("61")]));
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::Hung);
    rig.report(SourceHealth::Degraded, "GPU 0: a call does not return").await;
    let seen = rig.meanwhile(20, "GPU-61").await;
    assert!(!seen.iter().any(|seen| matches!(seen, Observation::DeviceEvent { .. })));
    rig.change(&node(&[gpu("41"), gpu("61")]));
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::Recovered);
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn a_driver_that_is_installed_later_is_found() {
    let mut rig = Parts::new(&node(&[gpu("41")])).start_without_library();
    let report = rig.report(SourceHealth::Absent, "cannot be loaded").await;
    assert!(report.detail.contains("libnvidia-ml.so.1"), "{}", report.detail);
    rig.install_library();
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn a_driver_that_is_loaded_later_is_found() {
    let world = node(&[gpu("41")]);
    let unloaded = with(world.clone(), "errors", json!({"nvmlInit_v2": "DRIVER_NOT_LOADED"}));
    let mut rig = Parts::new(&unloaded).start();
    rig.report(SourceHealth::Absent, "driver is not loaded").await;
    rig.change(&world);
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn a_release_ends_the_child_and_keeps_it_away() {
    let mut rig = Parts::new(&node(&[gpu("41")])).start();
    rig.reading("GPU-41", |_| true).await;
    assert_eq!(rig.children().len(), 1);
    assert!(rig.nvml.release(Duration::from_secs(3600)).await);
    assert!(rig.children().is_empty());
    rig.report(SourceHealth::Absent, "let go of the driver for 3600 s").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(rig.children().is_empty());
    assert!(!rig.nvml.release(Duration::ZERO).await);
    rig.reading("GPU-41", |_| true).await;
    assert!(rig.nvml.release(Duration::from_millis(300)).await);
    rig.forget();
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn neither_a_release_nor_the_end_waits_for_a_hung_call() {
    let hung = with(gpu("41"), "hang", json!(["nvmlDeviceGetMemoryInfo_v2"]));
    let mut rig = Parts::new(&node(&[hung])).start();
    rig.event("GPU-41").await;
    assert!(rig.nvml.release(Duration::from_millis(100)).await);
    rig.event("GPU-41").await;
    assert_eq!(rig.children().len(), 1);
    rig.end().await;
}

#[test]
fn the_child_ends_by_itself_when_its_parent_is_gone_whatever_call_hangs() {
    let hung = with(gpu("41"), "hang", json!(["nvmlDeviceGetMemoryInfo_v2"]));
    let (mut command, _directory) = Parts::new(&node(&[hung])).into_command();
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(r#""what":"hung""#)));
    drop(child.stdin.take());
    assert!(lines.any(|line| line.contains(r#""type":"bye""#)));
    assert!(rig::exit_of(child).is_some_and(|status| status.success()));
}

#[tokio::test]
async fn a_driver_that_hangs_while_it_is_opened_can_be_released() {
    let world = with(node(&[gpu("41")]), "hang", json!(["nvmlInit_v2"]));
    let mut rig = Parts::new(&world).start();
    rig.report(SourceHealth::Failed, "the driver: a call does not return").await;
    assert!(rig.nvml.release(Duration::from_secs(3600)).await);
    assert!(rig.children().is_empty());
}

#[tokio::test]
async fn an_xid_is_reported_once_with_the_gpu_that_had_it() {
    let world = node(&[gpu("41"), gpu("61")]);
    let mut rig = Parts::new(&world).start();
    rig.reading("GPU-61", |_| true).await;
    let events = json!([{"device": 1, "what": {"xid": 79}}]);
    rig.change(&with(world.clone(), "events", events));
    assert_eq!(rig.event("GPU-61").await, DeviceEvent::Xid { code: 79 });
    let events = json!([
        {"device": 1, "what": {"xid": 79}},
        {"device": 0, "what": "ecc_corrected"},
        {"device": 0, "what": "ecc_uncorrected"},
    ]);
    rig.change(&with(world, "events", events));
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::EccCorrected);
    assert_eq!(rig.event("GPU-41").await, DeviceEvent::EccUncorrected);
    let seen = rig.meanwhile(20, "GPU-61").await;
    assert!(!seen.iter().any(|seen| matches!(seen, Observation::DeviceEvent { .. })));
}

#[tokio::test]
async fn unbinding_makes_the_child_let_go_and_come_back_after_it() {
    let world = node(&[gpu("41")]);
    let mut rig = Parts::new(&world).start();
    rig.reading("GPU-41", |_| true).await;
    rig.change(&with(world.clone(), "unbind", json!(true)));
    rig.report(SourceHealth::Absent, "being unbound").await;
    rig.change(&world);
    rig.reading("GPU-41", |_| true).await;
}

#[tokio::test]
async fn a_library_that_does_not_announce_unbinding_says_so_and_works() {
    let world = with(node(&[gpu("41")]), "errors", json!({"nvmlSystemEventSetCreate": "NOT_SUPPORTED"}));
    let mut rig = Parts::new(&world).start();
    rig.report(SourceHealth::Ok, "unbinding of the driver is not announced").await;
}

#[tokio::test]
async fn a_hint_lists_processes_before_their_interval_is_over() {
    let world = node(&[gpu("41")]);
    let mut rig = Parts::new(&world).with("--processes-interval-ms", "600000").start();
    processes(&mut rig, "GPU-41", <[_]>::is_empty).await;
    rig.change(&node(&[with(gpu("41"), "processes", json!([{"pid": 77, "used": GIB}]))]));
    rig.nvml.hint_processes();
    let list = processes(&mut rig, "GPU-41", |_| true).await;
    assert_eq!(list, [DeviceProcess { pid: 77, used: Some(Bytes(GIB)) }]);
}

#[tokio::test]
async fn a_killed_child_is_told_and_started_again() {
    let mut rig = Parts::new(&node(&[gpu("41")])).start();
    let before = rig.report(SourceHealth::Ok, "1 GPU").await;
    let child = Pid::from_raw(rig.children()[0]);
    signal::kill(child, signal::Signal::SIGKILL).unwrap();
    rig.report(SourceHealth::Failed, "ended unasked").await;
    let after = rig.report(SourceHealth::Ok, "1 GPU").await;
    assert!(after.busy >= before.busy, "{:?} < {:?}", after.busy, before.busy);
    assert_ne!(rig.children(), [child.as_raw()]);
}

#[tokio::test]
async fn garbage_is_counted_told_and_ended() {
    let mut rig = Parts::new(&node(&[])).with_shell("while :; do echo garbage; done").start();
    rig.report(SourceHealth::Failed, "its output is garbage").await;
    // The next child comes after its pause.
    rig.report(SourceHealth::Failed, "its output is garbage").await;
}

#[tokio::test]
async fn a_line_without_end_is_skipped_and_what_follows_is_read() {
    let health = r#"{"type":"health","span":{"not_before_ns":1,"not_after_ns":1},"state":"ok","detail":"alive","busy_us":5}"#;
    let script = format!("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo '{health}'; exec sleep 60");
    let mut rig = Parts::new(&node(&[])).with_shell(&script).start();
    let report = rig.report(SourceHealth::Degraded, "alive").await;
    assert_eq!(report.detail, "alive; 1 messages could not be used");
    assert!(rig.nvml.release(Duration::from_secs(3600)).await);
}
