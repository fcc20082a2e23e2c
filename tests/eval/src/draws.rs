//! Several draws of a situation taken together: one of a few minutes says little, for the figures of a rule differ by
//! several per cent from draw to draw.

use crate::{measure::Measured, schedule::Outcome};

/// `outcomes` of so many `draws` each, one after the other, as one outcome with the mean of every figure.
pub(crate) fn joined(outcomes: &[Outcome], draws: usize) -> Vec<Outcome> {
    outcomes.chunks(draws.max(1)).filter_map(join).collect()
}

fn join(draws: &[Outcome]) -> Option<Outcome> {
    let first = draws.first()?;
    let of = |rule: usize| draws.iter().filter_map(move |draw| draw.measured.get(rule)).collect::<Vec<_>>();
    let measured = (0..first.measured.len()).filter_map(|rule| Measured::mean(&of(rule))).collect();
    Some(Outcome { situation: first.situation.clone(), measured })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{measure::Figure, policy, run::Wanted, schedule, situation, time::SECOND};

    #[test]
    fn the_mean_of_two_draws_lies_between_them() {
        let first = situation::quick(&[], 60 * SECOND).remove(0);
        let again = situation::Situation { seed: first.seed + 1, ..first.clone() };
        let candidates = policy::family("gpuadmit").unwrap().candidates(true);
        let drawn = schedule::run_all(&[first, again], &candidates, None, &Wanted::default()).unwrap();
        let joined = joined(&drawn, 2);
        assert_eq!(joined.len(), 1);
        let of = |outcome: &Outcome, figure| outcome.measured[0].get(figure).unwrap();
        for figure in [Figure::Goodput, Figure::Denied, Figure::Coverage] {
            let (one, other, both) = (of(&drawn[0], figure), of(&drawn[1], figure), of(&joined[0], figure));
            assert!(one != other && ((one + other) / 2.0 - both).abs() < 1e-9, "{one} {other} {both}");
        }
        let asked = |outcome| of(outcome, Figure::Asked);
        assert_eq!(asked(&joined[0]), asked(&drawn[0]) + asked(&drawn[1]));
    }
}
