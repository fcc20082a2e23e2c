//! What the operator decides. Every setting has a default that needs no tuning.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    request::Class,
    units::{Bytes, Tokens},
};

/// Settings of the core.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Most of a pool that may be committed, share 0 to 1.
    pub ceiling: f64,
    /// Accepted probability that the pool overflows within the life of an admitted request, per class. 0 admits only
    /// what fits in the worst case.
    pub risk: Risk,
    /// Output tokens assumed for a request without max_tokens where risk is 0, and of bypass traffic as long as the
    /// engine's history does not tell.
    pub default_max_tokens: Tokens,
    /// Largest max_tokens granted; `None`: the context window alone limits.
    pub max_tokens_limit: Option<Tokens>,
    /// Above the limit: grant the limit (true) or deny (false).
    pub clamp_max_tokens: bool,
    /// Lease of a reservation, renewed by progress.
    pub lease: Duration,
    /// An orphan is forgotten after this time, whatever the engine shows.
    pub orphan_cap: Duration,
    /// Most reservations held.
    pub reservations: usize,
    /// A gateway is believed to have delivered an admitted request after this time.
    pub delivery_grace: Duration,
    /// Age at which a device's figures are no longer believed.
    pub device_stale: Duration,
    /// Co-tenant growth since the engine was ready that counts as a danger.
    pub co_tenant_growth: Bytes,
    /// Free device memory below which such growth denies.
    pub device_floor: Bytes,
    /// Hold batch back on an engine of which more is asked than it can do.
    pub tighten_batch: bool,
    /// Whether decisions bind, for engines without a setting of their own.
    pub mode: Mode,
    /// Per engine id.
    pub engine_modes: BTreeMap<String, Mode>,
}

/// Accepted probabilities of overflow, 0 to 0.5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Risk {
    /// Of interactive requests.
    pub interactive: f64,
    /// Of standard ones.
    pub standard: f64,
    /// Of batch.
    pub batch: f64,
}

impl Risk {
    /// The worst case decides for all.
    pub const NONE: Self = Self { interactive: 0.0, standard: 0.0, batch: 0.0 };

    /// Of `class`.
    #[must_use]
    pub const fn of(&self, class: Class) -> f64 {
        match class {
            Class::Interactive => self.interactive,
            Class::Standard => self.standard,
            Class::Batch => self.batch,
        }
    }
}

/// Whether decisions bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Denials are denials.
    #[default]
    Enforce,
    /// Static limits and process state deny; all else is admitted and recorded.
    Observe,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ceiling: 1.0,
            risk: Risk { interactive: 0.05, standard: 0.02, batch: 0.005 },
            default_max_tokens: Tokens(1024),
            max_tokens_limit: None,
            clamp_max_tokens: true,
            lease: Duration::from_secs(60),
            orphan_cap: Duration::from_mins(10),
            reservations: 4096,
            delivery_grace: Duration::from_secs(1),
            device_stale: Duration::from_secs(2),
            co_tenant_growth: Bytes(512 << 20),
            device_floor: Bytes(1 << 30),
            tighten_batch: false,
            mode: Mode::Enforce,
            engine_modes: BTreeMap::new(),
        }
    }
}
