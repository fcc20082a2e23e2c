//! Decisions since the start, for those who watch: by reason, by class, by tenant.

use std::sync::Arc;

use crate::request::{Class, Reason};

/// Tenants counted by name: those that the operator names, then the first that come. The rest is counted together, so
/// that names which a peer makes up have no series without end.
pub const MAX_TENANTS: usize = 64;

/// How a decision came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ruling {
    /// Admitted.
    Admitted,
    /// Admitted in observe mode where enforce would have denied.
    WouldDeny(Reason),
    /// Denied.
    Denied(Reason),
}

impl Ruling {
    pub(crate) fn of(denied: Option<Reason>, observed: Option<Reason>) -> Self {
        let admitted = observed.map_or(Self::Admitted, Self::WouldDeny);
        denied.map_or(admitted, Self::Denied)
    }

    /// Why it was denied, or would have been.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Admitted => None,
            Self::WouldDeny(reason) | Self::Denied(reason) => Some(reason),
        }
    }
}

/// Decisions since start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Admitted.
    pub admitted: u64,
    /// Denied.
    pub denied: u64,
    /// Admitted in observe mode where enforce would have denied.
    pub would_have_denied: u64,
    /// Denied or would have been, by reason; only those that occurred.
    pub by_reason: Vec<(Reason, u64)>,
    /// By class and ruling; only those that occurred.
    pub by_class: Vec<((Class, Ruling), u64)>,
    /// By tenant, by name; at most [`MAX_TENANTS`].
    pub by_tenant: Vec<(Arc<str>, Answered)>,
    /// All other tenants.
    pub other_tenants: Answered,
}

/// What became of asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Admitted.
    pub admitted: u64,
    /// Denied.
    pub denied: u64,
}

impl Answered {
    fn take(&mut self, denied: bool) {
        increment(if denied { &mut self.denied } else { &mut self.admitted });
    }
}

impl DecisionCounts {
    /// Counts from nothing; each of `tenants` has a place of its own, as far as there are places.
    pub(crate) fn of_tenants<'a>(tenants: impl Iterator<Item = &'a str>) -> Self {
        let mut by_tenant: Vec<_> =
            tenants.take(MAX_TENANTS).map(|name| (name.into(), Answered::default())).collect();
        by_tenant.sort_by(|(one, _): &(Arc<str>, _), (other, _)| one.cmp(other));
        Self { by_tenant, ..Self::default() }
    }

    pub(crate) fn take(&mut self, class: Class, tenant: &str, ruling: Ruling) {
        let denied = matches!(ruling, Ruling::Denied(_));
        increment(if denied { &mut self.denied } else { &mut self.admitted });
        if matches!(ruling, Ruling::WouldDeny(_)) {
            increment(&mut self.would_have_denied);
        }
        if let Some(reason) = ruling.reason() {
            count(&mut self.by_reason, reason);
        }
        count(&mut self.by_class, (class, ruling));
        self.tenant(tenant).take(denied);
    }

    fn tenant(&mut self, name: &str) -> &mut Answered {
        let found = self.by_tenant.binary_search_by(|(known, _)| (**known).cmp(name));
        if let Err(index) = found
            && self.by_tenant.len() < MAX_TENANTS
        {
            self.by_tenant.insert(index, (name.into(), Answered::default()));
        }
        let (Ok(index) | Err(index)) = found;
        match self.by_tenant.get_mut(index).filter(|(known, _)| &**known == name) {
            Some((_, answered)) => answered,
            None => &mut self.other_tenants,
        }
    }
}

fn count<Key: Ord + Copy>(counts: &mut Vec<(Key, u64)>, key: Key) {
    match counts.binary_search_by_key(&key, |(key, _)| *key) {
        Ok(index) => {
            if let Some((_, count)) = counts.get_mut(index) {
                increment(count);
            }
        }
        Err(index) => counts.insert(index, (key, 1)),
    }
}

const fn increment(count: &mut u64) {
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decision_counts_once_in_each_split() {
        let mut counts = DecisionCounts::default();
        counts.take(Class::Batch, "a", Ruling::of(None, None));
        counts.take(Class::Batch, "a", Ruling::of(None, Some(Reason::KvFull)));
        counts.take(Class::Standard, "b", Ruling::of(Some(Reason::KvFull), None));
        counts.take(Class::Standard, "b", Ruling::of(Some(Reason::KvFull), None));
        counts.take(Class::Interactive, "", Ruling::of(Some(Reason::Ttft), None));
        assert_eq!((counts.admitted, counts.denied, counts.would_have_denied), (2, 3, 1));
        assert_eq!(counts.by_reason, [(Reason::KvFull, 3), (Reason::Ttft, 1)]);
        let by_class = [
            ((Class::Interactive, Ruling::Denied(Reason::Ttft)), 1),
            ((Class::Standard, Ruling::Denied(Reason::KvFull)), 2),
            ((Class::Batch, Ruling::Admitted), 1),
            ((Class::Batch, Ruling::WouldDeny(Reason::KvFull)), 1),
        ];
        assert_eq!(counts.by_class, by_class);
        let tenants: Vec<_> =
            counts.by_tenant.iter().map(|(name, all)| (&**name, all.admitted, all.denied)).collect();
        assert_eq!(tenants, [("", 0, 1), ("a", 2, 0), ("b", 0, 2)]);
    }

    #[test]
    fn tenants_beyond_the_bound_are_counted_together() {
        let mut counts = DecisionCounts::of_tenants(["paying", "also"].into_iter());
        for number in 0..1000 {
            counts.take(Class::Standard, &format!("made-up-{number}"), Ruling::Admitted);
        }
        counts.take(Class::Standard, "paying", Ruling::Denied(Reason::KvFull));
        counts.take(Class::Standard, "made-up-0", Ruling::Admitted);
        assert_eq!(counts.by_tenant.len(), MAX_TENANTS);
        assert_eq!(counts.other_tenants, Answered { admitted: 1000 - 62, denied: 0 });
        let of = |name: &str| counts.by_tenant.iter().find(|(known, _)| &**known == name).unwrap().1;
        assert_eq!(of("paying"), Answered { admitted: 0, denied: 1 });
        assert_eq!(of("made-up-0"), Answered { admitted: 2, denied: 0 });
    }
}
