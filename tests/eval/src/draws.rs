//! Several draws of a situation taken together: one of a few minutes says little, for the figures of a rule differ by
//! several per cent from draw to draw.

use crate::{
    estimation::{Error, Estimation},
    measure::Measured,
    schedule::Outcome,
};

/// `outcomes` of so many `draws` each, one after the other, as one outcome with the mean of every figure.
pub(crate) fn joined(outcomes: &[Outcome], draws: usize) -> Vec<Outcome> {
    outcomes.chunks(draws.max(1)).filter_map(join).collect()
}

fn join(draws: &[Outcome]) -> Option<Outcome> {
    let first = draws.first()?;
    let of = |rule: usize| draws.iter().filter_map(move |draw| draw.measured.get(rule)).collect::<Vec<_>>();
    let measured = (0..first.measured.len()).filter_map(|rule| mean(&of(rule))).collect();
    Some(Outcome { situation: first.situation.clone(), measured })
}

/// Mean of every figure; of counts of what should be nothing, the most.
fn mean(draws: &[&Measured]) -> Option<Measured> {
    let first = *draws.first()?;
    let of = |figure: fn(&Measured) -> f64| average(draws.iter().map(|one| figure(one)));
    let told: Vec<f64> = draws.iter().filter_map(|one| one.retry_admitted).collect();
    let others: Vec<(f64, f64)> = draws.iter().filter_map(|one| one.others).collect();
    let looks: Vec<Estimation> = draws.iter().filter_map(|one| one.estimation).collect();
    Some(Measured {
        candidate: first.candidate,
        goodput: of(|one| one.goodput),
        goodput_admitted: of(|one| one.goodput_admitted),
        preempted: of(|one| one.preempted),
        preempted_all: of(|one| one.preempted_all),
        ttft_p50: of(|one| one.ttft_p50),
        ttft_p99: of(|one| one.ttft_p99),
        denied: of(|one| one.denied),
        falsely_denied: of(|one| one.falsely_denied),
        falsely_denied_with_room: of(|one| one.falsely_denied_with_room),
        denied_against_ceiling: of(|one| one.denied_against_ceiling),
        missed: of(|one| one.missed),
        utilisation: of(|one| one.utilisation),
        asked: draws.iter().map(|one| one.asked).sum(),
        retry_admitted: (!told.is_empty()).then(|| average(told.iter().copied())),
        others: (!others.is_empty()).then(|| {
            (average(others.iter().map(|(good, _)| *good)), average(others.iter().map(|(_, ttft)| *ttft)))
        }),
        phantoms: draws.iter().filter_map(|one| one.phantoms).max(),
        estimation: (!looks.is_empty()).then(|| estimation(&looks)),
    })
}

fn estimation(looks: &[Estimation]) -> Estimation {
    let of = |figure: fn(&Estimation) -> f64| average(looks.iter().map(figure));
    Estimation {
        corrected: Error { mean: of(|one| one.corrected.mean), p99: of(|one| one.corrected.p99) },
        bias: of(|one| one.bias),
        gauge: Error { mean: of(|one| one.gauge.mean), p99: of(|one| one.gauge.p99) },
        ledger: Error { mean: of(|one| one.ledger.mean), p99: of(|one| one.ledger.p99) },
        coverage: of(|one| one.coverage),
        width: of(|one| one.width),
    }
}

fn average(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0_f64), |(sum, count), value| (sum + value, count + 1.0));
    sum / count.max(1.0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{policy, schedule, situation, time::SECOND};

    #[test]
    fn the_mean_of_two_draws_lies_between_them() {
        let first = situation::quick(&[], 60 * SECOND).remove(0);
        let again = situation::Situation { seed: first.seed + 1, ..first.clone() };
        let candidates = policy::family("gpuadmit").unwrap().candidates(true);
        let none: Option<&Path> = None;
        let drawn = schedule::run_all(&[first, again], &candidates, None, none).unwrap();
        let joined = joined(&drawn, 2);
        let figures = |outcome: &Outcome| {
            let one = &outcome.measured[0];
            (one.goodput, one.denied, one.estimation.unwrap().coverage, one.asked)
        };
        let (one, other, both) = (figures(&drawn[0]), figures(&drawn[1]), figures(&joined[0]));
        assert_eq!(joined.len(), 1);
        assert_ne!(one, other);
        for (one, other, both) in
            [(one.0, other.0, both.0), (one.1, other.1, both.1), (one.2, other.2, both.2)]
        {
            assert!(((one + other) / 2.0 - both).abs() < 1e-9, "{one} {other} {both}");
        }
        assert_eq!(both.3, one.3 + other.3);
    }
}
