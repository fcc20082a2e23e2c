//! Who pays: an account for each tenant, with its limits and its bucket of tokens.
//!
//! The table has a fixed size. Tenants that the operator names have an account from the start; others get one when they
//! first come, as long as there is one that nobody uses; the rest share one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    settings::{Settings, TenantLimits},
    units::{Mono, Tokens, real},
};

/// Accounts, the shared ones included.
pub(crate) const MAX_ACCOUNTS: usize = 256;
/// An account is given to another tenant when its own has not come for so long.
const UNUSED: Duration = Duration::from_mins(1);
/// Time over which a full bucket fills, where the operator does not say how much it holds.
const FILL_TIME_SECONDS: f64 = 10.0;

/// Index of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) usize);

impl Slot {
    /// Of those who name no tenant.
    const ANONYMOUS: Self = Self(0);
    /// Of all who found no account of their own.
    const OTHERS: Self = Self(1);
}

/// One tenant's, or the one that many share.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    name: Arc<str>,
    limits: TenantLimits,
    /// Whether it is kept for a tenant for ever.
    fixed: bool,
    bucket: Bucket,
    used_at: Mono,
}

/// All accounts.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    accounts: Vec<Account>,
    by_name: BTreeMap<Arc<str>, Slot>,
}

impl Tenants {
    pub(crate) fn new(settings: &Settings) -> Self {
        let anonymous: Arc<str> = "".into();
        let limits = settings.tenants.get("").unwrap_or(&settings.tenant_default);
        let mut tenants = Self { accounts: Vec::new(), by_name: BTreeMap::new() };
        tenants.open(Arc::clone(&anonymous), limits, true);
        // The second account has no name of its own: nobody is found under it.
        tenants.accounts.push(Account::new(anonymous, &settings.tenant_default, true));
        let named = settings.tenants.iter().filter(|(name, _)| !name.is_empty());
        for (name, limits) in named.take(MAX_ACCOUNTS - 2) {
            tenants.open(name.as_str().into(), limits, true);
        }
        tenants
    }

    /// Other limits hold from now on; what is in the buckets stays. `in_use` as for [`Self::slot`].
    pub(crate) fn reconfigure(&mut self, now: Mono, settings: &Settings, in_use: impl Fn(Slot) -> bool) {
        for (slot, account) in self.accounts.iter_mut().enumerate() {
            let shared = Slot(slot) == Slot::OTHERS;
            let named = settings.tenants.get(&*account.name).filter(|_| !shared);
            account.limits = named.unwrap_or(&settings.tenant_default).clone();
            account.fixed = shared || Slot(slot) == Slot::ANONYMOUS || named.is_some();
        }
        for name in settings.tenants.keys().filter(|name| !name.is_empty()).take(MAX_ACCOUNTS - 2) {
            let slot = self.slot(now, name, settings, &in_use);
            if let Some(account) = self.accounts.get_mut(slot.0) {
                account.fixed = true;
            }
        }
    }

    fn open(&mut self, name: Arc<str>, limits: &TenantLimits, fixed: bool) {
        self.by_name.insert(Arc::clone(&name), Slot(self.accounts.len()));
        self.accounts.push(Account::new(name, limits, fixed));
    }

    /// The account of tenant `name`, opened where it has none and there is room. `in_use` tells whether reservations or
    /// waiting requests rest on an account.
    pub(crate) fn slot(
        &mut self,
        now: Mono,
        name: &str,
        settings: &Settings,
        in_use: impl Fn(Slot) -> bool,
    ) -> Slot {
        if name.is_empty() {
            return Slot::ANONYMOUS;
        }
        let known = self.by_name.get(name).copied();
        let slot = known.unwrap_or_else(|| self.admit(now, name, settings, in_use));
        if let Some(account) = self.accounts.get_mut(slot.0) {
            account.used_at = now;
        }
        slot
    }

    /// The account that tenant `name` has, or shares.
    pub(crate) fn find(&self, name: &str) -> Slot {
        self.by_name.get(name).copied().unwrap_or(Slot::OTHERS)
    }

