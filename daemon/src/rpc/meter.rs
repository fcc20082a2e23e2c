//! Bounds the memory that requests take while they come in. What all connections may take together is counted by the bytes
//! that have come, so that nobody holds room for bytes that never come; what one connection may take, by the lengths that it
//! declared, so that it holds up only its own calls. Both are given back when the message was read: when the next one of its
//! call begins, or when its call and all that [`Held`] is kept by have gone.
//!
//! A gRPC message is a flag, its length (four bytes, big-endian), and that many bytes
//! (PROTOCOL-HTTP2.md, Length-Prefixed-Message).

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use hyper::body::{Body, Frame, SizeHint};
use tonic::{Status, body::Body as TonicBody};

use crate::config::Limits;

const HEADER_BYTES: usize = 5;

/// Bytes taken at once.
#[derive(Debug, Default)]
pub(super) struct Taken(AtomicU64);

impl Taken {
    /// Takes `bytes` more, where they are at most `most` then.
    fn take(&self, bytes: u64, most: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What requests may take, and what those of all connections take.
#[derive(Debug)]
pub(super) struct Budget {
    taken: Taken,
    total: u64,
    message: u64,
}

impl Budget {
    /// As `limits` say.
    pub(super) fn new(limits: &Limits) -> Self {
        let (total, message) = (limits.buffered_bytes, limits.message_bytes.into());
        Self { taken: Taken::default(), total, message }
    }

    /// For a call on the connection that takes `connection`.
    pub(super) fn held(self: &Arc<Self>, connection: &Arc<Taken>) -> Arc<Held> {
        let (budget, connection) = (Arc::clone(self), Arc::clone(connection));
        Arc::new(Held { budget, connection, came: AtomicU64::new(0), declared: AtomicU64::new(0) })
    }

    /// Most that one connection may take: half of all, so that others can call beside it, and at least one message.
    fn of_connection(&self) -> u64 {
        (self.total / 2).max(self.message)
    }
}

/// What the present message of a call takes; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: Arc<Budget>,
    /// What all calls of its connection take.
    connection: Arc<Taken>,
    /// Its length, taken from the connection's share.
    declared: AtomicU64,
    /// Bytes of it that have come, taken from the budget.
    came: AtomicU64,
}

impl Held {
    fn begin(&self, length: u64) -> Result<(), Status> {
        self.give_back();
        let most = self.budget.message;
        if length > most {
            return Err(Status::resource_exhausted(format!(
                "message: {length} bytes are not allowed; at most {most} (limits.message_bytes): send prompt_tokens or \
                 prompt_bytes in place of the text"
            )));
        }
        let most = self.budget.of_connection();
        if !self.connection.take(length, most) {
            return Err(Status::resource_exhausted(format!(
                "message: {length} bytes are too many beside the connection's other calls on their way in; together at \
                 most {most} (half of limits.buffered_bytes): call again"
            )));
        }
        self.declared.store(length, Ordering::Relaxed);
        Ok(())
    }

