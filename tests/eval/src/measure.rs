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
    world::World,
};

/// Use below which no denial for want of room is right, share of the pool.
const AMPLE: f64 = 0.7;

macro_rules! figures {
    ($($(#[$doc:meta])* $variant:ident, $name:literal;)*) => {
        /// One figure of a run. Shares are 0 to 1, times seconds.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Figure {
            $($(#[$doc])* $variant,)*
        }

        impl Figure {
            /// All of them, in the order of the columns of a table.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            /// Name of its column.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

figures! {
    /// Output tokens a second of good requests, bypassing ones included.
    Goodput, "goodput";
    /// Of those, the ones of admitted requests.
    GoodputAdmitted, "goodput_admitted";
    /// Good requests, bypassing ones included.
    Good, "good";
    /// Of those, the ones in the shortest third of all prompts …
    GoodShort, "good_short";
    GoodMiddle, "good_middle";
    /// … and in the longest.
    GoodLong, "good_long";
    /// Preempted, of the admitted.
    Preempted, "preempted";
    /// Preempted, of all that entered the engine.
    PreemptedAll, "preempted_all";
    /// Of the admitted, those whose first token came after their deadline or never.
    Late, "late";
    TtftP50, "ttft_p50_s";
    TtftP99, "ttft_p99_s";
    /// Of those that asked.
    Denied, "denied";
    FalselyDenied, "falsely_denied";
    /// The same, while less than 70 % of the pool was in use.
    FalselyDeniedWithRoom, "falsely_denied_with_room";
    /// Denied where the clairvoyant rule would have admitted at that moment.
    DeniedAgainstCeiling, "denied_against_ceiling";
    /// Admitted ones that missed their objectives, of those that asked.
    Missed, "missed";
    /// Mean use of the pool.
    Utilisation, "utilisation";
    /// Share of slot-time unused in seconds in which somebody was denied for slots.
    SlotsUnused, "slots_unused_while_denied";
    /// Mean use of the pool in seconds in which somebody was denied for memory.
    PoolUsed, "pool_used_while_denied";
    /// Requests that wait inside the engine: the 99th percentile over all seconds.
    WaitingP99, "waiting_p99";
    Asked, "asked";
    /// Of those that came back at their Retry-After, the ones that were then let in.
    RetryAdmitted, "retry_admitted";
    /// Where one tenant is hostile: of the others' requests, the good ones …
    OthersGood, "others_good";
    /// … and the 99th percentile of their time to first token.
    OthersTtft, "others_ttft_p99_s";
    /// Reservations still held after two readings of an idle engine at the end.
    Phantoms, "phantoms";
    /// Mean error of the estimated use, percent of the pool, as the others below.
    ErrorMean, "error_mean";
    ErrorP99, "error_p99";
    /// Positive: estimated too high.
    Bias, "bias";
    /// Share of looks in which the truth lay within the band.
    Coverage, "coverage";
    BandWidth, "band_width";
    GaugeErrorMean, "gauge_error_mean";
    GaugeErrorP99, "gauge_error_p99";
    LedgerErrorMean, "ledger_error_mean";
    LedgerErrorP99, "ledger_error_p99";
}

/// Figures of one run, or their means over several.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) candidate: Candidate,
    figures: Vec<Option<f64>>,
}

impl Measured {
    /// Of a run of `candidate` in `situation`.
    pub(crate) fn of(
        situation: &Situation,
        candidate: &Candidate,
        played: &Played,
        falsely_denied: &[RequestId],
    ) -> Self {
        let figures = vec![None; Figure::ALL.len()];
        let mut measured = Self { candidate: *candidate, figures };
        let run = Looked::at(situation, played);
        measured.goods(&run);
        measured.delays(&run);
        measured.denials(&run, falsely_denied);
        measured.uses(&run);
        if !played.looks.is_empty() {
            measured.estimates(&Estimation::of(&played.looks, played.world.setup.blocks));
        }
        measured
    }

    /// A figure; `None`: there is none in this run.
    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.figures[figure as usize]
    }

    /// A figure; NaN: there is none in this run.
    pub(crate) fn value(&self, figure: Figure) -> f64 {
        self.get(figure).unwrap_or(f64::NAN)
    }

    /// Good requests per third of prompt length, the shortest first.
    pub(crate) fn thirds(&self) -> [f64; 3] {
        [Figure::GoodShort, Figure::GoodMiddle, Figure::GoodLong].map(|third| self.value(third))
    }

    /// Means of every figure over draws of one situation; of phantoms the most, for there should be none.
    pub(crate) fn mean(draws: &[&Self]) -> Option<Self> {
        let of = |figure: &Figure| {
            let values: Vec<_> = draws.iter().filter_map(|draw| draw.get(*figure)).collect();
            let sum: f64 = values.iter().sum();
            match figure {
                _ if values.is_empty() => None,
                Figure::Phantoms => values.into_iter().reduce(f64::max),
                Figure::Asked => Some(sum),
                _ => Some(sum / values.len() as f64),
            }
        };
        let candidate = draws.first()?.candidate;
        Some(Self { candidate, figures: Figure::ALL.iter().map(of).collect() })
    }

    fn set(&mut self, figure: Figure, value: f64) {
        self.figures[figure as usize] = Some(value);
    }

    fn goods(&mut self, run: &Looked<'_>) {
        let good = |request: &&Request| run.world.good(request.id);
        let tokens = |good: &[&Request]| {
            let generated = |request: &&Request| run.world.fates[request.id as usize].generated;
            good.iter().map(generated).sum::<u64>() as f64 / seconds(run.situation.length)
        };
        let all: Vec<_> = run.world.requests.iter().filter(good).collect();
        self.set(Figure::Goodput, tokens(&all));
        let admitted: Vec<_> = run.admitted.iter().map(|(request, _)| *request).filter(good).collect();
        self.set(Figure::GoodputAdmitted, tokens(&admitted));
        self.set(Figure::Good, all.len() as f64);
        let mut by_length: Vec<_> = run.world.requests.iter().collect();
        by_length.sort_by_key(|request| (request.prompt, request.id));
        let third = by_length.len().div_ceil(3).max(1);
        let mut thirds = by_length.chunks(third);
        for figure in [Figure::GoodShort, Figure::GoodMiddle, Figure::GoodLong] {
            let third = thirds.next().unwrap_or_default();
            self.set(figure, third.iter().filter(|request| good(request)).count() as f64);
        }
    }

    fn delays(&mut self, run: &Looked<'_>) {
        let preempted =
            |pairs: &[Pair<'_>]| share(pairs.iter().filter(|(_, fate)| fate.preempted).count(), pairs.len());
        self.set(Figure::Preempted, preempted(&run.admitted));
        self.set(Figure::PreemptedAll, preempted(&run.entered));
        let late = run.admitted.iter().filter(|pair| run.late(pair)).count();
        self.set(Figure::Late, share(late, run.admitted.len()));
        let ttft = ttfts(&run.admitted);
        self.set(Figure::TtftP50, quantile(&ttft, 0.5));
        self.set(Figure::TtftP99, quantile(&ttft, 0.99));
        // Clients that leave have no objective.
        let missed = |(request, fate): &&Pair<'_>| fate.phase != Phase::Left && !run.world.good(request.id);
        self.set(Figure::Missed, share(run.admitted.iter().filter(missed).count(), run.asked.len()));
        if matches!(run.situation.source, Source::Synthetic(Kind::Hostile)) {
            let other = |(request, _): &&Pair<'_>| request.tenant != HOSTILE;
            let others: Vec<_> = run.asked.iter().filter(other).copied().collect();
            let let_in: Vec<_> = run.admitted.iter().filter(other).copied().collect();
            let good = others.iter().filter(|(request, _)| run.world.good(request.id)).count();
            self.set(Figure::OthersGood, share(good, others.len()));
            self.set(Figure::OthersTtft, quantile(&ttfts(&let_in), 0.99));
        }
    }

    fn denials(&mut self, run: &Looked<'_>, falsely_denied: &[RequestId]) {
        let of_asked = |count: usize| share(count, run.asked.len());
        let count = |of: &dyn Fn(&Fate) -> bool| run.asked.iter().filter(|(_, fate)| of(fate)).count();
        let denied = |fate: &Fate| fate.phase == Phase::Denied;
        self.set(Figure::Asked, run.asked.len() as f64);
        self.set(Figure::Denied, of_asked(count(&denied)));
        self.set(Figure::FalselyDenied, of_asked(falsely_denied.len()));
        let with_room =
            |id: &&RequestId| run.world.fates[**id as usize].denial.is_some_and(|one| one.usage < AMPLE);
        let with_room = falsely_denied.iter().filter(with_room).count();
        self.set(Figure::FalselyDeniedWithRoom, of_asked(with_room));
        let fits = |fate: &Fate| denied(fate) && fate.denial.is_some_and(|denial| denial.fits);
        self.set(Figure::DeniedAgainstCeiling, of_asked(count(&fits)));
        let retried = count(&|fate| fate.retried);
        if retried > 0 {
            let admitted = count(&|fate| fate.retried && entered(fate));
            self.set(Figure::RetryAdmitted, share(admitted, retried));
        }
    }

    fn uses(&mut self, run: &Looked<'_>) {
        let usage = &run.played.usage;
        self.set(Figure::Utilisation, usage.pool());
        self.set(Figure::WaitingP99, usage.waiting_p99());
        let optional = [
            (Figure::SlotsUnused, usage.slots_unused_while_denied()),
            (Figure::PoolUsed, usage.pool_while_denied()),
            (Figure::Phantoms, run.played.held.map(|held| held as f64)),
        ];
        for (figure, value) in optional {
            self.figures[figure as usize] = value;
        }
    }

    fn estimates(&mut self, estimation: &Estimation) {
        let Estimation { corrected, gauge, ledger, bias, coverage, width } = *estimation;
        self.set(Figure::ErrorMean, corrected.mean);
        self.set(Figure::ErrorP99, corrected.p99);
        self.set(Figure::Bias, bias);
        self.set(Figure::Coverage, coverage);
        self.set(Figure::BandWidth, width);
        self.set(Figure::GaugeErrorMean, gauge.mean);
        self.set(Figure::GaugeErrorP99, gauge.p99);
        self.set(Figure::LedgerErrorMean, ledger.mean);
        self.set(Figure::LedgerErrorP99, ledger.p99);
    }
}

/// A request and what became of it.
type Pair<'a> = (&'a Request, &'a Fate);

/// A run, and its requests by what became of them.
struct Looked<'a> {
    situation: &'a Situation,
    played: &'a Played,
    world: &'a World,
    /// Those that asked.
    asked: Vec<Pair<'a>>,
    /// Of those, the ones that were let in.
    admitted: Vec<Pair<'a>>,
    /// All that were let in, or did not ask.
    entered: Vec<Pair<'a>>,
}

impl<'a> Looked<'a> {
    fn at(situation: &'a Situation, played: &'a Played) -> Self {
        let world = &played.world;
        let all = || world.requests.iter().zip(&world.fates);
        let asked: Vec<_> = all().filter(|(request, _)| !request.bypass).collect();
        let admitted = asked.iter().filter(|(_, fate)| entered(fate)).copied().collect();
        let entered = all().filter(|(_, fate)| entered(fate)).collect();
        Self { situation, played, world, asked, admitted, entered }
    }

    /// Whether its first token came after its deadline. One whose client left, or whose engine died, is not late.
    fn late(&self, (request, fate): &Pair<'_>) -> bool {
        let waited = match (fate.ttft(), fate.phase) {
            (Some(ttft), _) => ttft,
            (None, Phase::Left | Phase::Failed) => 0,
            (None, _) => self.played.ended_at - fate.sent_at,
        };
        waited > self.world.deadline(request, fate.cached)
    }
}

fn entered(fate: &Fate) -> bool {
    !matches!(fate.phase, Phase::Denied | Phase::Coming)
}

/// Ascending, seconds; a request that never had a token counts as infinite, unless its client left.
fn ttfts(of: &[Pair<'_>]) -> Vec<f64> {
    let waited = |fate: &Fate| fate.phase != Phase::Left || fate.first_token.is_some();
    let waited = of.iter().filter(|(_, fate)| waited(fate));
    let mut ttft: Vec<_> = waited.map(|(_, fate)| fate.ttft().map_or(f64::INFINITY, seconds)).collect();
    ttft.sort_by(f64::total_cmp);
    ttft
}

fn share(count: usize, of: usize) -> f64 {
    count as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy,
        run::play,
        situation::{Limit, quick},
        time::SECOND,
    };

    #[test]
    fn an_overloaded_engine_is_late_and_thirds_add_up() {
        // Chat at three times the pace: nobody is denied.
        let situation = quick(&[], 120 * SECOND).remove(1);
        let Limit::FirstTokenNs(limit) = situation.objective.limit else { panic!("no limit") };
        let candidate = policy::family("none").unwrap().candidates(true)[0];
        let requests = situation.requests().unwrap();
        let played = play(&situation, requests, candidate.build(&situation)).unwrap();
        let measured = Measured::of(&situation, &candidate, &played, &[]);
        let late = |fate: &&Fate| fate.ttft().is_none_or(|ttft| ttft > limit);
        let fates = &played.world.fates;
        let expected = fates.iter().filter(late).count() as f64 / fates.len() as f64;
        assert!(expected > 0.2 && (measured.value(Figure::Late) - expected).abs() < 1e-9, "{expected}");
        let [short, middle, long] = measured.thirds();
        assert_eq!(short + middle + long, measured.value(Figure::Good));
        let good = played.world.requests.iter().filter(|request| played.world.good(request.id)).count();
        assert!(good > 0 && measured.value(Figure::Good) == good as f64);
        assert_eq!(measured.get(Figure::SlotsUnused), None);
        assert_eq!(Figure::ALL.len(), Figure::LedgerErrorP99 as usize + 1);
    }
}
