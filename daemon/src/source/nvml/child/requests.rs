//! What reaches the child from outside: lines and the end of its standard input, and signals.

use std::{
    io::{self, Read},
    sync::Arc,
    thread,
    time::Duration,
};

use nix::sys::signal::{SigSet, Signal};

use super::{super::wire::Reason, exit, shared::Shared, spawn};

/// Time that the main thread has to end the child.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The line that asks for the process lists now. There is no other request, so that any line means it.
pub(in super::super) const HINT: &[u8] = b"processes\n";

/// Listens, on two threads. Signals are blocked in the calling thread and those that it starts from now on.
pub(super) fn listen(shared: &Arc<Shared>) {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    let theirs = Arc::clone(shared);
    // Where a signal cannot be blocked it ends the process by itself.
    if signals.thread_block().is_ok() {
        spawn("nvml-signals", shared, move || match signals.wait() {
            Ok(signal) => end(&theirs, format!("{signal} received")),
            Err(error) => theirs.end(Reason::Failed, format!("signals cannot be waited for: {error}")),
        });
    }
    let theirs = Arc::clone(shared);
    spawn("nvml-stdin", shared, move || read_stdin(&theirs));
}

/// Has the main thread end the child; ends it here if that thread cannot, as when the parent stopped reading.
fn end(shared: &Shared, detail: String) {
    shared.end(Reason::Stopped, detail);
    thread::sleep(END_LIMIT);
    exit::now()
}

fn read_stdin(shared: &Shared) {
    let mut some = [0; 256];
    loop {
        match io::stdin().read(&mut some) {
            Ok(0) => return end(shared, "the parent is gone".to_owned()),
            Ok(count) if some.iter().take(count).any(|byte| *byte == b'\n') => shared.hint(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => thread::yield_now(),
            Err(error) => return end(shared, format!("standard input: {error}")),
        }
    }
}