    fn come(&self, bytes: u64) -> Result<(), Status> {
        let total = self.budget.total;
        if !self.budget.taken.take(bytes, total) {
            return Err(Status::resource_exhausted(format!(
                "requests on their way in take all of limits.buffered_bytes ({total}): call again"
            )));
        }
        self.came.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self) {
        self.budget.taken.give_back(self.came.swap(0, Ordering::Relaxed));
        self.connection.give_back(self.declared.swap(0, Ordering::Relaxed));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A request's body that takes its messages from a budget.
pub(super) struct Metered {
    body: TonicBody,
    held: Arc<Held>,
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Bytes of the present message that are still to come.
    missing: u64,
}

impl Metered {
    pub(super) const fn new(body: TonicBody, held: Arc<Held>) -> Self {
        Self { body, held, header: [0; HEADER_BYTES], header_filled: 0, missing: 0 }
    }

    fn count(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            bytes =
                if self.header_filled < HEADER_BYTES { self.read_header(bytes)? } else { self.pass(bytes)? };
            if self.header_filled == HEADER_BYTES && self.missing == 0 {
                self.header_filled = 0;
            }
        }
        Ok(())
    }

    fn read_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Status> {
        let mut rest = bytes.iter();
        for (place, byte) in self.header.iter_mut().skip(self.header_filled).zip(rest.by_ref()) {
            *place = *byte;
            self.header_filled += 1;
        }
        if self.header_filled == HEADER_BYTES {
            let [_flag, length @ ..] = self.header;
            self.missing = u32::from_be_bytes(length).into();
            self.held.begin(self.missing)?;
        }
        Ok(rest.as_slice())
    }

    fn pass<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Status> {
        let here = usize::try_from(self.missing).unwrap_or(usize::MAX).min(bytes.len());
        let came = u64::try_from(here).unwrap_or(u64::MAX);
        self.held.come(came)?;
        self.missing = self.missing.saturating_sub(came);
        Ok(bytes.get(here..).unwrap_or_default())
    }
}

impl Body for Metered {
    type Data = <TonicBody as Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let over = match &frame {
            Some(Ok(frame)) => frame.data_ref().and_then(|data| self.count(data).err()),
            _ => None,
        };
        Poll::Ready(over.map_or(frame, |status| Some(Err(status))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<Budget> {
        Arc::new(Budget { taken: Taken::default(), total: 100, message: 60 })
    }

    fn metered(budget: &Arc<Budget>) -> Metered {
        Metered::new(TonicBody::empty(), budget.held(&Arc::default()))
    }

    fn taken(taken: &Taken) -> u64 {
        taken.0.load(Ordering::Relaxed)
    }

    fn message(length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, length];
        bytes.resize(HEADER_BYTES + usize::from(length), 7);
        bytes
    }

    #[test]
    fn a_message_takes_what_has_come_of_it_and_its_connection_what_it_declared() {
        let (budget, connection) = (budget(), Arc::default());
        let held = budget.held(&connection);
        let mut body = Metered::new(TonicBody::empty(), Arc::clone(&held));
        let bytes = message(40);
        let both = || (taken(&budget.taken), taken(&connection));
        body.count(&bytes[..4]).unwrap();
        assert_eq!(both(), (0, 0));
        body.count(&bytes[4..15]).unwrap();
        assert_eq!(both(), (10, 40));
        body.count(&bytes[15..]).unwrap();
        assert_eq!(both(), (40, 40), "it is not read yet");
        body.count(&message(3)).unwrap();
        assert_eq!(both(), (3, 3));
        drop(body);
        assert_eq!(both(), (3, 3), "its call goes on");
        drop(held);
        assert_eq!(both(), (0, 0));
    }

    #[test]
    fn messages_in_any_pieces_are_told_apart() {
        let budget = budget();
        let stream = [message(0), message(3), message(59), message(1), message(40)[..20].to_vec()].concat();
        for piece in 1..stream.len() {
            let mut body = metered(&budget);
            stream.chunks(piece).for_each(|bytes| body.count(bytes).unwrap());
            assert_eq!(taken(&budget.taken), 15, "in pieces of {piece}");
        }
        assert_eq!(taken(&budget.taken), 0, "a body that is dropped gives back");
    }

    #[test]
    fn what_has_come_of_all_calls_is_bounded_and_what_was_only_declared_takes_nothing() {
        let budget = budget();
        let declared = || {
            let mut body = metered(&budget);
            body.count(&message(60)[..HEADER_BYTES]).unwrap();
            body
        };
        let liars: Vec<_> = (0..9).map(|_| declared()).collect();
        let (mut one, mut other) = (metered(&budget), metered(&budget));
        one.count(&message(60)[..60]).unwrap();
        assert_eq!(other.count(&message(60)).unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop((one, other));
        metered(&budget).count(&message(60)).unwrap();
        drop(liars);
        assert_eq!(taken(&budget.taken), 0);
    }

    #[test]
    fn a_connection_declares_at_most_its_share() {
        let (budget, connection) = (budget(), Arc::default());
        let open = || Metered::new(TonicBody::empty(), budget.held(&connection));
        let (mut one, mut other) = (open(), open());
        one.count(&message(40)[..HEADER_BYTES]).unwrap();
        let refused = other.count(&message(21)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("limits.buffered_bytes"), "{refused}");
        drop(one);
        open().count(&message(60)).unwrap();
        assert_eq!(taken(&connection), 0);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_the_name_of_the_limit_and_takes_nothing() {
        let budget = budget();
        let refused = metered(&budget).count(&message(61)[..30]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let named = "message: 61 bytes are not allowed; at most 60 (limits.message_bytes)";
        assert!(refused.message().starts_with(named), "{refused}");
        assert_eq!(taken(&budget.taken), 0);
    }
}
