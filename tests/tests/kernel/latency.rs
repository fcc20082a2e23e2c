//! From the kernel's own time of a signal or an exit to the observer.

use gpuadmit_core::observation::{Observation, ProcessChange};

use crate::{
    rig::Ears,
    victim::{Fate, Victim},
};

const DEATHS: usize = 200;
/// Fewer of them, where the machine is slow.
const FEWER: &str = "GPUADMIT_DEATHS";

/// Prints the times; they depend on the machine, so that nothing is asserted but that all were told.
#[test]
fn deaths_are_told_at_once() {
    let Some(ears) = Ears::with_programs() else { return };
    let deaths = std::env::var(FEWER).map_or(DEATHS, |deaths| deaths.parse().unwrap());
    let (mut signals, mut exits) = (vec![], vec![]);
    for _ in 0..deaths {
        let victim = Victim::start(Fate::Signal(9));
        ears.kernel.watch(&[victim.process()]);
        victim.end();
        loop {
            let (now, Observation::Process(event)) = ears.next() else { continue };
            if event.pid != victim.pid() {
                continue;
            }
            let late = now.since(event.span.not_before).as_nanos() / 1000;
            match event.what {
                ProcessChange::Signal { .. } => signals.push(late),
                ProcessChange::Exit { .. } => break exits.push(late),
                _ => {}
            }
        }
    }
    assert_eq!((signals.len(), exits.len()), (deaths, deaths));
    print("fatal signal", signals);
    print("exit", exits);
}

fn print(what: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    let quantile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "{what} to observer, {} deaths: p50 {} us, p99 {} us, worst {} us",
        times.len(),
        quantile(50),
        quantile(99),
        quantile(100)
    );
}
