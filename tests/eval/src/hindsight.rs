//! Which denials were false: the run once more, clairvoyantly.
//!
//! All that was let in goes in again, at the same moment and without being asked. Each denied request is let in besides
//! when by true lengths, and by what is known to come, it will be good and harm nobody. Those that are good then were
//! denied falsely: together they would have fitted.

use anyhow::Result;

use crate::{
    cells::Cell,
    engine::RequestId,
    policy::clairvoyant,
    request::{Fate, Phase, Request},
    run::play,
    world::World,
};

/// The denied requests of a run that were denied falsely. As many as others were harmed by letting them in are left out.
pub(crate) fn falsely_denied(cell: &Cell, first: &World) -> Result<Vec<RequestId>> {
    let pairs = || first.requests.iter().zip(&first.fates);
    let denied = |fate: &Fate| fate.phase == Phase::Denied;
    if !first.fates.iter().any(denied) {
        return Ok(Vec::new());
    }
    let again = |(request, fate): (&Request, &Fate)| {
        let at = fate.denial.filter(|_| denied(fate)).map_or(fate.sent_at, |denial| denial.at);
        Request { at, bypass: !denied(fate), ..request.clone() }
    };
    let second = play(cell, pairs().map(again).collect(), clairvoyant())?.world;
    let good_now = |request: &Request| second.fates[request.id as usize].good();
    let harmed = pairs().filter(|(request, fate)| fate.good() && !good_now(request)).count();
    let falsely = pairs().filter(|(request, fate)| denied(fate) && good_now(request));
    Ok(falsely.skip(harmed).map(|(request, _)| request.id).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;
    use crate::{
        cells::quick,
        policy::{Answer, Ask, Candidate, Policy},
        run::Played,
        time::SECOND,
    };

    /// Lets in exactly these.
    struct Script(BTreeSet<RequestId>);

    impl Policy for Script {
        fn decide(&mut self, ask: &Ask<'_>) -> Answer {
            Answer::plain(self.0.contains(&ask.request.id))
        }
    }

    fn of(played: &Played, which: impl Fn(&Fate) -> bool) -> BTreeSet<RequestId> {
        let pairs = played.world.requests.iter().zip(&played.world.fates);
        pairs.filter(|(_, fate)| which(fate)).map(|(request, _)| request.id).collect()
    }

    #[test]
    fn false_denials_let_in_together_are_good_and_harm_nobody() {
        for cell in quick(&[], 200 * SECOND).iter().filter(|cell| cell.clean()) {
            let rule = Candidate { family: "worst-case", value: 1.0, ttft: true };
            let requests = || cell.requests().unwrap();
            let first = play(cell, requests(), rule.build(Duration::from_secs(1), None)).unwrap();
            let falsely: BTreeSet<_> = falsely_denied(cell, &first.world).unwrap().into_iter().collect();
            let mut admitted = of(&first, |fate| fate.phase != Phase::Denied);
            admitted.extend(&falsely);
            let after = of(&play(cell, requests(), Box::new(Script(admitted))).unwrap(), Fate::good);
            let missing = |of: &BTreeSet<_>| of.difference(&after).count();
            let (lost, harmed) = (missing(&falsely), missing(&of(&first, Fate::good)));
            assert!(lost + harmed <= 5, "{}: of {} {lost} lost, {harmed} harmed", cell.name(), falsely.len());
        }
    }
}
