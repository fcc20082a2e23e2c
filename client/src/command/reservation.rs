//! How a reservation is named on the command line.

use clap::Args;
use gpuadmit_client::v1::{RequestKey, ReservationRef, reservation_ref::Ref};

/// Names a reservation by one of its two names. Each command says whether it needs one.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Reservation {
    /// Reservation id as `admit` shows it: up to 16 hexadecimal digits.
    #[arg(value_name = "RESERVATION", value_parser = parse_id)]
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

/// Reads a reservation id.
fn parse_id(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 16 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("up to 16 hexadecimal digits are expected".to_owned());
    }
    u64::from_str_radix(digits, 16).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(parse_id("00ffffff00000001"), Ok(0xff_ffff_0000_0001));
        assert_eq!(parse_id("0x10"), Ok(16));
        for text in ["", "0x", "xyz", "+1", "12345678901234567"] {
            assert!(parse_id(text).is_err(), "{text:?}");
        }
    }
}
