//! The script for a real GPU, tried on the fake one: it must agree with an honest nvidia-smi and complain of another.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Output};

use gpuadmit_tests::skip::skip;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Stands for nvidia-smi: prints the fake node's memory, `ADDED` MiB added to what is used.
const NVIDIA_SMI: &str = r#"#!/usr/bin/env python3
import json, os, sys
world = json.load(open(os.environ["GPUADMIT_FAKE_NVML"]))
for device in world["devices"]:
    if sys.argv[1] == "-L":
        print("GPU 0:", device["uuid"])
        continue
    if "compute-apps" in sys.argv[1]:
        print(device["uuid"] + ", 4711, 90")
        continue
    m = {key: value >> 20 for key, value in device["memory"].items()}
    print(f"{device['uuid']}, {m['total']}, {m['reserved']}, {m['used'] + ADDED}, {m['free']}")
"#;

/// Stands for PyTorch: takes 512 MiB of the fake GPU after two seconds.
const LOAD: &str = r#"
import json, os, sys, time
path = os.environ["GPUADMIT_FAKE_NVML"]
def hold(mib):
    world = json.load(open(path))
    world["devices"][0]["memory"].update(used=(100 + mib) << 20, free=(900 - mib) << 20)
    json.dump(world, open(path + ".new", "w"))
    os.rename(path + ".new", path)
    print(mib << 20, flush=True)
hold(0)
time.sleep(2)
hold(512)
sys.stdin.read()
"#;

fn world() -> Value {
    let memory = json!({"total": 1010 * MIB, "reserved": 10 * MIB, "used": 100 * MIB, "free": 900 * MIB});
    let processes = json!([{"pid": 4711, "used": 90 * MIB}]);
    let device = json!({"uuid": "GPU-41", "pci": "0:41:0.0", "name": "fake", "memory": memory, "processes": processes});
    json!({"driver": "580.82.07", "devices": [device]})
}

/// Runs the script with an nvidia-smi that lies by so many MiB; `None` where there is no python3.
fn run(added_mib: u64) -> Option<Output> {
    std::process::Command::new("python3").arg("--version").output().ok()?;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("world.json"), world().to_string()).unwrap();
    fs::write(at("load.py"), LOAD).unwrap();
    fs::write(at("nvidia-smi"), NVIDIA_SMI.replace("ADDED", &added_mib.to_string())).unwrap();
    fs::set_permissions(at("nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
    super::rig::install_library(directory.path());
    // The child alone stands for the daemon, whose first argument it does not know.
    fs::write(
        at("gpuadmitd"),
        format!("#!/bin/sh\nshift\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_nvml-child")),
    )
    .unwrap();
    fs::set_permissions(at("gpuadmitd"), fs::Permissions::from_mode(0o755)).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu/run.sh");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = std::process::Command::new(script)
        .args(["--seconds", "5", "--library"])
        .arg(at("libnvidia-ml.so.1"))
        .arg("--load")
        .arg(format!("python3 {}", at("load.py").display()))
        .env("PATH", format!("{}:{path}", directory.path().display()))
        .env("GPUADMITD", at("gpuadmitd"))
        .env("GPUADMIT_FAKE_NVML", at("world.json"))
        .output();
    Some(output.unwrap())
}

#[test]
fn the_script_for_a_real_gpu_agrees_with_an_honest_nvidia_smi() {
    let Some(output) = run(0) else { return skip("no python3") };
    let (told, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}{complaints}");
    assert!(told.contains("512 MiB asked for, a change of 512 MiB seen"), "{told}");
    assert!(!told.contains(" and 0 of processes"), "{told}");
    println!("{told}");
}

#[test]
fn the_script_for_a_real_gpu_complains_of_figures_that_differ() {
    let Some(output) = run(64) else { return skip("no python3") };
    assert_eq!(output.status.code(), Some(1));
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(complaints.contains("WRONG: GPU-41: used is "), "{complaints}");
}
