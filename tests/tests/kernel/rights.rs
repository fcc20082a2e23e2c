//! What works without being root.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Command};

use gpuadmit_core::observation::ProcessChange;
use gpuadmitd::source::kernel::Options;

use crate::{
    Fate, SIGKILL, SIGSEGV, SIGTERM, cgroup, cuda, end_of, exit,
    rig::{Ears, is_root, object, skipped},
    victim::Victim,
};

/// `nobody`.
const UID: &str = "65534";
/// Set where the test is in a memory cgroup with a limit.
const LIMITED: &str = "GPUADMIT_IN_CGROUP";

/// This test program again, as nobody with these rights and in a memory cgroup with a limit, running only the test `name`.
/// Returns what it printed, and whether there was a cgroup.
fn as_nobody(name: &str, rights: &[&str]) -> Option<(String, bool)> {
    if !is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        return skipped("becoming another user takes root and setpriv");
    }
    let group = cgroup::limited();
    // Where nobody may read them.
    let folder = tempfile::Builder::new().prefix("gpuadmit-rights-").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let place = |name: &str, from: &Path| {
        std::fs::copy(from, folder.path().join(name)).unwrap();
        folder.path().join(name)
    };
    let program = place("kernel", &std::env::current_exe().unwrap());
    let programs = place("gpuadmit.bpf.o", &object());
    let libcuda = place("libcuda.so.1", &cuda::built());
    let caps: String = rights.iter().map(|right| format!(",+{right}")).collect();
    let mut command = Command::new("sh");
    if let Some(group) = &group {
        command.args(["-c", "echo $$ >\"$0\" && exec setpriv \"$@\""]).arg(group.members()).env(LIMITED, "1");
    } else {
        command.args(["-c", "exec setpriv \"$@\"", "sh"]);
    }
    let output = command
        .args(["--reuid", UID, "--regid", UID, "--clear-groups", "--inh-caps", &format!("-all{caps}")])
        .args(["--ambient-caps", &format!("-all{caps}")])
        .arg(&program)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("GPUADMIT_BPF_OBJECT", &programs)
        .env(cuda::LIBRARY, &libcuda)
        .current_dir("/")
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("test result: ok. 1 passed"), "{text}");
    Some((text, group.is_some()))
}

#[test]
fn cap_bpf_and_cap_perfmon_are_enough_for_all_but_xid() {
    let Some((text, in_cgroup)) = as_nobody("rights::with_bpf_and_perfmon", &["bpf", "perfmon"]) else {
        return;
    };
    println!("{text}");
    everywhere(&text, in_cgroup);
    works(&text, &["who sent a signal", "children are watched as they are born"]);
    // Before Linux 6.6 probes take CAP_SYS_ADMIN.
    let root = Ears::new(&options()).report(|_| true);
    let probes = if root.detail.contains("(uprobe_multi)") { "works" } else { "does not work" };
    assert!(text.contains(&format!("\n{probes}: probes in libcuda")), "{text}");
}

#[test]
fn without_any_right_the_ends_of_own_processes_are_told() {
    let Some((text, in_cgroup)) = as_nobody("rights::with_nothing", &[]) else { return };
    println!("{text}");
    everywhere(&text, in_cgroup);
}

fn options() -> Options {
    Options { object: Some(object()), cuda: true, ..Options::default() }
}

/// What works with any rights.
fn everywhere(text: &str, in_cgroup: bool) {
    works(text, &["Signal(9)", "Signal(15)", "Exit(3)", "SegfaultInThread", "a raised oom_score_adj"]);
    works(text, &["a process that is gone before it is watched"]);
    if in_cgroup {
        works(text, &["a memory cgroup that runs out of memory"]);
    }
}

fn works(text: &str, what: &[&str]) {
    for what in what {
        assert!(text.contains(&format!("\nworks: {what}\n")), "{what} is missing from:\n{text}");
    }
}

