//! Which denials were false: the run once more, clairvoyantly.
//!
//! All that was let in goes in again, at the same moment and without being asked. Each denied request is let in besides
//! when by true lengths, and by what is known to come, it will be good and harm nobody. Those that are good then were
//! denied falsely: together they would have fitted.

use anyhow::Result;

use crate::{
    engine::RequestId,
    policy::clairvoyant,
    request::{Fate, Phase, Request},
    run::play,
    situation::Situation,
    world::World,
};

/// The denied requests of a run that were denied falsely. As many as others were harmed by letting them in are left out.
pub(crate) fn falsely_denied(situation: &Situation, first: &World) -> Result<Vec<RequestId>> {
    let pairs = || first.requests.iter().zip(&first.fates);
    let denied = |fate: &Fate| fate.phase == Phase::Denied;
    if !first.fates.iter().any(denied) {
        return Ok(Vec::new());
    }
    let again = |(request, fate): (&Request, &Fate)| {
        let at = fate.denial.filter(|_| denied(fate)).map_or(fate.sent_at, |denial| denial.at);
        Request { at, bypass: !denied(fate), ..request.clone() }
    };
    let second = play(situation, pairs().map(again).collect(), clairvoyant())?.world;
    let good_now = |request: &Request| second.good(request.id);
    let harmed = pairs().filter(|(request, _)| first.good(request.id) && !good_now(request)).count();
    let falsely = pairs().filter(|(request, fate)| denied(fate) && good_now(request));
    Ok(falsely.skip(harmed).map(|(request, _)| request.id).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gpuadmit_core::parts::Parts;

    use super::*;
    use crate::{
        policy::{Answer, Ask, Candidate, Policy},
        run::Played,
        situation::quick,
        time::SECOND,
    };

    /// Lets in exactly these.
    struct Script(BTreeSet<RequestId>);

    impl Policy for Script {
        fn decide(&mut self, ask: &Ask<'_>) -> Answer {
            Answer::plain(self.0.contains(&ask.request.id))
        }
    }

    fn of(played: &Played, which: impl Fn(&World, RequestId) -> bool) -> BTreeSet<RequestId> {
        let world = &played.world;
        world.requests.iter().map(|request| request.id).filter(|id| which(world, *id)).collect()
    }

    #[test]
    fn false_denials_let_in_together_are_good_and_harm_nobody() {
        for situation in quick(&[], 200 * SECOND).iter().filter(|situation| situation.clean()) {
            let rule = Candidate { family: "worst-case", value: 1.0, ttft: true, parts: Parts::default() };
            let requests = || situation.requests().unwrap();
            let first = play(situation, requests(), rule.build(situation)).unwrap();
            let falsely: BTreeSet<_> = falsely_denied(situation, &first.world).unwrap().into_iter().collect();
            let mut admitted = of(&first, |world, id| world.fates[id as usize].phase != Phase::Denied);
            admitted.extend(&falsely);
            let after = of(&play(situation, requests(), Box::new(Script(admitted))).unwrap(), World::good);
            let missing = |of: &BTreeSet<_>| of.difference(&after).count();
            let (lost, harmed) = (missing(&falsely), missing(&of(&first, World::good)));
            assert!(
                lost + harmed <= 5,
                "{}: of {} {lost} lost, {harmed} harmed",
                situation.name(),
                falsely.len()
            );
        }
    }
}
