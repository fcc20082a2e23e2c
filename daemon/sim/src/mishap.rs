//! What the kernel and the host would tell of the simulated node beside its engines and GPUs.

use std::{sync::Arc, time::Duration};

use crate::{
    node::seconds,
    scenario::{Incident, Shortage},
};

/// Shares of the host's memory that are in use or waited for, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimHost {
    /// Time in which all processes wait for memory.
    pub pressure: f64,
    /// Of the pace at which memory can be swapped in.
    pub swap: f64,
    /// Of shared memory.
    pub shared_memory: f64,
    /// Of the limit of each engine's memory cgroup that is short, by engine.
    pub cgroups: Vec<(Arc<str>, f64)>,
}

/// Something that happens to an engine's process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Its `oom_score_adj` is set.
    OomScore {
        /// Engine.
        engine: Arc<str>,
        /// New value.
        to: i32,
    },
    /// A CUDA allocation of it fails.
    FailedAllocation {
        /// Engine.
        engine: Arc<str>,
        /// Asked for, MiB.
        mib: u64,
    },
}

/// The host's memory at `now`.
pub(crate) fn host(incidents: &[Incident], now: Duration) -> SimHost {
    let mut host = SimHost { shared_memory: 0.1, ..SimHost::default() };
    for incident in incidents {
        let Incident::HostMemory { at_s, for_s, engine, what, share } = incident else { continue };
        let lasts = (seconds(*at_s)..seconds(*at_s) + seconds(*for_s)).contains(&now);
        // A cgroup is told of all the time, so that its end is told, too.
        let share = if lasts { *share } else { 0.1 };
        match what {
            Shortage::Cgroup => host.cgroups.push((engine.as_str().into(), share)),
            Shortage::Pressure if lasts => host.pressure = share,
            Shortage::Swap if lasts => host.swap = share,
            Shortage::SharedMemory if lasts => host.shared_memory = share,
            _ => {}
        }
    }
    host
}

/// What happens at one moment, latest first.
pub(crate) fn mishaps(incidents: &[Incident]) -> Vec<(Duration, Mishap)> {
    let mut mishaps: Vec<_> = incidents
        .iter()
        .filter_map(|incident| match incident {
            Incident::OomScore { at_s, engine, to } => {
                Some((seconds(*at_s), Mishap::OomScore { engine: engine.as_str().into(), to: *to }))
            }
            Incident::FailedAllocation { at_s, engine, mib } => {
                Some((seconds(*at_s), Mishap::FailedAllocation { engine: engine.as_str().into(), mib: *mib }))
            }
            _ => None,
        })
        .collect();
    mishaps.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    mishaps
}

/// Requests per second that come to the engines beside the usual traffic, without asking.
pub(crate) fn burst(incidents: &[Incident], now: Duration) -> f64 {
    let rates = incidents.iter().filter_map(|incident| match incident {
        Incident::Burst { at_s, for_s, requests_per_second } => {
            let lasts = (seconds(*at_s)..seconds(*at_s) + seconds(*for_s)).contains(&now);
            lasts.then_some(*requests_per_second)
        }
        _ => None,
    });
    rates.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn incidents(text: &str) -> Vec<Incident> {
        Scenario::parse(text).unwrap().incidents
    }

    #[test]
    fn a_shortage_lasts_its_time() {
        let short = incidents(
            "[[incident]]\nkind='host_memory'\nat_s=10\nfor_s=5\nengine='sim-0'\nwhat='cgroup'\nshare=0.97\n\
             [[incident]]\nkind='host_memory'\nat_s=10\nfor_s=5\nengine='sim-0'\nwhat='pressure'\nshare=0.4",
        );
        let at = |second| host(&short, Duration::from_secs(second));
        assert_eq!((at(9).pressure, at(12).pressure, at(15).pressure), (0.0, 0.4, 0.0));
        assert_eq!((at(12).cgroups[0].1, at(15).cgroups[0].1), (0.97, 0.1));
    }

    #[test]
    fn what_happens_at_one_moment_comes_in_its_order() {
        let both = incidents(
            "[[incident]]\nkind='oom_score'\nat_s=3\nengine='sim-0'\nto=300\n\
             [[incident]]\nkind='failed_allocation'\nat_s=9\nengine='sim-1'\nmib=96",
        );
        let mut all = mishaps(&both);
        assert!(matches!(all.pop(), Some((_, Mishap::OomScore { to: 300, .. }))));
        assert!(matches!(all.pop(), Some((_, Mishap::FailedAllocation { mib: 96, .. }))));
    }

    #[test]
    fn a_burst_lasts_its_time() {
        let burst_of = incidents("[[incident]]\nkind='burst'\nat_s=3\nfor_s=2\nrequests_per_second=50");
        let at = |second| burst(&burst_of, Duration::from_secs(second));
        assert_eq!((at(2), at(4), at(5)), (0.0, 50.0, 0.0));
    }
}
