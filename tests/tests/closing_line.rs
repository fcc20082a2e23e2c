//! The last lines of `make test`.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use gpuadmit_tests::skip::{SKIPPED, skip};

/// What `make test` prints and how it ends, with `cargo` played by a script.
fn make_test(cargo: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("cargo");
    fs::write(&program, format!("#!/bin/sh\n{cargo}")).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
    let target = folder.path().join("target");
    let output =
        Command::new(script).env("CARGO", &program).env("CARGO_TARGET_DIR", target).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn skipped_tests_are_counted_once_each_and_named_with_their_reasons() {
    let (text, code) = make_test(
        "echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
         echo 'kernel a::test: no root: sorry' >>$GPUADMIT_SKIPPED
         echo 'kernel a::test: no cgroup' >>$GPUADMIT_SKIPPED
         echo 'page test: no cc' >>$GPUADMIT_SKIPPED
         echo 'test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out'",
    );
    let lines: Vec<&str> = text.lines().collect();
    let closing = [
        "SKIPPED kernel a::test: no root: sorry",
        "SKIPPED kernel a::test: no cgroup",
        "SKIPPED page test: no cc",
        "10 passed, 0 failed, 5 skipped",
    ];
    assert_eq!(lines[2..], closing, "{text}");
    assert_eq!(code, Some(0));
}

#[test]
fn a_failure_is_counted_and_ends_it_with_cargos_status() {
    let (text, code) =
        make_test("echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'\nexit 101");
    assert_eq!(text.lines().last(), Some("2 passed, 1 failed, 0 skipped"));
    assert_eq!(code, Some(101));
}

#[test]
#[ignore = "run by a_test_that_cannot_run_writes_down_which_it_is_and_why"]
fn that_cannot_run() {
    skip("two\nlines");
}

#[test]
fn a_test_that_cannot_run_writes_down_which_it_is_and_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "that_cannot_run", "--ignored"]).env(SKIPPED, file.path());
    assert!(program.output().unwrap().status.success());
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "closing_line that_cannot_run: two lines\n");
}
