//! The ranges of [`super::shares`].

use std::collections::BTreeSet;

use gpuadmit_core::request::{MAX_COUNT, MAX_NAME_BYTES};

use super::{
    check::Found,
    shares::{Class, Queue, Tenant, TenantLimits},
};

/// Most `[[tenant]]` entries.
const MAX_TENANTS: usize = 200;
/// Most requests that wait for one engine.
const MAX_DEPTH: u32 = 128;
const SHARE: &str = "more than 0, at most 1";
const RATE: &str = "more than 0, at most 1e12";

impl Found {
    pub(super) fn queue(&mut self, queue: &Queue) {
        self.range("queue.depth", queue.depth, 0..=MAX_DEPTH);
        self.range("queue.time_ms", queue.time_ms, 1..=600_000);
        self.range("queue.waits_per_session", queue.waits_per_session, 1..=1024);
    }

    pub(super) fn class(&mut self, class: &Class) {
        self.share("class.pool_share_interactive", class.pool_share_interactive);
        self.share("class.pool_share_standard", class.pool_share_standard);
        self.share("class.pool_share_batch", class.pool_share_batch);
        let limits = [
            ("class.max_tokens_limit_interactive", class.max_tokens_limit_interactive),
            ("class.max_tokens_limit_standard", class.max_tokens_limit_standard),
            ("class.max_tokens_limit_batch", class.max_tokens_limit_batch),
        ];
        for (key, limit) in limits {
            self.range(key, limit.unwrap_or(1), 1..=MAX_COUNT);
        }
    }

    pub(super) fn tenants(&mut self, default: &TenantLimits, named: &[Tenant]) {
        let at = |key: &str| format!("tenant_default.{key}");
        self.share(&at("pool_share"), default.pool_share);
        self.rate(&at("tokens_per_second"), default.tokens_per_second);
        self.burst(&at("burst_tokens"), default.burst_tokens);
        let most = format!("at most {MAX_TENANTS} entries");
        self.unless(named.len() <= MAX_TENANTS, "tenant", named.len(), &most);
        let mut names = BTreeSet::new();
        for (i, tenant) in named.iter().enumerate() {
            let at = |key: &str| format!("tenant[{i}].{key}");
            let most = format!("at most {MAX_NAME_BYTES} bytes");
            self.unless(tenant.name.len() <= MAX_NAME_BYTES, &at("name"), &tenant.name, &most);
            self.unless(names.insert(&tenant.name), &at("name"), &tenant.name, "each name once");
            self.share(&at("pool_share"), tenant.pool_share.unwrap_or(1.0));
            self.rate(&at("tokens_per_second"), tenant.tokens_per_second);
            self.burst(&at("burst_tokens"), tenant.burst_tokens);
        }
    }

    fn share(&mut self, key: &str, share: f64) {
        self.unless(share > 0.0 && share <= 1.0, key, share, SHARE);
    }

    fn rate(&mut self, key: &str, rate: Option<f64>) {
        let rate = rate.unwrap_or(1.0);
        self.unless(rate > 0.0 && rate <= 1e12, key, rate, RATE);
    }

    fn burst(&mut self, key: &str, burst: Option<u64>) {
        self.range(key, burst.unwrap_or(1), 1..=MAX_COUNT);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn problems_name_the_tenant_and_the_class() {
        let text = "[class]\npool_share_batch = 0.0\n[queue]\ndepth = 129\n[[tenant]]\nname = \"a\"\n\
                    tokens_per_second = -1.0\n[[tenant]]\nname = \"a\"\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "queue.depth: 129 is not allowed; 0 to 128\n\
             class.pool_share_batch: 0.0 is not allowed; more than 0, at most 1\n\
             tenant[0].tokens_per_second: -1.0 is not allowed; more than 0, at most 1e12\n\
             tenant[1].name: \"a\" is not allowed; each name once"
        );
    }
}
