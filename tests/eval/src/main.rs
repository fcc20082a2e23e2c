//! Proof of gpuadmit's admission: rules of admission against one engine model, in virtual time.
//!
//! `time`, `random`: the ground. `trace`: what arrives. `engine`: what serves it and what it exposes. `world`: the truth.
//! `policy`: who is let in. `situations`: the situations. `run`: one rule in one situation. `measure`, `estimation`,
//! `hindsight`: its figures. `report`: tables and plots. `vllm`: the engine model beside a real one.

mod args;
mod draws;
mod engine;
mod estimation;
mod hindsight;
mod measure;
mod policy;
mod random;
mod reference;
mod report;
mod request;
mod run;
mod schedule;
mod situation;
mod study;
mod time;
mod trace;
mod vllm;
mod world;

use anyhow::Result;
use clap::Parser as _;

use crate::{args::Args, run::Wanted};

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(address) = args.check_vllm {
        return vllm::check(address, args.load, &args.out);
    }
    let (situations, candidates) = (args.situations()?, args.candidates()?);
    if let Some(path) = &args.print {
        return situation::write(path, &situations);
    }
    if args.ablate {
        return study::ablate(&situations, args.threads, &args.out);
    }
    if args.paired {
        return study::paired(&situations, args.threads, &args.out);
    }
    let folder = args.requests.then(|| args.out.join("requests"));
    let wanted = Wanted { requests: folder.as_deref(), false_denials: true };
    let results = schedule::run_all(&situations, &candidates, args.threads, &wanted)?;
    report::write(&args.out, &draws::joined(&results, args.draws.into()))
}
