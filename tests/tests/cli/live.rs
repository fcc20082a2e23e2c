//! The command against the real daemon on a simulated node.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use gpuadmit_tests::binary::binary;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use crate::{DEADLINE, assert_ended, finish, gpuadmit, text};

const LOOK_EVERY: Duration = Duration::from_millis(50);

struct Live {
    folder: TempDir,
    _daemon: Child,
}

impl Live {
    /// A node to which nothing happens.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.toml");
        std::fs::write(&scenario, "seed = 1\n").unwrap();
        Self::simulate(folder, &format!("--simulate={}", scenario.display()))
    }

    fn simulate(folder: TempDir, scenario: &str) -> Self {
        let mut command = Command::new(binary("gpuadmitd"));
        command.arg(scenario).arg("--socket").arg(folder.path().join("s")).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { folder, _daemon: command.spawn().unwrap() }
    }

    async fn run(&self, arguments: &[&str]) -> std::process::Output {
        finish(gpuadmit(&self.folder.path().join("s"), arguments)).await
    }

    /// Runs it again and again until its exit code and output are as `wanted`.
    async fn run_until(&self, arguments: &[&str], wanted: impl Fn(Option<i32>, &str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let output = self.run(arguments).await;
            let stdout = text(&output.stdout);
            if wanted(output.status.code(), stdout) {
                return stdout.to_owned();
            }
            assert!(started.elapsed() < DEADLINE, "{arguments:?}: {stdout}{}", text(&output.stderr));
            sleep(LOOK_EVERY).await;
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn all_have_headroom(of: &Value) -> bool {
    of.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(|one| !one["headroom"].is_null()))
}

#[tokio::test]
async fn a_simulated_node_shows_engines_and_devices_with_headroom_and_takes_a_request() {
    let live = Live::start();
    let started = Instant::now();
    let status = live
        .run_until(&["status", "--json"], |_, stdout| {
            let status = json(stdout);
            all_have_headroom(&status["engines"]) && all_have_headroom(&status["devices"])
        })
        .await;
    println!("engines and devices with headroom after {:?}", started.elapsed());
    assert_eq!(json(&status)["simulated"], true);
    let shown = live.run(&["status"]).await;
    assert!(text(&shown.stdout).starts_with("SIMULATED"), "{}", text(&shown.stdout));

    let model = json(&status)["engines"][0]["models"][0].as_str().unwrap().to_owned();
    let ask = ["admit", &model, "--prompt-tokens", "64", "--max-tokens", "16", "--request-id", "r", "--json"];
    let admitted = json(&live.run_until(&ask, |code, _| code == Some(0)).await);
    let id = admitted["admitted"]["reservation_id"].as_str().unwrap().to_owned();

    let explained = live.run(&["explain", &id]).await;
    assert_ended(&explained, 0);
    assert!(text(&explained.stdout).contains(" need = "), "{}", text(&explained.stdout));
    assert_ended(&live.run(&["progress", &id, "--generated-tokens", "4"]).await, 0);
    assert_eq!(text(&live.run(&["complete", "--request-id", "r"]).await.stdout), "released\n");
    assert_eq!(text(&live.run(&["complete", &id]).await.stdout), "had ended before\n");

    let unknown = live.run(&["admit", "no-such-model", "--prompt-tokens", "64", "--json"]).await;
    assert_ended(&unknown, 1);
    assert_eq!(json(text(&unknown.stdout))["denied"]["reason"], "UNKNOWN_MODEL");
    assert!(text(&live.run(&["events"]).await.stdout).contains("ENGINE_READY"));
}

/// What is named and is not there is an error that says what there is.
#[tokio::test]
async fn what_matches_nothing_is_refused_with_what_there_is() {
    let live = Live::start();
    live.run_until(&["status", "--json"], |_, stdout| all_have_headroom(&json(stdout)["engines"])).await;
    let engines = "one of \"sim-0\", \"sim-1\"";
    let newest = "; use 0 to ";
    for (arguments, code, says) in [
        ("headroom --engine nope", 2, engines),
        ("headroom --engine nope --watch", 2, engines),
        ("guard list --engine nope", 2, engines),
        ("guard clear --engine nope", 2, engines),
        ("stress nope", 2, engines),
        ("admit sim-8b --engine nope --prompt-tokens 1", 1, "known     sim-0, sim-1"),
        ("admit nope --prompt-tokens 1", 1, "known     sim-8b"),
        ("complete 2748", 2, "2748 was never given out; use an id that Admit returned"),
        ("complete 0xabc", 2, "2748 was never given out"),
        ("complete --request-id nope --tenant t", 2, "request \"nope\" of tenant \"t\" was never given out"),
        ("progress 7 --generated-tokens 1", 2, "7 was never given out"),
        ("explain 7", 2, "there is no record of 7"),
        ("events --after 99999", 2, newest),
        ("events --follow --after 99999", 2, newest),
    ] {
        let output = live.run(&arguments.split(' ').collect::<Vec<_>>()).await;
        assert_ended(&output, code);
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(said.contains(says), "{arguments}: {said}");
    }
    for arguments in ["headroom --engine sim-1", "guard list --engine sim-1", "guard clear --engine sim-0"] {
        assert_ended(&live.run(&arguments.split(' ').collect::<Vec<_>>()).await, 0);
    }
}

/// What `make run` shows on a machine without a GPU.
#[tokio::test]
async fn the_built_in_simulation_shows_an_incident_a_denial_and_a_recovery_within_a_minute() {
    let live = Live::simulate(tempfile::tempdir().unwrap(), "--simulate");
    let started = Instant::now();
    let kinds = |status: &Value| -> Vec<String> {
        let of_one = |event: &Value| event["engine"] == "sim-1";
        let events = status["events"].as_array().into_iter().flatten();
        events.filter(|event| of_one(event)).map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    };
    let ask = ["status", "--json", "--events", "256"];
    loop {
        let status = json(text(&live.run(&ask).await.stdout));
        let kinds = kinds(&status);
        let down = kinds.iter().position(|kind| kind == "ENGINE_DOWN");
        let back = down.is_some_and(|down| kinds.iter().skip(down).any(|kind| kind == "ENGINE_READY"));
        let denied = status["decisions"]["by_reason"].as_array().is_some_and(|reasons| {
            reasons.iter().any(|one| one["reason"] == "KV_FULL" && one["count"].as_u64() > Some(0))
        });
        if back && denied {
            break;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "{status:#}");
        sleep(LOOK_EVERY * 10).await;
    }
}

/// What `check` of a doctor's findings says.
fn finding<'a>(doctor: &'a Value, check: &str) -> &'a Value {
    let checks = doctor["checks"].as_array().unwrap();
    checks.iter().find(|one| one["check"] == check).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn the_doctor_sees_a_daemon_and_its_engines() {
    let live = Live::start();
    let doctor = live
        .run_until(&["doctor", "--json"], |_, stdout| finding(&json(stdout), "engine.state")["level"] == "ok")
        .await;
    let doctor = json(&doctor);
    let version = format!("version {}, simulated", env!("CARGO_PKG_VERSION"));
    assert_eq!(finding(&doctor, "daemon.answers")["text"], version);
    assert_eq!(finding(&doctor, "engine.version")["level"], "ok");
}

#[tokio::test]
async fn the_doctor_asks_the_daemons_program_of_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["usr/sbin", "etc/gpuadmit"] {
        std::fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    std::os::unix::fs::symlink(binary("gpuadmitd"), folder.path().join("usr/sbin/gpuadmitd")).unwrap();
    let config = folder.path().join("etc/gpuadmit/gpuadmit.toml");
    std::fs::write(&config, "[limits]\nreservations = 0\n").unwrap();
    let root = folder.path().to_str().unwrap();
    let ask = async || {
        let output =
            finish(gpuadmit("/run/gpuadmit/gpuadmit.sock".as_ref(), &["doctor", "--json", "--root", root]))
                .await;
        // Nobody answers there.
        assert_ended(&output, 2);
        json(text(&output.stdout))
    };
    let refused = ask().await;
    let valid = finding(&refused, "config.valid");
    assert_eq!(valid["level"], "error");
    assert!(valid["text"].as_str().unwrap().contains("limits.reservations: 0 is not allowed"), "{valid}");
    std::fs::write(&config, "").unwrap();
    assert_eq!(finding(&ask().await, "config.valid")["level"], "ok");
}
