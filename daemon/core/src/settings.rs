//! What the operator decides. Every setting has a default that needs no tuning.

use std::{collections::BTreeMap, time::Duration};

use crate::units::{Bytes, Tokens};

/// Settings of the core.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Most of a pool that may be committed, share 0 to 1.
    pub ceiling: f64,
    /// Output tokens assumed for a request without max_tokens.
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
    /// Whether decisions bind, for engines without a setting of their own.
    pub mode: Mode,
    /// Per engine id.
    pub engine_modes: BTreeMap<String, Mode>,
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
            mode: Mode::Enforce,
            engine_modes: BTreeMap::new(),
        }
    }
}
