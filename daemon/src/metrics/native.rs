//! A native histogram: buckets so fine that a quantile is right within a tenth, sent as runs of those in use.
//!
//! Bucket `i` of schema 2 holds what is more than 2^((i−1)/4) seconds and at most 2^(i/4):
//! <https://prometheus.io/docs/specs/native_histograms/>.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use prometheus_client::encoding::{NativeHistogram, NativeHistogramBuckets};

const SCHEMA: i32 = 2;
/// Up to this time, 2^(−79/4) seconds or 1.1 µs, all count as zero.
const ZERO_INDEX: i32 = -79;
/// Buckets above it: up to 2^(41/4) seconds, 20 minutes. Nothing takes longer; what does counts in the last.
const BUCKETS: usize = 120;

/// The histogram.
#[derive(Debug)]
pub(super) struct Native {
    /// Upper bounds in nanoseconds.
    bounds: [u64; BUCKETS],
    /// Most that counts as zero.
    zero_ns: u64,
    zero: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// What it held at one time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sparse {
    /// Sum, seconds.
    pub(super) sum: f64,
    /// How many.
    pub(super) count: u64,
    zero: u64,
    /// One run: index of its first bucket, and how many.
    spans: Vec<(i32, u32)>,
    /// Each bucket of the run less the one before.
    deltas: Vec<i64>,
}

/// Index of the bucket at `place`.
fn index(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX).saturating_add(ZERO_INDEX + 1)
}

/// Upper bound of a bucket, seconds.
fn bound(index: i32) -> f64 {
    (f64::from(index) / 4.0).exp2()
}

impl Default for Native {
    fn default() -> Self {
        let nanos = |index| {
            let bound = Duration::try_from_secs_f64(bound(index)).unwrap_or(Duration::MAX);
            u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)
        };
        let bounds = array::from_fn(|place| nanos(index(place)));
        let buckets = array::from_fn(|_| AtomicU64::new(0));
        Self {
            bounds,
            zero_ns: nanos(ZERO_INDEX),
            zero: AtomicU64::new(0),
            buckets,
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Native {
    pub(super) fn observe(&self, nanos: u64) {
        let bucket = if nanos <= self.zero_ns {
            &self.zero
        } else {
            let place = self.bounds.partition_point(|bound| *bound < nanos).min(BUCKETS - 1);
            self.buckets.get(place).unwrap_or(&self.zero)
        };
        bucket.fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The count is the sum of the buckets, whatever is counted meanwhile.
    pub(super) fn counted(&self) -> Sparse {
        let held = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        let (zero, buckets) = (held(&self.zero), self.buckets.each_ref().map(held));
        let first = buckets.iter().position(|count| *count > 0).unwrap_or(BUCKETS);
        let last = buckets.iter().rposition(|count| *count > 0).unwrap_or(0);
        let run = buckets.get(first..=last).unwrap_or_default();
        let spans = u32::try_from(run.len()).ok().filter(|length| *length > 0);
        let mut before = 0;
        let deltas = run.iter().map(|count| {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            count.saturating_sub(std::mem::replace(&mut before, count))
        });
        Sparse {
            sum: Duration::from_nanos(held(&self.sum_ns)).as_secs_f64(),
            count: buckets.iter().fold(zero, |sum, count| sum.saturating_add(*count)),
            zero,
            deltas: deltas.collect(),
            spans: spans.map(|length| (index(first), length)).into_iter().collect(),
        }
    }
}

impl Sparse {
    pub(super) fn to_encode(&self) -> NativeHistogram<'_> {
        NativeHistogram {
            schema: SCHEMA,
            zero_threshold: bound(ZERO_INDEX),
            zero_count: self.zero,
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &self.spans, deltas: &self.deltas },
            created: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_bucket_of_its_power() {
        let native = Native::default();
        // 0: zero. 1 s = 2^0: bucket 0. 1.1 s: bucket 1, up to 2^(1/4) = 1.189 s. 2 s: bucket 4. 1.5 s: up to 2^(3/4).
        for seconds in [0.0, 1.0, 1.1, 1.1, 1.5, 2.0] {
            native.observe(u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap());
        }
        let counted = native.counted();
        assert_eq!((counted.count, counted.zero), (6, 1));
        assert!((counted.sum - 6.7).abs() < 1e-9);
        assert_eq!(counted.spans, [(0, 5)]);
        // 1, 2, 0, 1, 1.
        assert_eq!(counted.deltas, [1, 1, -2, 1, 0]);
    }

    #[test]
    fn the_shortest_and_the_longest_times_are_counted() {
        let native = Native::default();
        assert_eq!(native.counted().spans, []);
        native.observe(1_000);
        native.observe(2_000);
        native.observe(u64::MAX / 2);
        let counted = native.counted();
        assert_eq!((counted.count, counted.zero), (3, 1));
        // log2(2e-6) × 4 = −75.7.
        assert_eq!(counted.spans, [(-75, 117)]);
    }
}
