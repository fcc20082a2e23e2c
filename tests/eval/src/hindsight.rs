//! Which denials were false: looked at when all is over, with every admission as it was.
//!
//! Denials are taken in the order of time. One is false when the request could have been let in besides all that was,
//! and besides those falsely denied before it: the false denials are requests that *together* would have been good,
//! with nobody worse off.

use crate::{
    request::{Denial, Phase, Request, TTFT_OBJECTIVE},
    time::{MILLISECOND, Nanos, nanos},
    world::{World, in_time},
};

/// Use below which no denial for want of room is right, share of the pool.
const AMPLE: f64 = 0.7;
/// A first token within this time: nothing waits for its prefill.
const NO_QUEUE: Nanos = 500 * MILLISECOND;

/// How the pool's use went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    steps: Vec<Used>,
}

/// Blocks in use during one step.
#[derive(Clone, Copy, Debug)]
struct Used {
    from: Nanos,
    to: Nanos,
    blocks: u64,
}

/// What hindsight says of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The request would have been good, and nobody worse off for it.
    pub(crate) falsely: bool,
    /// The same, and there was ample room at that moment.
    pub(crate) with_room: bool,
}

/// Judges all denials.
pub(crate) fn judge(world: &World, mut course: Course) -> Vec<(Verdict, Denial)> {
    let denied = world.requests.iter().filter_map(|request| {
        let fate = &world.fates[request.id as usize];
        fate.denial.filter(|_| fate.phase == Phase::Denied).map(|denial| (request, denial))
    });
    let mut denied: Vec<_> = denied.collect();
    denied.sort_by_key(|(_, denial)| denial.at);
    let mut extra = 0;
    let judged = denied.into_iter().map(|(request, denial)| {
        // Prefill of those falsely denied before delays all until the queue is empty.
        if denial.ttft < NO_QUEUE {
            extra = 0;
        }
        let with_own = extra + prefill_time(world, request);
        let falsely = in_time(denial.ttft + extra)
            && !delays_others(world, denial.at, with_own)
            && course.fits(world, request, &denial);
        if falsely {
            extra = with_own;
            course.add(world, request, &denial);
        }
        (Verdict { falsely, with_room: falsely && denial.usage < AMPLE }, denial)
    });
    judged.collect()
}

impl Course {
    pub(crate) fn stepped(&mut self, from: Nanos, to: Nanos, blocks: u64) {
        self.steps.push(Used { from, to, blocks });
    }

    /// Whether what `request` would have held fits beside what was in use, at every step of its life.
    fn fits(&mut self, world: &World, request: &Request, denial: &Denial) -> bool {
        let capacity = world.setup.blocks;
        let mut fits = true;
        self.live(world, request, denial, |step, held| {
            fits = step.blocks + held <= capacity;
            fits
        });
        fits
    }

    /// Lets `request` hold its blocks.
    fn add(&mut self, world: &World, request: &Request, denial: &Denial) {
        self.live(world, request, denial, |step, held| {
            step.blocks += held;
            true
        });
    }

    /// Visits the steps of a life that never was, with the blocks held in each, until `visit` says no.
    fn live(
        &mut self,
        world: &World,
        request: &Request,
        denial: &Denial,
        mut visit: impl FnMut(&mut Used, u64) -> bool,
    ) {
        let idle_step = nanos(world.setup.cost.base / 1e3);
        let begins = denial.at + denial.ttft;
        let first = self.steps.partition_point(|step| step.to <= denial.at);
        let (mut generated, mut before) = (0, begins);
        for step in &mut self.steps[first..] {
            if step.from >= begins {
                // Between steps the engine was idle: it would have generated alone.
                generated += 1 + step.from.saturating_sub(before) / idle_step;
                before = step.to;
            }
            let held = world.blocks(request.prompt + generated);
            if generated >= request.length || !visit(step, held) {
                return;
            }
        }
    }
}

fn prefill_time(world: &World, request: &Request) -> Nanos {
    let (cost, prompt) = (&world.setup.cost, request.prompt as f64);
    nanos((cost.per_prefill_token * prompt + cost.per_prefill_pair * prompt * prompt / 2.0) / 1e3)
}

/// Whether `delay` from `at` on would have made a good request's first token come too late.
fn delays_others(world: &World, at: Nanos, delay: Nanos) -> bool {
    let later = world.requests.partition_point(|other| other.at < at);
    let near = world.requests[later..].iter().take_while(|other| other.at < at + TTFT_OBJECTIVE);
    let mut fates = near.map(|other| &world.fates[other.id as usize]);
    fates.any(|fate| fate.good() && fate.ttft().is_some_and(|ttft| ttft + delay > TTFT_OBJECTIVE))
}