    fn admit(&mut self, now: Mono, name: &str, settings: &Settings, in_use: impl Fn(Slot) -> bool) -> Slot {
        // Named ones have theirs already, unless they were named while all accounts were in use.
        let limits = settings.tenants.get(name).unwrap_or(&settings.tenant_default);
        if self.accounts.len() < MAX_ACCOUNTS {
            self.open(name.into(), limits, false);
            return Slot(self.accounts.len() - 1);
        }
        let mut slots = self.accounts.iter().enumerate();
        let free = slots.find(|(slot, account)| account.forgettable(now) && !in_use(Slot(*slot)));
        let Some(slot) = free.map(|(slot, _)| slot) else { return Slot::OTHERS };
        if let Some(account) = self.accounts.get_mut(slot) {
            self.by_name.remove(&account.name);
            *account = Account::new(name.into(), limits, false);
            self.by_name.insert(Arc::clone(&account.name), Slot(slot));
        }
        Slot(slot)
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Account> {
        self.accounts.get(slot.0)
    }

    /// A request of so many tokens was admitted.
    pub(crate) fn charge(&mut self, now: Mono, slot: Slot, tokens: Tokens) {
        let Some(account) = self.accounts.get_mut(slot.0) else { return };
        if let Some(flow) = account.limits.flow() {
            account.bucket.take(now, real(tokens.0), flow);
        }
    }

    /// So many of the tokens charged were not used.
    pub(crate) fn refund(&mut self, now: Mono, slot: Slot, tokens: Tokens) {
        let Some(account) = self.accounts.get_mut(slot.0) else { return };
        if let Some(flow) = account.limits.flow() {
            account.bucket.take(now, -real(tokens.0), flow);
        }
    }
}

impl Account {
    fn new(name: Arc<str>, limits: &TenantLimits, fixed: bool) -> Self {
        Self { name, limits: limits.clone(), fixed, bucket: Bucket::default(), used_at: Mono::default() }
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn forgettable(&self, now: Mono) -> bool {
        !self.fixed && now.since(self.used_at) > UNUSED && self.short_of(now, Tokens(u64::MAX)).is_none()
    }

    pub(crate) const fn limits(&self) -> &TenantLimits {
        &self.limits
    }

    /// How long until the bucket has `tokens`; `None`: it has them. What exceeds the whole bucket passes when it is full,
    /// and leaves it in debt.
    pub(crate) fn short_of(&self, now: Mono, tokens: Tokens) -> Option<Duration> {
        let flow = self.limits.flow()?;
        let missing = real(tokens.0).min(flow.burst) - self.bucket.level(now, flow);
        if missing <= 0.0 {
            return None;
        }
        Some(Duration::try_from_secs_f64(missing / flow.rate).unwrap_or(Duration::MAX))
    }
}

/// How a bucket fills.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Tokens per second, more than 0.
    rate: f64,
    /// Most it holds.
    burst: f64,
}

impl TenantLimits {
    fn flow(&self) -> Option<Flow> {
        let rate = self.tokens_per_second.filter(|rate| *rate > 0.0)?;
        let burst = self.burst.map_or(rate * FILL_TIME_SECONDS, |burst| real(burst.0));
        Some(Flow { rate, burst: burst.max(1.0) })
    }
}

/// A bucket of tokens, as what is missing from it.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Tokens missing at `at`: more than it holds is a debt.
    missing: f64,
    at: Mono,
}

impl Bucket {
    fn level(&self, now: Mono, flow: Flow) -> f64 {
        flow.burst - (self.missing - now.since(self.at).as_secs_f64() * flow.rate).max(0.0)
    }

