//! What is run: situations and rules, from the command line.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use gpuadmit_core::parts::Parts;

use crate::{
    policy::{self, FAMILIES, family},
    situation::{self, Situation},
    time::nanos,
    trace::{Kind, Source},
    vllm::Load,
};

/// Compares rules of admission against one engine model, in virtual time.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
pub(crate) struct Args {
    /// Traces beside the synthetic ones: Azure LLM inference (.csv) or Mooncake (.jsonl) files.
    pub(crate) traces: Vec<PathBuf>,
    /// Which situations.
    #[arg(long, value_enum, default_value_t = Set::Quick)]
    pub(crate) cells: Set,
    /// Seeds of random situations, one or a range
    #[arg(long, value_name = "N|FROM-TO", default_value = "1-100", value_parser = seeds)]
    pub(crate) seeds: RangeInclusive<u64>,
    /// The situations of this JSON file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) situations: Option<PathBuf>,
    /// Runs nothing: writes the situations to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) print: Option<PathBuf>,
    /// Only situations whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Rules, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Seconds in which requests arrive, for every named situation.
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// So many draws of everything that is left to chance; the tables show their means
    #[arg(long, default_value_t = 1)]
    pub(crate) draws: u16,
    /// All parameter values of every rule, not only the usual ones.
    #[arg(long)]
    pub(crate) sweep: bool,
    /// Threads; all cores by default.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Also writes what became of every request, a file per run, into the folder `requests` beside the tables.
    #[arg(long)]
    pub(crate) requests: bool,
    /// Denied requests come back once, at their Retry-After, in every situation
    #[arg(long)]
    pub(crate) retry: bool,
    /// gpuadmit without these of its learned parts, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub(crate) without: Vec<String>,
    /// Instead: removes the least useful of gpuadmit's learned parts, runs again, and repeats until none is left.
    #[arg(long)]
    pub(crate) ablate: bool,
    /// Instead: what gpuadmit makes of knowing more, in four draws of each situation with the same arrivals.
    #[arg(long)]
    pub(crate) paired: bool,
    /// Instead: compares the engine model with the real, idle vLLM at this address, step by step.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) check_vllm: Option<SocketAddr>,
    /// What is sent to that vLLM.
    #[arg(long, value_enum, default_value_t = Load::FullPool)]
    pub(crate) load: Load,
    /// Tables and plots go here.
    #[arg(long, default_value = "target/eval")]
    pub(crate) out: PathBuf,
}

/// A set of situations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Set {
    /// A dozen that tell most.
    Quick,
    /// Drawn from the seeds, over fixed ranges.
    Random,
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
    /// The situations, each as often as there are draws.
    pub(crate) fn situations(&self) -> Result<Vec<Situation>> {
        let mut situations = match &self.situations {
            Some(path) => situation::read(path)?,
            None => self.set(),
        };
        situations.retain(|situation| self.only.as_ref().is_none_or(|part| situation.name().contains(part)));
        for situation in &mut situations {
            situation.gateway.retry |= self.retry;
        }
        if situations.is_empty() {
            bail!("--only: no situation's name contains {:?}", self.only.as_deref().unwrap_or_default());
        }
        let draw = |situation: &Situation, draw: u16| Situation {
            seed: situation.seed.wrapping_add(draw.into()),
            ..situation.clone()
        };
        let draws = 0..self.draws.max(1);
        Ok(situations
            .iter()
            .flat_map(|situation| draws.clone().map(move |number| draw(situation, number)))
            .collect())
    }

    fn set(&self) -> Vec<Situation> {
        let files: Vec<_> = self.traces.iter().map(|path| Source::of_file(path)).collect();
        let default = if self.cells == Set::Full { FULL_SECONDS } else { QUICK_SECONDS };
        let length = nanos(self.seconds.unwrap_or(default));
        let estimated = || {
            let synthetic = [Kind::Chat, Kind::Documents].map(Source::Synthetic);
            synthetic.into_iter().chain(files.iter().cloned()).collect::<Vec<_>>()
        };
        match self.cells {
            Set::Quick => situation::quick(&files, length),
            Set::Full => situation::full(&files, length),
            Set::Estimation => situation::estimation(&estimated(), length),
            Set::Retry => situation::retry(length),
            Set::Tenants => situation::tenants(length),
            Set::Random => self.seeds.clone().map(situation::drawn).collect(),
        }
    }

    pub(crate) fn candidates(&self) -> Result<Vec<policy::Candidate>> {
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
        let parts = self.parts()?;
        for candidate in candidates.iter_mut().filter(|one| one.family.starts_with("gpuadmit")) {
            candidate.parts = parts;
        }
        Ok(candidates)
    }

    fn parts(&self) -> Result<Parts> {
        self.without.iter().try_fold(Parts::default(), |parts, name| {
            let known = Parts::NAMES.join(", ");
            parts
                .without(name)
                .with_context(|| format!("--without: there is no part {name:?}; there are {known}"))
        })
    }
}

/// A seed, or a range of them.
fn seeds(text: &str) -> Result<RangeInclusive<u64>> {
    let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} is no seed"));
    match text.split_once('-') {
        None => number(text).map(|seed| seed..=seed),
        Some((from, to)) => {
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                bail!("{from} is above {to}");
            }
            Ok(from..=to)
        }
    }
}
