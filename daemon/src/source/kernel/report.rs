//! Says how the source fares: which fact comes from where, and what is missing.

use std::time::Duration;

use gpuadmit_core::{
    observation::{Observation, SourceHealth, SourceReport},
    units::{Mono, Span},
};

use super::{
    cgroup,
    programs::{Fact, Lost},
    rights::{Right, Rights},
};
use crate::{clock, source::Observe};

/// Name of the source.
const SOURCE: &str = "kernel";
/// After lost records the source counts as degraded for this time.
const LOSS_SHOWN: Duration = Duration::from_secs(60);

/// What is served by what.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage {
    /// By programs in the kernel.
    pub(super) served: Vec<Fact>,
    /// Not by them although they run, and why.
    pub(super) failed: Vec<(Fact, String)>,
    /// Why none run.
    pub(super) without_programs: Option<String>,
    /// Whether the kernel's log is read.
    pub(super) log: bool,
    /// Why it is not.
    pub(super) without_log: Option<String>,
    /// Probes in libcuda are wanted, but no programs run.
    pub(super) without_cuda: bool,
}

impl Coverage {
    fn sentence(&self, rights: Rights) -> String {
        let mut parts = vec![];
        let lacking = rights.lacking(&self.wanted());
        if !lacking.is_empty() {
            parts.push(format!("missing {}", lacking.join(", ")));
        }
        match &self.without_programs {
            None => parts.push(format!("BPF: {}", list(self.served.iter().map(|fact| fact.as_str())))),
            Some(_) => parts.push(fallback()),
        }
        let failed = self.failed.iter().filter(|(fact, _)| *fact != Fact::Xids);
        parts.extend(failed.map(|(fact, why)| format!("no {}: {why}", fact.as_str())));
        if self.log {
            let what = if self.served.contains(&Fact::Xids) {
                "whose memory ran out"
            } else {
                "Xid, whose memory ran out"
            };
            parts.push(format!("kernel log: {what}"));
        } else if let Some(why) = &self.without_log {
            parts.push(format!("kernel log not read ({why}): Xid by NVML"));
        }
        if let Some(why) = &self.without_programs {
            parts.push(format!("no BPF because {why}"));
        }
        if self.without_cuda {
            parts.push("no libcuda probes without BPF".into());
        }
        parts.join("; ")
    }

    /// Rights that would give more.
    fn wanted(&self) -> Vec<Right> {
        let mut wanted = vec![Right::SysPtrace];
        if self.without_programs.is_some() {
            wanted.extend([Right::Bpf, Right::Perfmon]);
        }
        if !self.log {
            wanted.push(Right::Syslog);
        }
        wanted
    }

    fn is_whole(&self) -> bool {
        self.without_programs.is_none() && self.failed.iter().all(|(fact, _)| *fact == Fact::Xids)
    }
}

fn fallback() -> String {
    let oom = if cgroup::is_there() { ", OOM victims by cgroup counters" } else { "" };
    format!("no BPF: exits by pidfd{oom}, execs and oom_score_adj by /proc every second, no signals")
}

fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// Reports once a second.
pub(super) struct Reporter {
    observe: Observe,
    coverage: Coverage,
    sentence: String,
    lost: Lost,
    lost_at: Option<Mono>,
}

impl Reporter {
    pub(super) fn new(observe: Observe, coverage: Coverage) -> Self {
        let sentence = coverage.sentence(Rights::own());
        tracing::info!("kernel: {sentence}");
        Self { observe, coverage, sentence, lost: Lost::default(), lost_at: None }
    }

    /// `heard`: all that happened before has been told; `lost`: what found no room since the start; `cuda`: whether
    /// libcuda is probed wherever it is mapped, and a sentence.
    pub(super) fn report(&mut self, heard: Mono, lost: Lost, watched: usize, cuda: Option<(bool, String)>) {
        let now = clock::now();
        if lost != self.lost {
            tracing::warn!(?lost, "records of the kernel were lost; all watched processes were looked at");
            (self.lost, self.lost_at) = (lost, Some(now));
        }
        let recent = self.lost_at.is_some_and(|at| now.since(at) < LOSS_SHOWN);
        let whole = self.coverage.is_whole() && cuda.as_ref().is_none_or(|(whole, _)| *whole);
        let health = if whole && !recent { SourceHealth::Ok } else { SourceHealth::Degraded };
        let mut detail = format!("{}; {watched} processes watched", self.sentence);
        if let Some((_, sentence)) = cuda {
            detail.push_str(&format!("; {sentence}"));
        }
        let records = lost.records.saturating_add(lost.children);
        if records > 0 {
            detail.push_str(&format!("; {records} records lost and looked for"));
        }
        if lost.calls > 0 {
            detail.push_str(&format!("; {} CUDA calls lost", lost.calls));
        }
        let (source, span) = (SOURCE.into(), Span { not_before: heard, not_after: now });
        (self.observe)(Observation::Source(SourceReport { source, span, health, detail, busy: None }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rights_the_report_says_what_serves_and_what_is_missing() {
        let coverage = Coverage {
            without_programs: Some("Operation not permitted".into()),
            without_log: Some("Permission denied".into()),
            ..Coverage::default()
        };
        let sentence = coverage.sentence(Rights::default());
        for part in [
            "no BPF: exits by pidfd",
            "no BPF because Operation not permitted",
            "no signals",
            "kernel log not read (Permission denied): Xid by NVML",
            "missing CAP_SYS_PTRACE, CAP_BPF, CAP_PERFMON, CAP_SYSLOG",
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
    }
}
