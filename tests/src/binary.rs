//! The programs under test.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// The program `name` of this workspace, built like the calling test (debug or release) and up to date.
///
/// Cargo builds no other package's programs for a test, so that a stale one could be tested unnoticed: hence the build.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(build);
    FOLDER.join(name)
}

/// Builds all programs, with the features that a build of the whole workspace gives their dependencies.
fn build() -> PathBuf {
    let test = env::current_exe().expect("a test knows where it is");
    // target/PROFILE/deps/TEST
    let folder = test.ancestors().nth(2).expect("a test lies in target/PROFILE/deps").to_path_buf();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "--workspace", "--bins", "--target-dir"]);
    command.arg(folder.parent().unwrap_or_else(|| Path::new("target")));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if folder.file_name() == Some(OsStr::new("release")) {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be started");
    assert!(status.success(), "the programs under test cannot be built: {status}");
    folder
}
