//! What a run is measured by.

use crate::{
    engine::RequestId,
    estimation::{Estimation, quantile},
    policy::Candidate,
    request::{Fate, Phase, Request},
    run::Played,
    situation::Situation,
    time::seconds,
    trace::{HOSTILE, Kind, Source},
};

/// Use below which no denial for want of room is right, share of the pool.
const AMPLE: f64 = 0.7;

/// Figures of one run. Shares are 0 to 1.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) candidate: Candidate,
    /// Output tokens a second of requests that met their objectives, bypassing ones included.
    pub(crate) goodput: f64,
    /// Of those, admitted ones.
    pub(crate) goodput_admitted: f64,
    /// Of the admitted.
    pub(crate) preempted: f64,
    /// Of all that entered the engine.
    pub(crate) preempted_all: f64,
    /// Of the admitted, seconds.
    pub(crate) ttft_p50: f64,
    pub(crate) ttft_p99: f64,
    /// Of those that asked.
    pub(crate) denied: f64,
    pub(crate) falsely_denied: f64,
    /// The same, while less than 70 % of the pool was in use.
    pub(crate) falsely_denied_with_room: f64,
    /// Denied where the clairvoyant rule would have admitted at that moment.
    pub(crate) denied_against_ceiling: f64,
    /// Admitted ones that missed their objectives, of those that asked.
    pub(crate) missed: f64,
    pub(crate) utilisation: f64,
    pub(crate) asked: usize,
    /// Of those that came back at their Retry-After, the ones that were then let in; `None`: none came back.
    pub(crate) retry_admitted: Option<f64>,
    /// Where one tenant is hostile: of the others' requests, those that met their objectives, and the 99th percentile of
    /// their time to first token, seconds.
    pub(crate) others: Option<(f64, f64)>,
    /// Reservations still held after two readings of an idle engine at the end; `None`: the rule has none.
    pub(crate) phantoms: Option<usize>,
    /// Where the rule has an estimate.
    pub(crate) estimation: Option<Estimation>,
}

impl Measured {
    pub(crate) fn of(
        situation: &Situation,
        candidate: &Candidate,
        played: &Played,
        falsely_denied: &[RequestId],
    ) -> Self {
        let Played { world, looks, used_time, held } = played;
        let all = || world.requests.iter().zip(&world.fates);
        let asked: Vec<_> = all().filter(|(request, _)| !request.bypass).collect();
        let entered = |fate: &Fate| !matches!(fate.phase, Phase::Denied | Phase::Coming);
        let admitted: Vec<_> = asked.iter().filter(|(_, fate)| entered(fate)).copied().collect();
        let good = |pairs: &mut dyn Iterator<Item = (&Request, &Fate)>| -> f64 {
            pairs.filter(|(request, _)| world.good(request.id)).map(|(_, fate)| fate.generated).sum::<u64>()
                as f64
        };
        let ttft = ttfts(&admitted);
        // Clients that leave have no objective.
        let missed = |request: &Request, fate: &Fate| fate.phase != Phase::Left && !world.good(request.id);
        let of_asked = |count: usize| share(count, asked.len());
        let count = |of: &dyn Fn(&Fate) -> bool| asked.iter().filter(|(_, fate)| of(fate)).count();
        let entered_all: Vec<_> = all().filter(|(_, fate)| entered(fate)).collect();
        let preempted = |pairs: &[(&Request, &Fate)]| {
            share(pairs.iter().filter(|(_, fate)| fate.preempted).count(), pairs.len())
        };
        let with_room =
            |id: &&RequestId| world.fates[**id as usize].denial.is_some_and(|denial| denial.usage < AMPLE);
        let retried = count(&|fate| fate.retried);
        let length = seconds(situation.length);
        Self {
            candidate: *candidate,
            goodput: good(&mut all()) / length,
            goodput_admitted: good(&mut admitted.iter().copied()) / length,
            preempted: preempted(&admitted),
            preempted_all: preempted(&entered_all),
            ttft_p50: quantile(&ttft, 0.5),
            ttft_p99: quantile(&ttft, 0.99),
            denied: of_asked(count(&|fate| fate.phase == Phase::Denied)),
            falsely_denied: of_asked(falsely_denied.len()),
            falsely_denied_with_room: of_asked(falsely_denied.iter().filter(with_room).count()),
            denied_against_ceiling: of_asked(count(&|fate| {
                fate.phase == Phase::Denied && fate.denial.is_some_and(|denial| denial.fits)
            })),
            missed: of_asked(admitted.iter().filter(|(request, fate)| missed(request, fate)).count()),
            utilisation: used_time / (world.setup.blocks as f64 * situation.length as f64),
            asked: asked.len(),
            retry_admitted: (retried > 0)
                .then(|| share(count(&|fate| fate.retried && entered(fate)), retried)),
            others: hostile(situation).then(|| {
                let others: Vec<_> =
                    asked.iter().filter(|(request, _)| request.tenant != HOSTILE).copied().collect();
                let let_in: Vec<_> = others.iter().filter(|(_, fate)| entered(fate)).copied().collect();
                let good = others.iter().filter(|(request, _)| world.good(request.id)).count();
                (share(good, others.len()), quantile(&ttfts(&let_in), 0.99))
            }),
            phantoms: *held,
            estimation: (!looks.is_empty()).then(|| Estimation::of(looks, world.setup.blocks)),
        }
    }
}

fn hostile(situation: &Situation) -> bool {
    matches!(situation.source, Source::Synthetic(Kind::Hostile))
}

/// Ascending, seconds; a request that never had a token counts as infinite.
fn ttfts(of: &[(&Request, &Fate)]) -> Vec<f64> {
    let mut ttft: Vec<_> = of.iter().map(|(_, fate)| fate.ttft().map_or(f64::INFINITY, seconds)).collect();
    ttft.sort_by(f64::total_cmp);
    ttft
}

fn share(count: usize, of: usize) -> f64 {
    count as f64 / of.max(1) as f64
}
