//! Bounds what requests take in memory, over all calls together: a message has its declared length set aside when its
//! header comes, until its last byte has come and it is decoded.
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

const HEADER_BYTES: usize = 5;

/// Bytes that may be set aside at once.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicU64,
    /// Larger messages are refused by the decoder before it takes memory for them.
    message: u64,
}

impl Budget {
    pub(super) const fn new(total: u64, message: u64) -> Self {
        Self { left: AtomicU64::new(total), message }
    }

    fn take(&self, bytes: u64) -> Result<(), Status> {
        let less = |left: u64| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(|_| ()).map_err(|_| {
            Status::resource_exhausted("requests on their way in take all of limits.buffered_bytes")
        })
    }
}

/// A request's body that takes its messages from a budget.
pub(super) struct Metered {
    body: TonicBody,
    budget: Arc<Budget>,
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Bytes of the present message that are still to come.
    missing: u64,
    /// Bytes set aside for it.
    taken: u64,
}

impl Metered {
    pub(super) fn new(body: TonicBody, budget: &Arc<Budget>) -> Self {
        let budget = Arc::clone(budget);
        Self { body, budget, header: [0; HEADER_BYTES], header_filled: 0, missing: 0, taken: 0 }
    }

    fn count(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        while !bytes.is_empty() {
            bytes =
                if self.header_filled < HEADER_BYTES { self.read_header(bytes)? } else { self.pass(bytes) };
            if self.header_filled == HEADER_BYTES && self.missing == 0 {
                self.end();
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
            if self.missing <= self.budget.message {
                self.budget.take(self.missing)?;
                self.taken = self.missing;
            }
        }
        Ok(rest.as_slice())
    }

    fn pass<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let here = usize::try_from(self.missing).unwrap_or(usize::MAX).min(bytes.len());
        self.missing = self.missing.saturating_sub(u64::try_from(here).unwrap_or(u64::MAX));
        bytes.get(here..).unwrap_or_default()
    }

    fn end(&mut self) {
        self.budget.left.fetch_add(self.taken, Ordering::Relaxed);
        (self.taken, self.header_filled) = (0, 0);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.end();
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
        Arc::new(Budget::new(100, 60))
    }

    fn metered(budget: &Arc<Budget>) -> Metered {
        Metered::new(TonicBody::empty(), budget)
    }

    fn left(budget: &Budget) -> u64 {
        budget.left.load(Ordering::Relaxed)
    }

    fn message(length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, length];
        bytes.resize(HEADER_BYTES + usize::from(length), 7);
        bytes
    }

    #[test]
    fn a_message_takes_its_length_from_its_header_to_its_last_byte() {
        let budget = budget();
        let mut body = metered(&budget);
        let bytes = message(40);
        body.count(&bytes[..4]).unwrap();
        assert_eq!(left(&budget), 100);
        body.count(&bytes[4..44]).unwrap();
        assert_eq!(left(&budget), 60);
        body.count(&bytes[44..]).unwrap();
        assert_eq!(left(&budget), 100);
    }

    #[test]
    fn messages_in_any_pieces_are_told_apart() {
        let budget = budget();
        let stream = [message(0), message(3), message(59), message(1), message(40)[..20].to_vec()].concat();
        for piece in 1..stream.len() {
            let mut body = metered(&budget);
            stream.chunks(piece).for_each(|bytes| body.count(bytes).unwrap());
            assert_eq!(left(&budget), 60, "in pieces of {piece}");
        }
        assert_eq!(left(&budget), 100, "a body that is dropped gives back");
    }

    #[test]
    fn what_all_calls_together_may_take_is_bounded() {
        let budget = budget();
        let (mut one, mut other) = (metered(&budget), metered(&budget));
        one.count(&message(60)[..10]).unwrap();
        assert_eq!(other.count(&message(60)).unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop(one);
        metered(&budget).count(&message(60)).unwrap();
    }

    #[test]
    fn a_message_that_the_decoder_refuses_takes_nothing() {
        let budget = budget();
        metered(&budget).count(&message(61)[..30]).unwrap();
        assert_eq!(left(&budget), 100);
    }
}
