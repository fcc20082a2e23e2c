//! The learned guard: when an engine has twice run out of device memory with prompts of one size in flight, and nothing
//! else explains it, prompts of that size are held back from it (vllm #52871: prompts of some 6,000 tokens ended the
//! engine for every client, every time, and those of 4,000 never did).
//!
//! It is a circuit breaker with a half-open state: from time to time one such prompt is let through. If it ends well the
//! guard is lifted, if the engine dies with it the guard holds on and waits twice as long. It is also lifted after a day,
//! when the engine's configuration changes, and by the operator.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    observation::EngineFacts,
    request::{Outcome, ReservationId},
    units::{Mono, Tokens},
};

/// A guard is lifted after this time.
pub const HOLD: Duration = Duration::from_hours(24);
/// The first prompt is let through after this time; each failure doubles it.
pub const FIRST_PAUSE: Duration = Duration::from_hours(3);
/// A first death is remembered for so long.
pub const SUSPICION_KEPT: Duration = Duration::from_hours(24 * 7);
/// A prompt that was let through and is not heard of any more is given up.
const PROBE_LIFE: Duration = Duration::from_mins(30);
/// Most engines with a guard or a suspicion.
pub const MAX_GUARDED: usize = 64;
/// Most sizes held back from one engine.
pub const MAX_HOLDS: usize = 8;
/// Longest description of a configuration, bytes.
pub const MAX_CONFIGURATION: usize = 1024;

/// Prompts whose lengths lie within half an octave of each other. Class `c` begins at 2^(c/2) tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The last class is open.
    const LAST: u8 = 63;

    /// Class of a prompt.
    #[must_use]
    pub fn of(prompt: Tokens) -> Self {
        let tokens = prompt.0.clamp(1, u64::from(u32::MAX));
        let octave = tokens.ilog2();
        let upper_half = tokens * tokens >= 1_u64 << (2 * octave + 1).min(63);
        let class = 2 * octave + u32::from(upper_half);
        Self(u8::try_from(class).unwrap_or(Self::LAST).min(Self::LAST))
    }

    /// The class with this number; `None`: there is none.
    #[must_use]
    pub const fn numbered(number: u8) -> Option<Self> {
        if number <= Self::LAST { Some(Self(number)) } else { None }
    }

    /// Its number, 0 to 63.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its bit in a set of classes.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self.0
    }

    /// The largest class in a set.
    const fn largest(set: u64) -> Option<Self> {
        match set.checked_ilog2() {
            // A u64 has 64 bits.
            #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
            Some(bit) => Some(Self(bit as u8)),
            None => None,
        }
    }

    /// Shortest prompt in it.
    #[must_use]
    pub const fn shortest(self) -> Tokens {
        Tokens(lower_end(self.0))
    }

    /// Longest prompt in it.
    #[must_use]
    pub const fn longest(self) -> Tokens {
        if self.0 == Self::LAST { Tokens(u64::MAX) } else { Tokens(lower_end(self.0 + 1) - 1) }
    }
}

/// 2^(class / 2), rounded up.
const fn lower_end(class: u8) -> u64 {
    let square = 1_u64 << class;
    if class.is_multiple_of(2) { 1 << (class / 2) } else { square.isqrt() + 1 }
}

/// A guard, for those who look and for the next run of the daemon. Times are relative, for a clock does not outlive the
/// machine's boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Engine id.
    pub engine: Arc<str>,
    /// Prompts held back.
    pub size: SizeClass,
    /// Deaths that it rests on.
    pub deaths: u32,
    /// Configuration that it holds for.
    pub configuration: String,
    /// Time until it is lifted.
    pub left: Duration,
    /// Time until one such prompt is let through.
    pub probe_in: Duration,
    /// Pause between two of those.
    pub pause: Duration,
}

/// A first death, for the next run of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// Engine id.
    pub engine: Arc<str>,
    /// Its configuration then.
    pub configuration: String,
    /// Set of size classes in flight when it died, by [`SizeClass::bit`].
    pub in_flight: u64,
    /// Set of those that have since been served well.
    pub served: u64,
    /// Time until it is forgotten.
    pub left: Duration,
}

/// All that is to outlive the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Guards.
    pub held: Vec<Held>,
    /// First deaths.
    pub suspected: Vec<Suspected>,
}

#[derive(Clone, Debug)]
struct Hold {
    size: SizeClass,
    deaths: u32,
    until: Mono,
    next_probe: Mono,
    pause: Duration,
    probe: Option<(ReservationId, Mono)>,
}

#[derive(Clone, Debug, Default)]
struct Suspicion {
    until: Mono,
    in_flight: u64,
    served: u64,
}

#[derive(Clone, Debug, Default)]
struct Guarded {
    configuration: String,
    suspicion: Option<Suspicion>,
    holds: Vec<Hold>,
}

