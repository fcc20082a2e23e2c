//! From the file's integers to the core's types.

use std::time::Duration;

use gpuadmit_core::{
    parts::Parts,
    settings::{self, ClassLimits, Classes, Risk, Settings},
    units::{Bytes, Tokens},
};

use super::{Class, Config, Mode, Tenant, TenantLimits};

impl From<Mode> for settings::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Enforce => Self::Enforce,
            Mode::Observe => Self::Observe,
        }
    }
}

impl Config {
    /// Settings of the core.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let admission = &self.admission;
        let engine_modes = self.engine.iter().filter_map(|e| Some((e.id.clone(), e.mode?.into()))).collect();
        Settings {
            ceiling: admission.ceiling,
            risk: Risk {
                interactive: admission.risk_interactive,
                standard: admission.risk_standard,
                batch: admission.risk_batch,
            },
            default_max_tokens: Tokens(admission.default_max_tokens),
            max_tokens_limit: admission.max_tokens_limit.map(Tokens),
            clamp_max_tokens: admission.clamp_max_tokens,
            lease: Duration::from_millis(admission.lease_ms),
            orphan_cap: Duration::from_millis(admission.orphan_cap_ms),
            reservations: usize::try_from(self.limits.reservations).unwrap_or(usize::MAX),
            delivery_grace: Duration::from_millis(admission.delivery_grace_ms),
            device_stale: Duration::from_millis(admission.device_stale_ms),
            co_tenant_growth: Bytes(admission.co_tenant_growth_bytes),
            device_floor: Bytes(admission.device_floor_bytes),
            tighten_batch: admission.tighten_batch,
            mode: self.mode.into(),
            engine_modes,
            classes: self.class.limits(),
            queue_depth: usize::try_from(self.queue.depth).unwrap_or(usize::MAX),
            queue_time: Duration::from_millis(self.queue.time_ms),
            tenant_default: tenant_limits(&self.tenant_default),
            tenants: self.tenant.iter().map(|one| (one.name.clone(), self.limits_of(one))).collect(),
            parts: Parts::default(),
        }
    }

    fn limits_of(&self, tenant: &Tenant) -> settings::TenantLimits {
        let default = &self.tenant_default;
        tenant_limits(&TenantLimits {
            blocked: tenant.blocked.unwrap_or(default.blocked),
            pool_share: tenant.pool_share.unwrap_or(default.pool_share),
            tokens_per_second: tenant.tokens_per_second.or(default.tokens_per_second),
            burst_tokens: tenant.burst_tokens.or(default.burst_tokens),
        })
    }
}

impl Class {
    fn limits(&self) -> Classes {
        let limits =
            |pool_share, most: Option<u64>| ClassLimits { pool_share, max_tokens_limit: most.map(Tokens) };
        Classes {
            interactive: limits(self.pool_share_interactive, self.max_tokens_limit_interactive),
            standard: limits(self.pool_share_standard, self.max_tokens_limit_standard),
            batch: limits(self.pool_share_batch, self.max_tokens_limit_batch),
        }
    }
}

fn tenant_limits(from: &TenantLimits) -> settings::TenantLimits {
    settings::TenantLimits {
        blocked: from.blocked,
        pool_share: from.pool_share,
        tokens_per_second: from.tokens_per_second,
        burst: from.burst_tokens.map(Tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_means_the_defaults_of_the_core() {
        assert_eq!(Config::default().settings(), Settings::default());
    }
}
