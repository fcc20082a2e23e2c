//! How the child as a whole fares, from how its threads do.

use std::sync::Arc;

use super::{
    super::wire::{Health, Span, State},
    pulse::Watch,
    shared::Station,
};
use crate::clock;

/// Longest detail, characters.
const DETAIL_CHARS: usize = 512;

/// The report of these threads. `opened`: the driver is open.
pub(super) fn health(watched: &[(Arc<Station>, Watch)], opened: bool) -> Health {
    let now_ns = clock::now().0;
    let busy_ns: u64 = watched.iter().map(|(station, _)| station.pulse.busy_ns()).sum();
    let gpus = watched.iter().filter(|(station, _)| station.reads).count();
    let mut sentences = vec![match gpus {
        _ if !opened => "the driver is being opened".to_owned(),
        1 => "1 GPU".to_owned(),
        _ => format!("{gpus} GPUs"),
    }];
    let (mut failing, mut opening, mut hung) = (0_usize, 0_usize, 0_usize);
    for (station, watch) in watched {
        let state = station.state();
        let fails = watch.hung() || !state.failure.is_empty();
        failing = failing.saturating_add(usize::from(station.reads && fails));
        opening = opening.saturating_add(usize::from(station.reads && !fails && state.device.is_none()));
        if watch.hung() {
            hung = hung.saturating_add(1);
            sentences.push(format!("{}: a call does not return", station.name));
        }
        for told in [state.failure, state.note].into_iter().filter(|told| !told.is_empty()) {
            sentences.push(format!("{}: {told}", station.name));
        }
    }
    let none_reads = if opened { failing == gpus } else { hung > 0 };
    let state = match failing.max(opening).max(hung) {
        _ if none_reads => State::Failed,
        0 if opened => State::Ok,
        _ => State::Degraded,
    };
    Health {
        span: Span { not_before_ns: now_ns, not_after_ns: now_ns },
        state,
        detail: sentences.join("; ").chars().take(DETAIL_CHARS).collect(),
        busy_us: busy_ns / 1_000,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::wire::Identity, *};

    fn gpu(index: u32, failure: &str) -> (Arc<Station>, Watch) {
        let station = Station::of_gpu(index);
        station.set(|state| {
            state.device = Some(Identity { pci: String::new(), uuid: None });
            state.failure = failure.to_owned();
        });
        (Arc::new(station), Watch::default())
    }

    fn hung(what: &str) -> (Arc<Station>, Watch) {
        let mut watch = Watch::default();
        watch.check(Some(1), 100, 50);
        (Arc::new(Station::of(what)), watch)
    }

    #[test]
    fn the_whole_is_as_well_as_its_parts() {
        assert_eq!(health(&[gpu(0, ""), gpu(1, "")], true).state, State::Ok);
        assert_eq!(health(&[gpu(0, ""), hung("events")], true).state, State::Degraded);
        assert_eq!(health(&[gpu(0, "lost"), gpu(1, "")], true).state, State::Degraded);
        assert_eq!(health(&[gpu(0, "lost"), gpu(1, "lost")], true).state, State::Failed);
        assert_eq!(health(&[hung("the driver")], false).state, State::Failed);
        let opening = (Arc::new(Station::of_gpu(0)), Watch::default());
        assert_eq!(health(&[opening], true).state, State::Degraded);
        assert_eq!(
            health(&[(Arc::new(Station::of("the driver")), Watch::default())], false).state,
            State::Degraded
        );
    }

    #[test]
    fn what_is_wrong_is_told_by_name() {
        let told = health(&[gpu(0, "lost"), gpu(1, ""), hung("events")], true).detail;
        assert_eq!(told, "2 GPUs; GPU 0: lost; events: a call does not return");
    }
}
