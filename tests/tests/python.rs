//! The README's Python gateway as it stands there, in an empty virtual environment, beside a simulated node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use gpuadmit_tests::{
    binary::binary,
    running::{Running, configure, within},
};

/// Longest wait for a simulated engine on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const ONE_ENGINE: &str =
    "[[engine]]\nname = \"e\"\ngpus = [0]\nmodel = \"sim-8b\"\n[traffic]\nrequests_per_second = 0.0\n";

/// Takes the gateway through every way in which a request can end, and counts the completions.
const ENDS: &str = r#"
import os, signal, sys, time
import gateway
from gpuadmit.v1 import admission_pb2 as pb

daemon = int(sys.argv[1])
body = {"model": "sim-8b", "prompt": "Hello", "max_tokens": 8}
real, ends = gateway.admission.Complete, []


def complete(request, timeout):
    answer = real(request, timeout=timeout)
    assert answer.was_held, request
    ends.append(request.outcome)


gateway.admission.Complete = complete
forward, gateway.forward = gateway.forward, None


def broken(error):
    def forward(address, body):
        raise error

    return forward


def end_of(forward, body=body):
    """The answer and the completions of one request, which the daemon takes in time."""
    gateway.forward = forward
    for _ in range(100):
        ends.clear()
        answer = gateway.serve(body)
        if answer[0] != 503:
            return answer, list(ends)
        time.sleep(0.1)
    raise AssertionError(answer)


(status, headers, output), completions = end_of(forward)
assert (status, completions) == (200, [pb.OUTCOME_OK]), (status, completions)
assert output["usage"]["completion_tokens"] == 8, output

(status, _, _), completions = end_of(broken(ConnectionRefusedError("refused")))
assert (status, completions) == (502, [pb.OUTCOME_ENGINE_ERROR]), (status, completions)

try:
    end_of(broken(ValueError("not JSON")))
    raise AssertionError("no error")
except ValueError:
    assert ends == [pb.OUTCOME_ENGINE_ERROR], ends

(status, headers, message), completions = end_of(forward, {**body, "prompt": [1] * 9000})
assert (status, headers, completions) == (400, {}, []), (status, completions)
assert "maximum context length is 8192 tokens" in message, message

(status, _, message), completions = end_of(forward, {**body, "max_tokens": -5})
assert (status, completions) == (400, []) and "max_tokens" in message, message

for stop, name in ((signal.SIGSTOP, "DEADLINE_EXCEEDED"), (signal.SIGKILL, "UNAVAILABLE")):
    os.kill(daemon, stop)
    time.sleep(0.5)
    start = time.monotonic()
    status, headers, message = gateway.serve(body)
    assert (status, headers) == (503, {"Retry-After": "1"}), (status, headers)
    assert name in message, message
    assert time.monotonic() - start < 5
    if stop == signal.SIGSTOP:
        os.kill(daemon, signal.SIGCONT)
print("all ends")
"#;

/// The block of README.md that contains `content`, without its fences.
fn block(content: &str) -> String {
    let readme = fs::read_to_string(format!("{REPOSITORY}/README.md")).unwrap();
    let blocks = readme.split("\n```").skip(1).step_by(2);
    let block = blocks.map(|block| block.split_once('\n').unwrap().1).find(|block| block.contains(content));
    block.unwrap().to_owned()
}

fn shell(folder: &Path, line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder).env("GPUADMIT_SOCKET", folder.join("s"));
    command
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_RETRIES", "1")
        .env("PIP_DEFAULT_TIMEOUT", "15");
    command.output().unwrap()
}

fn succeeds(output: &Output) -> bool {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    true
}

#[test]
fn the_gateway_of_the_readme_ends_every_request_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    symlink(format!("{REPOSITORY}/proto"), folder.join("proto")).unwrap();
    fs::write(folder.join("gateway.py"), block("def serve(")).unwrap();
    let commands = block("grpc_tools.protoc").replace("\\\n", " ");
    let (set_up, run) = commands.trim().rsplit_once('\n').unwrap();
    for line in set_up.lines() {
        let output = shell(folder, line);
        if !output.status.success() && (line.contains("venv venv") || line.contains("pip install")) {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            gpuadmit_tests::skip::skip(format!(
                "no gRPC for Python: {}",
                why.lines().last().unwrap_or_default()
            ));
            return;
        }
        succeeds(&output);
    }
    let scenario = configure(folder, ONE_ENGINE);
    let mut command = Command::new(binary("gpuadmitd"));
    command.arg(format!("--simulate={}", scenario.display())).arg("--socket").arg(folder.join("s"));
    let daemon = Running(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    within(SOON, || {
        let output = shell(folder, run);
        succeeds(&output) && output.stdout.starts_with(b"(200, ")
    });
    fs::write(folder.join("ends.py"), ENDS).unwrap();
    let output = shell(folder, &format!("venv/bin/python ends.py {}", daemon.0.id()));
    assert!(succeeds(&output) && output.stdout == b"all ends\n");
}
