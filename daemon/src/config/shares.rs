//! The tables that say who gets how much, and in which order.

use serde::{Deserialize, Serialize};

/// `[queue]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Requests that wait for room, per engine; 0: none waits.
    pub depth: u32,
    /// Longest wait, whatever the caller would accept.
    pub time_ms: u64,
    /// Calls of one session that wait; more are answered at once.
    pub waits_per_session: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { depth: 8, time_ms: 30_000, waits_per_session: 64 }
    }
}

/// `[class]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    /// Most of a pool that may be promised once an interactive request is admitted, share 0 to 1.
    pub pool_share_interactive: f64,
    /// The same for standard requests: the rest is held back for interactive ones.
    pub pool_share_standard: f64,
    /// The same for batch.
    pub pool_share_batch: f64,
    /// Largest max_tokens granted to interactive requests. Absent: `admission.max_tokens_limit`.
    pub max_tokens_limit_interactive: Option<u64>,
    /// The same for standard requests.
    pub max_tokens_limit_standard: Option<u64>,
    /// The same for batch.
    pub max_tokens_limit_batch: Option<u64>,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            pool_share_interactive: 1.0,
            pool_share_standard: 1.0,
            pool_share_batch: 0.65,
            max_tokens_limit_interactive: None,
            max_tokens_limit_standard: None,
            max_tokens_limit_batch: None,
        }
    }
}

/// `[tenant_default]`, and the limits in `[[tenant]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantLimits {
    /// Whether none of its requests passes.
    pub blocked: bool,
    /// Most of an engine's KV cache that its requests may come to need together, share 0 to 1.
    pub pool_share: f64,
    /// Prompt and output tokens per second. Absent: no limit.
    pub tokens_per_second: Option<f64>,
    /// Tokens that it may take at once after a pause. Absent: those of ten seconds.
    pub burst_tokens: Option<u64>,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self { blocked: false, pool_share: 1.0, tokens_per_second: None, burst_tokens: None }
    }
}

/// `[[tenant]]`. What it does not say is as in `[tenant_default]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// As callers name it; "" is those who name none.
    pub name: String,
    /// As in [`TenantLimits`].
    pub blocked: Option<bool>,
    /// As in [`TenantLimits`].
    pub pool_share: Option<f64>,
    /// As in [`TenantLimits`].
    pub tokens_per_second: Option<f64>,
    /// As in [`TenantLimits`].
    pub burst_tokens: Option<u64>,
}
