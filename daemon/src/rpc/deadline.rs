//! When a call is no longer wanted: its caller has cancelled it, or its deadline has passed.

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use tonic::{Status, metadata::MetadataMap};

/// Most digits of a timeout (gRPC over HTTP2, Timeout).
const DIGITS: usize = 8;

/// When the caller stops waiting; `None`: it set no deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// No deadline.
    pub(super) const NONE: Self = Self(None);

    /// That of a call that has just come with `metadata`.
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        let timeout = metadata.get("grpc-timeout").and_then(|value| timeout(value.to_str().ok()?));
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// # Errors
    /// It has passed.
    pub(super) fn check(self) -> Result<(), Status> {
        match self.0 {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Status::deadline_exceeded("the call's deadline passed before it was decided"))
            }
            _ => Ok(()),
        }
    }
}

/// The value of `grpc-timeout`: digits and a unit. A wrong one counts as none, as in the server's own timeout.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(3600 * count)),
        "M" => Some(Duration::from_secs(60 * count)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Pauses once. The server looks for a cancellation only when a call pauses, and drops the call then. It may have read the
/// cancellation together with the call, where both lay in the socket.
pub(super) async fn drop_if_cancelled() {
    let mut paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        let read = [
            ("1H", 3600.0),
            ("2M", 120.0),
            ("99999999S", 99_999_999.0),
            ("50m", 0.05),
            ("7u", 7e-6),
            ("0n", 0.0),
        ];
        for (text, seconds) in read {
            assert_eq!(timeout(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for wrong in ["", "m", "5", "5 m", "-5m", "+5m", "5ms", "123456789S", "5é"] {
            assert_eq!(timeout(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_deadline_passes() {
        let of = |value: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", value.parse().unwrap());
            Deadline::of(&metadata)
        };
        assert_eq!(of("0m").check().unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert!(of("1H").check().is_ok());
        assert!(Deadline::of(&MetadataMap::new()).check().is_ok());
    }
}
