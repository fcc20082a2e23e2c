//! From the file's integers to the core's types.

use std::time::Duration;

use gpuadmit_core::{
    settings::{self, Risk, Settings},
    units::{Bytes, Tokens},
};

use super::{Config, Mode};

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
        }
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