/// Whether a prompt may go to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// It may, to find out whether it still kills.
    Probe,
    /// Not before this time.
    Closed(Duration),
}

/// All guards.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    engines: BTreeMap<Arc<str>, Guarded>,
}

/// What identifies an engine's configuration; `None` while not all of it is known.
pub(crate) fn configuration(facts: &EngineFacts) -> Option<String> {
    let (version, model) = (facts.version.as_ref()?, facts.models.first()?);
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut text = format!(
        "{version} model={} max_model_len={} block_size={} max_num_seqs={} max_num_batched_tokens={} \
         gpu_memory_utilization={} data_parallel_size={}",
        model.name,
        number(model.max_model_len.map(|tokens| tokens.0)),
        number(facts.block_size),
        number(facts.max_num_seqs),
        number(facts.max_num_batched_tokens),
        facts.gpu_memory_utilization.map_or_else(|| "-".to_owned(), |share| share.to_string()),
        facts.data_parallel_size
    );
    text.truncate(text.floor_char_boundary(MAX_CONFIGURATION));
    Some(text)
}

impl Guard {
    /// Whether a prompt may go to `engine`.
    pub(crate) fn gate(&self, now: Mono, engine: &str, prompt: Tokens) -> Gate {
        let Some(guarded) = self.engines.get(engine).filter(|guarded| !guarded.holds.is_empty()) else {
            return Gate::Open;
        };
        let size = SizeClass::of(prompt);
        let hold = guarded.holds.iter().find(|hold| hold.size == size && now < hold.until);
        hold.map_or(Gate::Open, |hold| hold.gate(now))
    }

    /// `id` was let through.
    pub(crate) fn probing(&mut self, now: Mono, engine: &str, prompt: Tokens, id: ReservationId) {
        let size = SizeClass::of(prompt);
        let holds = self.engines.get_mut(engine).map(|guarded| guarded.holds.iter_mut());
        if let Some(hold) = holds.into_iter().flatten().find(|hold| hold.size == size) {
            hold.probe = Some((id, now));
        }
    }

    /// A request ended. Returns the size whose guard this lifts.
    pub(crate) fn ended(
        &mut self,
        engine: &str,
        prompt: Tokens,
        id: ReservationId,
        outcome: Outcome,
    ) -> Option<SizeClass> {
        let guarded = self.engines.get_mut(engine)?;
        let size = SizeClass::of(prompt);
        if let Some(suspicion) = guarded.suspicion.as_mut().filter(|_| outcome == Outcome::Ok) {
            suspicion.served |= size.bit();
        }
        let probe = |hold: &Hold| hold.probe.is_some_and(|(probe, _)| probe == id);
        let position = guarded.holds.iter().position(probe)?;
        if outcome == Outcome::Ok {
            return Some(guarded.holds.remove(position).size);
        }
        guarded.holds.get_mut(position)?.probe = None;
        None
    }

    /// An engine of this configuration died for want of device memory with nothing else to explain it. Returns the size
    /// that is held back from now on, where that is news.
    pub(crate) fn ran_out(
        &mut self,
        now: Mono,
        engine: &Arc<str>,
        configuration: String,
        in_flight: u64,
    ) -> Option<SizeClass> {
        let full = self.engines.len() >= MAX_GUARDED && !self.engines.contains_key(engine);
        if full || in_flight == 0 {
            return None;
        }
        let guarded = self.engines.entry(Arc::clone(engine)).or_default();
        if guarded.configuration != configuration {
            *guarded = Guarded { configuration, ..Guarded::default() };
        }
        for hold in guarded.holds.iter_mut().filter(|hold| in_flight & hold.size.bit() != 0) {
            hold.failed(now);
        }
        let held = guarded.holds.iter().fold(0, |set, hold| set | hold.size.bit());
        let fresh = Suspicion { until: now + SUSPICION_KEPT, in_flight, served: 0 };
        let earlier = guarded.suspicion.replace(fresh).filter(|earlier| now < earlier.until)?;
        // The larger a prompt, the more memory its forward pass takes.
        let size = SizeClass::largest(in_flight & earlier.in_flight & !earlier.served & !held)?;
        if held & in_flight != 0 || guarded.holds.len() >= MAX_HOLDS {
            return None;
        }
        guarded.holds.push(Hold {
            size,
            deaths: 2,
            until: now + HOLD,
            next_probe: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            probe: None,
        });
        guarded.suspicion = None;
        Some(size)
    }

    /// Something else than a prompt explains why an engine runs out of memory, or ended it.
    pub(crate) fn exonerate(&mut self, engine: &str) {
        if let Some(guarded) = self.engines.get_mut(engine) {
            guarded.suspicion = None;
        }
    }

