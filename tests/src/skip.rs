//! Tests that find out that they cannot run here.

use std::{env, fmt::Display, fs::OpenOptions, io::Write as _, thread};

/// File to which each skipped test adds a line, `PROGRAM TEST: REASON`. `make test` names it, and counts them.
pub const SKIPPED: &str = "GPUADMIT_SKIPPED";

/// Says why the calling test, or a part of it, cannot run here. A test that another user runs may not be able to write
/// it down: whoever started it must.
pub fn skip(why: impl Display) {
    let why = why.to_string().replace('\n', " ");
    eprintln!("SKIPPED: {why}");
    let Some(file) = env::var_os(SKIPPED) else { return };
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_stem()?.to_str()?.rsplit_once('-'));
    let (program, _) = program.unwrap_or_default();
    let thread = thread::current();
    let line = format!("{program} {}: {why}\n", thread.name().unwrap_or_default());
    if let Err(error) =
        OpenOptions::new().append(true).open(file).and_then(|mut file| file.write_all(line.as_bytes()))
    {
        eprintln!("not written down: {error}");
    }
}
