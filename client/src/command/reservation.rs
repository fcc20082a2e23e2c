//! How a reservation is named on the command line.

use clap::Args;
use gpuadmit_client::v1::{RequestKey, ReservationRef, reservation_ref::Ref};

use super::id;

/// Names a reservation by one of its two names. Each command says whether it needs one.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Reservation {
    /// Reservation id as `admit` shows it: decimal, or hexadecimal behind 0x.
    #[arg(value_name = "RESERVATION", value_parser = id::parse)]
    id: Option<u64>,
    /// Instead: the request id that was given to `admit`.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Tenant that was given with that request id.
    #[arg(long, requires = "request_id")]
    tenant: Option<String>,
}

impl Reservation {
    /// As the API names it.
    pub(crate) fn into_ref(self) -> Option<ReservationRef> {
        let by_id = self.id.map(Ref::ReservationId);
        let tenant = self.tenant;
        let by_request = self.request_id.map(|request_id| Ref::Request(RequestKey { tenant, request_id }));
        by_id.or(by_request).map(|r#ref| ReservationRef { r#ref: Some(r#ref) })
    }
}