    /// An engine has this configuration. Returns the sizes that are no longer held back.
    pub(crate) fn configured(&mut self, engine: &str, configuration: &str) -> Vec<SizeClass> {
        match self.engines.get(engine) {
            Some(guarded) if guarded.configuration != configuration => self.clear(engine),
            _ => Vec::new(),
        }
    }

    /// Lifts all guards of an engine and forgets what it is suspected of. Returns the sizes no longer held back.
    pub(crate) fn clear(&mut self, engine: &str) -> Vec<SizeClass> {
        let guarded = self.engines.remove(engine).unwrap_or_default();
        guarded.holds.iter().map(|hold| hold.size).collect()
    }

    /// Lifts what has had its time. Returns engines and sizes.
    pub(crate) fn expire(&mut self, now: Mono) -> Vec<(Arc<str>, SizeClass)> {
        let mut lifted = Vec::new();
        self.engines.retain(|engine, guarded| {
            guarded.suspicion.take_if(|suspicion| now >= suspicion.until);
            guarded.holds.retain(|hold| {
                if now >= hold.until {
                    lifted.push((Arc::clone(engine), hold.size));
                }
                now < hold.until
            });
            guarded.suspicion.is_some() || !guarded.holds.is_empty()
        });
        lifted
    }

    /// All guards.
    pub(crate) fn held(&self, now: Mono) -> Vec<Held> {
        self.engines.iter().flat_map(|(engine, guarded)| guarded.held(now, engine)).collect()
    }

    /// Those of one engine.
    pub(crate) fn of(&self, now: Mono, engine: &Arc<str>) -> Vec<Held> {
        self.engines.get(engine).into_iter().flat_map(|guarded| guarded.held(now, engine)).collect()
    }

    /// All that is to outlive the daemon.
    pub(crate) fn keep(&self, now: Mono) -> Kept {
        let suspected = self.engines.iter().filter_map(|(engine, guarded)| {
            let suspicion = guarded.suspicion.as_ref()?;
            Some(Suspected {
                engine: Arc::clone(engine),
                configuration: guarded.configuration.clone(),
                in_flight: suspicion.in_flight,
                served: suspicion.served,
                left: suspicion.until.since(now),
            })
        });
        Kept { held: self.held(now), suspected: suspected.collect() }
    }

    /// Takes up what an earlier run has kept; what is beyond the bounds is left out.
    pub(crate) fn take_up(&mut self, now: Mono, kept: Kept) {
        for Suspected { engine, configuration, in_flight, served, left } in kept.suspected {
            if let Some(guarded) = self.room(engine, configuration) {
                let until = now + left.min(SUSPICION_KEPT);
                guarded.suspicion = Some(Suspicion { until, in_flight, served });
            }
        }
        for held in kept.held {
            let Some(guarded) = self.room(held.engine, held.configuration) else { continue };
            if guarded.holds.len() >= MAX_HOLDS {
                continue;
            }
            guarded.holds.push(Hold {
                size: held.size,
                deaths: held.deaths,
                until: now + held.left.min(HOLD),
                next_probe: now + held.probe_in.min(HOLD),
                pause: held.pause.clamp(FIRST_PAUSE, HOLD),
                probe: None,
            });
        }
    }

    fn room(&mut self, engine: Arc<str>, configuration: String) -> Option<&mut Guarded> {
        if self.engines.len() >= MAX_GUARDED && !self.engines.contains_key(&engine) {
            return None;
        }
        let guarded = self.engines.entry(engine).or_default();
        guarded.configuration = configuration;
        Some(guarded)
    }
}

impl Guarded {
    fn held(&self, now: Mono, engine: &Arc<str>) -> impl Iterator<Item = Held> {
        self.holds.iter().map(move |hold| Held {
            engine: Arc::clone(engine),
            size: hold.size,
            deaths: hold.deaths,
            configuration: self.configuration.clone(),
            left: hold.until.since(now),
            probe_in: hold.next_probe.since(now),
            pause: hold.pause,
        })
    }
}

impl Hold {
    fn gate(&self, now: Mono) -> Gate {
        let probed = self.probe.is_some_and(|(_, sent)| now.since(sent) < PROBE_LIFE);
        if now >= self.next_probe && !probed {
            return Gate::Probe;
        }
        let wait = if probed { self.pause } else { self.next_probe.since(now) };
        Gate::Closed(wait.min(self.until.since(now)))
    }

    /// The engine died again with such a prompt in flight.
    fn failed(&mut self, now: Mono) {
        self.deaths = self.deaths.saturating_add(1);
        self.pause = (self.pause * 2).min(HOLD);
        (self.until, self.next_probe) = (now + HOLD, now + self.pause);
        self.probe = None;
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
