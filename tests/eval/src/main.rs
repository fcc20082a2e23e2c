//! Proof of gpuadmit's admission: rules of admission against one engine model, in virtual time.
//!
//! `time`, `random`: the ground. `trace`: what arrives. `engine`: what serves it and what it exposes. `world`: the truth.
//! `policy`: who is let in. `cells`: the situations. `run`: one rule in one situation. `measure`, `estimation`,
//! `hindsight`: its figures. `report`: tables and plots. `vllm`: the engine model beside a real one.

mod cells;
mod draws;
mod engine;
mod estimation;
mod hindsight;
mod measure;
mod policy;
mod random;
mod report;
mod request;
mod run;
mod schedule;
mod time;
mod trace;
mod vllm;
mod world;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use crate::{
    cells::Cell,
    policy::{FAMILIES, family},
    time::nanos,
    trace::{Kind, Source},
};

/// Compares rules of admission against one engine model, in virtual time.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Args {
    /// Traces beside the synthetic ones: Azure LLM inference (.csv) or Mooncake (.jsonl) files.
    traces: Vec<PathBuf>,
    /// Which situations.
    #[arg(long, value_enum, default_value_t = Set::Quick)]
    cells: Set,
    /// Only situations whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Rules, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Seconds in which requests arrive, for every situation.
    #[arg(long)]
    seconds: Option<f64>,
    /// So many draws of everything that is left to chance; the tables show their means
    #[arg(long, default_value_t = 1)]
    draws: u16,
    /// All parameter values of every rule, not only the usual ones.
    #[arg(long)]
    sweep: bool,
    /// Threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Also writes what became of every request, a file per run, into the folder `requests` beside the tables.
    #[arg(long)]
    requests: bool,
    /// Instead: compares the engine model with the real, idle vLLM at this address, step by step.
    #[arg(long, value_name = "HOST:PORT")]
    check_vllm: Option<SocketAddr>,
    /// Tables and plots go here.
    #[arg(long, default_value = "target/eval")]
    out: PathBuf,
}

/// A set of situations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Set {
    /// A dozen that tell most.
    Quick,
    /// Every trace, speed and pool, clean and dirty; scrape intervals and bypass shares.
    Full,
    /// Scrape intervals × bypass shares, for the estimator.
    Estimation,
    /// Denied requests come back at their Retry-After.
    Retry,
    /// One tenant sends all at once: with and without shares of the pool.
    Tenants,
}

const QUICK_SECONDS: f64 = 300.0;
const FULL_SECONDS: f64 = 600.0;

impl Args {
    fn cells(&self) -> Vec<Cell> {
        let files: Vec<_> = self.traces.iter().map(|path| Source::of_file(path)).collect();
        let default = if self.cells == Set::Full { FULL_SECONDS } else { QUICK_SECONDS };
        let length = nanos(self.seconds.unwrap_or(default));
        let estimated = || {
            let synthetic = [Kind::Chat, Kind::Documents].map(Source::Synthetic);
            synthetic.into_iter().chain(files.iter().cloned()).collect::<Vec<_>>()
        };
        let mut cells = match self.cells {
            Set::Quick => cells::quick(&files, length),
            Set::Full => cells::full(&files, length),
            Set::Estimation => cells::estimation(&estimated(), length),
            Set::Retry => cells::retry(length),
            Set::Tenants => cells::tenants(length),
        };
        cells.retain(|cell| self.only.as_ref().is_none_or(|part| cell.name().contains(part)));
        let draw =
            |cell: &Cell, draw: u16| Cell { seed: cell.seed.wrapping_add(draw.into()), ..cell.clone() };
        cells.iter().flat_map(|cell| (0..self.draws.max(1)).map(move |number| draw(cell, number))).collect()
    }

    fn candidates(&self) -> Result<Vec<policy::Candidate>> {
        let quick = !self.sweep;
        let names: Vec<&str> = if self.policies.is_empty() {
            FAMILIES.iter().map(|family| family.name).collect()
        } else {
            self.policies.iter().map(String::as_str).collect()
        };
        let mut candidates = Vec::new();
        for name in names {
            let Some(family) = family(name) else {
                let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
                bail!("--policies: {name:?} is not known; known are {}", known.join(", "));
            };
            candidates.extend(family.candidates(quick));
        }
        Ok(candidates)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(address) = args.check_vllm {
        return vllm::check(address, &args.out);
    }
    let (cells, candidates) = (args.cells(), args.candidates()?);
    if cells.is_empty() {
        bail!("--only: no situation's name contains {:?}", args.only.unwrap_or_default());
    }
    let results = {
        let folder = args.requests.then(|| args.out.join("requests"));
        schedule::run_all(&cells, &candidates, args.threads, folder.as_deref())?
    };
    report::write(&args.out, &draws::joined(&results, args.draws.into()))
}