/// What is told with any rights: the scenarios of the tests that run as root.
fn told_with_any_rights(ears: &Ears) {
    for (fate, end) in [
        (Fate::Signal(SIGKILL), exit(None, Some(SIGKILL))),
        (Fate::Signal(SIGTERM), exit(None, Some(SIGTERM))),
        (Fate::Exit(3), exit(Some(3), None)),
        (Fate::SegfaultInThread, exit(None, Some(SIGSEGV))),
    ] {
        assert_eq!(end_of(ears, fate).last(), Some(&end), "{fate:?}");
        println!("works: {fate:?}");
    }
    let victim = Victim::start(Fate::Exit(0));
    ears.kernel.watch(&[victim.process()]);
    std::fs::write(format!("/proc/{}/oom_score_adj", victim.pid()), "700").unwrap();
    let adjusted = |what: &ProcessChange| matches!(what, ProcessChange::OomScoreAdjusted { to: 700, .. });
    ears.until(|event| event.pid == victim.pid() && adjusted(&event.what));
    println!("works: a raised oom_score_adj");
    victim.end();
    ears.until_exit(victim.pid());
    let mut gone = Victim::start(Fate::Exit(0));
    let process = gone.process();
    gone.end();
    gone.reap();
    ears.kernel.watch(&[process]);
    assert_eq!(ears.until_exit(process.pid).last().map(|event| event.what.clone()), Some(exit(None, None)));
    println!("works: a process that is gone before it is watched");
    if std::env::var_os(LIMITED).is_none() {
        return;
    }
    let victim = Victim::start(Fate::EatMemory);
    ears.kernel.watch(&[victim.process()]);
    victim.end();
    let heard = ears.until_exit(victim.pid());
    let chosen = |what: &ProcessChange| matches!(what, ProcessChange::OomVictim { .. });
    assert!(heard.iter().any(|event| event.pid == victim.pid() && chosen(&event.what)), "{heard:?}");
    assert_eq!(heard.last().map(|event| &event.what), Some(&exit(None, Some(SIGKILL))));
    println!("works: a memory cgroup that runs out of memory");
}

#[test]
#[ignore = "run by cap_bpf_and_cap_perfmon_are_enough_for_all_but_xid"]
fn with_bpf_and_perfmon() {
    let ears = Ears::new(&options());
    let report = ears.report(|_| true);
    println!("with CAP_BPF and CAP_PERFMON: {}", report.detail);
    let facts = "BPF: exits, signals, OOM victims, oom_score_adj, forks, execs";
    assert!(report.detail.contains(facts), "{}", report.detail);
    told_with_any_rights(&ears);
    let killed = end_of(&ears, Fate::Signal(SIGKILL));
    let sender = |what: &ProcessChange| matches!(what, ProcessChange::Signal { sender, .. } if sender.pid == std::process::id());
    assert!(killed.iter().any(sender), "{killed:?}");
    println!("works: who sent a signal");
    let parent = Victim::start(Fate::Children(1));
    ears.kernel.watch(&[parent.process()]);
    parent.end();
    let heard = ears.until_exit(parent.pid());
    assert!(heard.iter().any(|event| matches!(event.what, ProcessChange::Forked { .. })), "{heard:?}");
    println!("works: children are watched as they are born");
    if report.detail.contains("libcuda probes (uprobe_multi)") {
        cuda::all_is_counted(&ears, "name");
        println!("works: probes in libcuda");
    } else {
        // Before Linux 6.6: a perf event takes CAP_SYS_ADMIN, which is found out when it is to be attached.
        println!("does not work: probes in libcuda: {}", cuda::refused(&ears));
    }
}

#[test]
#[ignore = "run by without_any_right_the_ends_of_own_processes_are_told"]
fn with_nothing() {
    let ears = Ears::new(&options());
    let report = ears.report(|_| true);
    println!("without rights: {}", report.detail);
    assert!(report.detail.contains("exits by pidfd"), "{}", report.detail);
    for missing in ["CAP_BPF", "CAP_PERFMON", "no libcuda probes without BPF"] {
        assert!(report.detail.contains(missing), "{missing}: {}", report.detail);
    }
    told_with_any_rights(&ears);
    // And nothing is told of signals.
    let killed = end_of(&ears, Fate::Signal(SIGKILL));
    assert_eq!(killed, [exit(None, Some(SIGKILL))]);
}
