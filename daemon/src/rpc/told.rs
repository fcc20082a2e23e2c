//! Decisions as log lines, for who asks for them: `log.level = "info,gpuadmitd::decision=debug"`.

use gpuadmit_core::request::{Decision, Reason, Verdict};
use gpuadmit_proto::v1::AdmitRequest;
use tracing::{Level, debug, enabled};

use super::asking::Asked;

const DECISIONS: &str = "gpuadmitd::decision";

/// What to log of a request once it is decided; `None`: nothing is wanted.
pub(super) struct Told {
    model: String,
    tenant: Option<String>,
}

impl Told {
    pub(super) fn wanted(request: &AdmitRequest) -> Option<Self> {
        enabled!(target: DECISIONS, Level::DEBUG)
            .then(|| Self { model: request.model.clone(), tenant: request.tenant.clone() })
    }

    /// Logs what was asked for, now or when it is decided.
    pub(super) fn of(self, asked: Asked) -> Asked {
        match asked {
            Asked::Now(decision) => {
                self.log(&decision);
                Asked::Now(decision)
            }
            Asked::Later(later) => Asked::Later(Box::pin(async move {
                let decision = later.await?;
                self.log(&decision);
                Ok(decision)
            })),
        }
    }

    fn log(&self, decision: &Decision) {
        let (model, tenant) = (&*self.model, self.tenant.as_deref());
        match &decision.verdict {
            Verdict::Admit(admit) => {
                let (reservation, engine) = (admit.reservation, &*admit.engine);
                let observed = admit.observed.map(Reason::as_str);
                debug!(target: DECISIONS, %reservation, engine, model, tenant, observed, "admitted");
            }
            Verdict::Deny(deny) => {
                let (reason, engine) = (deny.reason.as_str(), deny.engine.as_deref());
                debug!(target: DECISIONS, reason, engine, model, tenant, "denied: {}", deny.message);
            }
        }
    }
}
