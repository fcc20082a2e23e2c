//! All runs, on all cores.

use std::{
    io::{IsTerminal, Write},
    num::NonZeroUsize,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};

use crate::{
    measure::Measured,
    policy::Candidate,
    run::{Wanted, run},
    situation::Situation,
};

/// A situation and what all rules made of it, in the order of the rules.
pub(crate) struct Outcome {
    pub(crate) situation: Situation,
    pub(crate) measured: Vec<Measured>,
}

/// Runs every candidate in every situation.
pub(crate) fn run_all(
    situations: &[Situation],
    candidates: &[Candidate],
    threads: Option<usize>,
    wanted: &Wanted<'_>,
) -> Result<Vec<Outcome>> {
    let jobs = situations.len() * candidates.len();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(jobs)));
    let threads = threads.or_else(|| thread::available_parallelism().ok().map(NonZeroUsize::get));
    thread::scope(|scope| {
        for _ in 0..threads.unwrap_or(1).max(1) {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(situation) = situations.get(job / candidates.len()) else { return };
                    let measured = run(situation, &candidates[job % candidates.len()], wanted);
                    let mut done = done.lock().expect("no thread panics");
                    done.push((job, measured));
                    progress(done.len(), jobs);
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panicked");
    done.sort_by_key(|(job, _)| *job);
    let mut measured = done.into_iter().map(|(_, measured)| measured);
    let outcome = |situation: &Situation| {
        let of_cell: Result<Vec<_>> = measured.by_ref().take(candidates.len()).collect();
        let measured = of_cell.with_context(|| situation.name())?;
        Ok(Outcome { situation: situation.clone(), measured })
    };
    situations.iter().map(outcome).collect()
}

fn progress(done: usize, of: usize) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r{done}/{of}{}", if done == of { "\n" } else { "" });
    }
}
