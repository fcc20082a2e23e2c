//! Request ids: the same id and content gives the same reservation.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{
    promise::RequestName,
    prompts::Prompts,
    request::{Request, ReservationId},
};

/// Request ids remembered; the oldest are forgotten first.
const KEPT: usize = 8192;

/// How far back the request id of a new reservation is looked for: those who waited are answered together.
const NEWEST: usize = 64;

/// A request id belongs to (peer uid, tenant).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    peer_uid: u32,
    /// Tenant and request id with their border marked by the tenant's length.
    tenant_bytes: usize,
    name: Box<str>,
}

impl Key {
    fn new(peer_uid: u32, tenant: &str, request_id: &str) -> Self {
        Self { peer_uid, tenant_bytes: tenant.len(), name: format!("{tenant}{request_id}").into() }
    }
}

/// What was promised to a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) reservation: ReservationId,
    pub(crate) content: u64,
}

/// Request ids and their reservations.
#[derive(Debug, Default)]
pub(crate) struct RequestIds {
    known: BTreeMap<Key, Known>,
    order: VecDeque<(Key, ReservationId)>,
}

impl RequestIds {
    pub(crate) fn get(&self, peer_uid: u32, tenant: &str, request_id: &str) -> Option<Known> {
        self.known.get(&Key::new(peer_uid, tenant, request_id)).copied()
    }

    /// The request id that `reservation` was just given to.
    pub(crate) fn newest(&self, reservation: ReservationId) -> Option<RequestName> {
        let (key, _) = self.order.iter().rev().take(NEWEST).find(|(_, known)| *known == reservation)?;
        let (peer_uid, id) = (key.peer_uid, key.name.get(key.tenant_bytes..)?.into());
        Some(RequestName { peer_uid, id, content: self.known.get(key)?.content })
    }

    /// What an earlier daemon had noted.
    pub(crate) fn note_known(&mut self, name: &RequestName, tenant: &str, reservation: ReservationId) {
        self.keep(Key::new(name.peer_uid, tenant, &name.id), Known { reservation, content: name.content });
    }

    pub(crate) fn note(&mut self, request: &Request<'_>, request_id: &str, reservation: ReservationId) {
        let key = Key::new(request.peer_uid, request.tenant, request_id);
        self.keep(key, Known { reservation, content: content(request) });
    }

    fn keep(&mut self, key: Key, known: Known) {
        if self.order.len() >= KEPT
            && let Some((oldest, reservation)) = self.order.pop_front()
            && self.known.get(&oldest).is_some_and(|known| known.reservation == reservation)
        {
            self.known.remove(&oldest);
        }
        self.order.push_back((key.clone(), known.reservation));
        self.known.insert(key, known);
    }
}

/// Fingerprint of a request's id, where it has one.
pub(crate) fn fingerprint(request: &Request<'_>) -> Option<u64> {
    let request_id = request.request_id?;
    let mut hasher = DefaultHasher::new();
    (request.peer_uid, request.tenant, request_id).hash(&mut hasher);
    Some(hasher.finish())
}

/// Fingerprint of a name.
pub(crate) fn fingerprint_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Fingerprint of who asks and of all that a decision depends on: two requests that have it in common are as good as one.
/// But for the time in which the first token is wanted: of one that waits, less of it is left each time.
pub(crate) fn question(request: &Request<'_>) -> u64 {
    let timeless = Request { ttft_objective: None, ..*request };
    let mut hasher = DefaultHasher::new();
    (request.peer_uid, request.tenant, content(&timeless)).hash(&mut hasher);
    hasher.finish()
}

/// Fingerprint of all that a decision depends on.
pub(crate) fn content(request: &Request<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Request { model, engine, max_tokens, n, has_stop, class, session_key, .. } = request;
    (model, engine, max_tokens, n, has_stop, class, session_key).hash(&mut hasher);
    (request.ttft_objective, request.pace_objective, request.forwards_rank).hash(&mut hasher);
    match request.prompt {
        crate::request::Prompt::Tokens(tokens) => (0, tokens.0).hash(&mut hasher),
        crate::request::Prompt::Several(Prompts { count, total, longest }) => {
            (3, count, total.0, longest.0).hash(&mut hasher);
        }
        crate::request::Prompt::Bytes(bytes) => (1, bytes).hash(&mut hasher),
        // The same text, however it was counted this time.
        crate::request::Prompt::Text(text) | crate::request::Prompt::Counted { text, .. } => {
            (2, text).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[test]
    fn ids_of_different_tenants_and_peers_never_meet() {
        let mut ids = RequestIds::default();
        let mut asked = request(1);
        (asked.tenant, asked.peer_uid) = ("ab", 7);
        ids.note(&asked, "c", ReservationId(1));
        assert!(ids.get(7, "ab", "c").is_some());
        assert!(ids.get(7, "a", "bc").is_none());
        assert!(ids.get(8, "ab", "c").is_none());
    }

    #[test]
    fn the_oldest_ids_are_forgotten_beyond_the_bound() {
        let mut ids = RequestIds::default();
        for number in 0..=KEPT {
            ids.note(&request(1), &number.to_string(), ReservationId(number as u64));
        }
        assert!(ids.get(0, "", "0").is_none());
        assert!(ids.get(0, "", "1").is_some());
        assert_eq!(ids.known.len(), KEPT);
    }

    #[test]
    fn other_content_has_another_fingerprint() {
        let mut other = request(10);
        other.max_tokens = Some(crate::units::Tokens(5));
        assert_ne!(content(&request(10)), content(&request(11)));
        assert_ne!(content(&request(10)), content(&other));
        assert_eq!(content(&request(10)), content(&request(10)));
    }
}
