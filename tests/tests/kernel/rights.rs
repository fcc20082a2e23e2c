//! What works without being root.

use std::process::Command;

use gpuadmitd::source::kernel::Options;

use crate::{
    Fate, SIGKILL, end_of, exit,
    rig::{Ears, is_root, object, skipped},
};

/// `nobody`.
const UID: &str = "65534";

/// This test program again, as nobody with these rights, running only the test `name`.
fn as_nobody(name: &str, rights: &[&str]) -> Option<String> {
    if !is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        return skipped("becoming another user takes root and setpriv");
    }
    // Where nobody may read them.
    let folder = tempfile::Builder::new().prefix("gpuadmit-rights-").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (program, programs) = (folder.path().join("kernel"), folder.path().join("gpuadmit.bpf.o"));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::copy(object(), &programs).unwrap();
    let caps: String = rights.iter().map(|right| format!(",+{right}")).collect();
    let output = Command::new("setpriv")
        .args(["--reuid", UID, "--regid", UID, "--clear-groups", "--inh-caps", &format!("-all{caps}")])
        .args(["--ambient-caps", &format!("-all{caps}")])
        .arg(&program)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("GPUADMIT_BPF_OBJECT", &programs)
        .current_dir("/")
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    Some(text)
}

#[test]
fn cap_bpf_and_cap_perfmon_are_enough_for_all_but_xid() {
    let Some(text) = as_nobody("rights::with_bpf_and_perfmon", &["bpf", "perfmon"]) else { return };
    println!("{text}");
}

#[test]
fn without_any_right_the_ends_of_own_processes_are_told() {
    let Some(text) = as_nobody("rights::with_nothing", &[]) else { return };
    println!("{text}");
}

#[test]
#[ignore = "run by cap_bpf_and_cap_perfmon_are_enough_for_all_but_xid"]
fn with_bpf_and_perfmon() {
    let ears = Ears::new(&Options { object: Some(object()), ..Options::default() });
    let report = ears.report(|_| true);
    println!("with CAP_BPF and CAP_PERFMON: {}", report.detail);
    let facts = "BPF: exits, signals, OOM victims, oom_score_adj, forks, execs";
    assert!(report.detail.contains(facts), "{}", report.detail);
    assert_eq!(end_of(&ears, Fate::Signal(SIGKILL)).last(), Some(&exit(None, Some(SIGKILL))));
}

#[test]
#[ignore = "run by without_any_right_the_ends_of_own_processes_are_told"]
fn with_nothing() {
    let ears = Ears::new(&Options { object: Some(object()), ..Options::default() });
    let report = ears.report(|_| true);
    println!("without rights: {}", report.detail);
    assert!(report.detail.contains("exits by pidfd"), "{}", report.detail);
    for right in ["CAP_BPF", "CAP_PERFMON"] {
        assert!(report.detail.contains(right), "{}", report.detail);
    }
    assert_eq!(end_of(&ears, Fate::Signal(SIGKILL)).last(), Some(&exit(None, Some(SIGKILL))));
    assert_eq!(end_of(&ears, Fate::Exit(3)).last(), Some(&exit(Some(3), None)));
}
