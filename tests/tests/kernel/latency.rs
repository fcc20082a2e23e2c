//! From the kernel's own time of a signal or an exit to the observer, and to the first denial.

use std::sync::{Arc, Mutex, mpsc};

use gpuadmit_core::{
    observation::{Observation, ProcessChange},
    request::{Decision, Verdict},
    settings::Settings,
};
use gpuadmit_tests::{node_kit::request, served::ready_engine_of};
use gpuadmitd::{
    clock,
    handle::Handle,
    source::{
        Observe,
        kernel::{self, Options},
    },
};

use crate::{
    rig::{Ears, object},
    victim::{Fate, Victim},
};

const DEATHS: usize = 200;
/// Fewer of them, where the machine is slow.
const FEWER: &str = "GPUADMIT_DEATHS";

/// Prints the times; they depend on the machine, so that nothing is asserted but that all were told.
#[test]
fn deaths_are_told_at_once() {
    let Some(ears) = Ears::with_programs() else { return };
    let deaths = deaths();
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
    print("fatal signal to observer", signals);
    print("exit to observer", exits);
}

/// The same through the node: a caller who asks at once after the kernel's word is denied.
#[test]
fn the_next_request_after_a_fatal_signal_is_denied() {
    if Ears::with_programs().is_none() {
        return;
    }
    // A node for each death, so that each engine is as good as new.
    let node = Arc::new(Mutex::new(Handle::new(Settings::default(), 1)));
    let (say, said) = mpsc::channel();
    let current = Arc::clone(&node);
    let observe: Observe = Arc::new(move |observation: Observation| {
        let fatal = match &observation {
            Observation::Process(event) if matches!(event.what, ProcessChange::Signal { .. }) => {
                Some(event.span)
            }
            _ => None,
        };
        let node = current.lock().unwrap().clone();
        node.observe(observation);
        if let Some(span) = fatal {
            let decision = node.admit(&request(16, Some(16))).unwrap();
            say.send((clock::now().since(span.not_before), decision)).unwrap();
        }
    });
    let kernel = kernel::spawn(&Options { object: Some(object()), ..Options::default() }, observe).unwrap();
    let times = (0..deaths()).map(|_| {
        let victim = Victim::start(Fate::Signal(9));
        let handle = Handle::new(Settings::default(), 1);
        *node.lock().unwrap() = handle.clone();
        ready_engine_of(&handle, victim.process());
        assert!(
            matches!(handle.admit(&request(16, Some(16))), Ok(Decision { verdict: Verdict::Admit(_), .. })),
            "it is ready"
        );
        kernel.watch(&[victim.process()]);
        victim.end();
        let (late, decision) = said.recv().unwrap();
        assert!(matches!(decision, Decision { verdict: Verdict::Deny(_), .. }), "{decision:?}");
        late.as_nanos() / 1000
    });
    print("fatal signal to first denial", times.collect());
}

fn deaths() -> usize {
    std::env::var(FEWER).map_or(DEATHS, |deaths| deaths.parse().unwrap())
}

fn print(what: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    let quantile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    println!(
        "{what}, {} deaths: p50 {} us, p99 {} us, worst {} us",
        times.len(),
        quantile(50),
        quantile(99),
        quantile(100)
    );
}