    fn take(&mut self, now: Mono, tokens: f64, flow: Flow) {
        let missing = flow.burst - self.level(now, flow);
        (self.missing, self.at) = ((missing + tokens).max(0.0), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn limited(rate: f64, burst: u64) -> Settings {
        let limits = TenantLimits {
            tokens_per_second: Some(rate),
            burst: Some(Tokens(burst)),
            ..TenantLimits::default()
        };
        Settings { tenant_default: limits, ..Settings::default() }
    }

    fn wait(tenants: &Tenants, now: f64, slot: Slot, tokens: u64) -> Option<f64> {
        tenants.get(slot).unwrap().short_of(at(now), Tokens(tokens)).map(|wait| wait.as_secs_f64())
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let settings = limited(100.0, 500);
        let mut tenants = Tenants::new(&settings);
        let slot = tenants.slot(at(0.0), "a", &settings, |_| false);
        assert_eq!(wait(&tenants, 0.0, slot, 500), None);
        tenants.charge(at(0.0), slot, Tokens(500));
        assert_eq!(wait(&tenants, 0.0, slot, 200), Some(2.0));
        assert_eq!(wait(&tenants, 1.0, slot, 200), Some(1.0));
        assert_eq!(wait(&tenants, 2.0, slot, 200), None);
    }

    #[test]
    fn a_request_beyond_the_bucket_passes_when_it_is_full_and_leaves_a_debt() {
        let settings = limited(100.0, 500);
        let mut tenants = Tenants::new(&settings);
        let slot = tenants.slot(at(0.0), "a", &settings, |_| false);
        assert_eq!(wait(&tenants, 0.0, slot, 2000), None);
        tenants.charge(at(0.0), slot, Tokens(2000));
        // 1,500 of debt and the one token wanted, at 100 a second.
        assert_eq!(wait(&tenants, 0.0, slot, 1), Some(15.01));
        tenants.refund(at(0.0), slot, Tokens(1800));
        assert_eq!(wait(&tenants, 0.0, slot, 300), None);
    }

    #[test]
    fn without_a_rate_nothing_is_ever_short() {
        let settings = Settings::default();
        let mut tenants = Tenants::new(&settings);
        let slot = tenants.slot(at(0.0), "", &settings, |_| false);
        tenants.charge(at(0.0), slot, Tokens(u64::MAX));
        assert_eq!(wait(&tenants, 0.0, slot, u64::MAX), None);
    }

    #[test]
    fn accounts_are_bounded_and_the_rest_share_one() {
        let settings = Settings::default();
        let mut tenants = Tenants::new(&settings);
        let open = |tenants: &mut Tenants, now: f64, number: usize| {
            tenants.slot(at(now), &format!("t{number}"), &settings, |slot| slot.0 == 3)
        };
        for number in 0..MAX_ACCOUNTS - 2 {
            assert_eq!(open(&mut tenants, 0.0, number), Slot(number + 2));
        }
        assert_eq!(open(&mut tenants, 1.0, 1000), Slot::OTHERS);
        assert_eq!(open(&mut tenants, 1.0, 1001), Slot::OTHERS);
        assert_eq!(open(&mut tenants, 60.5, 0), Slot(2), "it comes again");
        // The first is used, the second holds something: the third makes room.
        assert_eq!(open(&mut tenants, 61.0, 1002), Slot(4));
        assert_eq!(open(&mut tenants, 61.0, 1002), Slot(4));
        assert_eq!((tenants.accounts.len(), tenants.by_name.len()), (MAX_ACCOUNTS, MAX_ACCOUNTS - 1));
    }

    #[test]
    fn new_limits_hold_at_once_and_what_was_taken_stays_taken() {
        let settings = limited(100.0, 500);
        let mut tenants = Tenants::new(&settings);
        let slot = tenants.slot(at(0.0), "a", &settings, |_| false);
        tenants.charge(at(0.0), slot, Tokens(500));
        let mut slower = limited(50.0, 500);
        slower.tenants.insert("b".into(), TenantLimits { blocked: true, ..TenantLimits::default() });
        tenants.reconfigure(at(0.0), &slower, |_| false);
        // The 200 tokens come in at 50 a second now.
        assert_eq!(wait(&tenants, 0.0, slot, 200), Some(4.0));
        assert!(tenants.get(tenants.find("b")).unwrap().limits().blocked);
        tenants.reconfigure(at(0.0), &settings, |_| false);
        assert!(!tenants.get(tenants.find("b")).unwrap().limits().blocked);
        assert_eq!(wait(&tenants, 0.0, slot, 200), Some(2.0));
    }

    #[test]
    fn tenants_named_by_the_operator_keep_their_accounts() {
        let mut settings = Settings::default();
        let blocked = TenantLimits { blocked: true, ..TenantLimits::default() };
        settings.tenants.insert("mallory".into(), blocked);
        let mut tenants = Tenants::new(&settings);
        for number in 0..512_u32 {
            tenants.slot(at(f64::from(number) * 100.0), &number.to_string(), &settings, |_| false);
        }
        let slot = tenants.slot(at(1e6), "mallory", &settings, |_| false);
        assert!(tenants.get(slot).unwrap().limits().blocked);
    }
}
