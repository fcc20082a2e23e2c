//! What the operator decides. Every setting has a default that needs no tuning.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    parts::Parts,
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
    /// What each class may take.
    pub classes: Classes,
    /// Most requests that wait for room, per engine; 0: none waits.
    pub queue_depth: usize,
    /// Longest wait for room, whatever the caller would accept.
    pub queue_time: Duration,
    /// Limits of tenants that are not named, each for itself.
    pub tenant_default: TenantLimits,
    /// Limits per tenant named by the operator; "" is the anonymous one.
    pub tenants: BTreeMap<String, TenantLimits>,
    /// Which learned parts engines that are found from now on use: for evaluations.
    pub parts: Parts,
}

/// What requests of one class may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassLimits {
    /// Most of a pool that may be committed once a request of this class is admitted, share 0 to 1. What is above it is
    /// held back for the other classes.
    pub pool_share: f64,
    /// Largest max_tokens granted; `None`: the limit of all classes.
    pub max_tokens_limit: Option<Tokens>,
}

impl Default for ClassLimits {
    fn default() -> Self {
        Self { pool_share: 1.0, max_tokens_limit: None }
    }
}

/// [`ClassLimits`] of the classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classes {
    /// Of interactive requests.
    pub interactive: ClassLimits,
    /// Of standard ones.
    pub standard: ClassLimits,
    /// Of batch.
    pub batch: ClassLimits,
}

impl Classes {
    /// Of `class`.
    #[must_use]
    pub const fn of(&self, class: Class) -> &ClassLimits {
        match class {
            Class::Interactive => &self.interactive,
            Class::Standard => &self.standard,
            Class::Batch => &self.batch,
        }
    }
}

impl Default for Classes {
    fn default() -> Self {
        let batch = ClassLimits { pool_share: 0.65, ..ClassLimits::default() };
        Self { interactive: ClassLimits::default(), standard: ClassLimits::default(), batch }
    }
}

/// What one tenant may take.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantLimits {
    /// None of its requests passes.
    pub blocked: bool,
    /// Most of an engine's pools that its requests may come to need together, share 0 to 1.
    pub pool_share: f64,
    /// Prompt and output tokens per second, over all engines; `None`: no limit.
    pub tokens_per_second: Option<f64>,
    /// Tokens that it may take at once after a pause; `None`: those of ten seconds.
    pub burst: Option<Tokens>,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self { blocked: false, pool_share: 1.0, tokens_per_second: None, burst: None }
    }
}

impl Settings {
    /// Largest max_tokens granted to `class`.
    #[must_use]
    pub fn most_tokens(&self, class: Class) -> Option<Tokens> {
        let of_class = self.classes.of(class).max_tokens_limit;
        of_class.into_iter().chain(self.max_tokens_limit).min()
    }
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
            risk: Risk { interactive: 0.10, standard: 0.06, batch: 0.01 },
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
            classes: Classes::default(),
            queue_depth: 8,
            queue_time: Duration::from_secs(30),
            tenant_default: TenantLimits::default(),
            tenants: BTreeMap::new(),
            parts: Parts::default(),
        }
    }
}
