//! A histogram of times that is counted into without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::native::{Native, Sparse};

/// Upper bounds of the buckets in nanoseconds, ascending; one more bucket holds what is above.
type Bounds<const N: usize> = [u64; N];

/// The histogram.
#[derive(Debug)]
pub(super) struct Histogram<const N: usize> {
    bounds: Bounds<N>,
    buckets: [AtomicU64; N],
    above: AtomicU64,
    sum_ns: AtomicU64,
    native: Native,
}

/// What a histogram held at one time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    /// Sum, seconds.
    pub(super) sum: f64,
    /// How many.
    pub(super) count: u64,
    /// Upper bound in seconds, and how many in this bucket; the last is +Inf.
    pub(super) buckets: Vec<(f64, u64)>,
    /// The same, finer.
    pub(super) native: Sparse,
}

impl<const N: usize> Histogram<N> {
    pub(super) fn new(bounds: Bounds<N>) -> Self {
        let (buckets, above, sum_ns) =
            ([const { AtomicU64::new(0) }; N], AtomicU64::new(0), AtomicU64::new(0));
        Self { bounds, buckets, above, sum_ns, native: Native::default() }
    }

    pub(super) fn observe(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let index = self.bounds.partition_point(|bound| *bound < nanos);
        self.buckets.get(index).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(nanos, Ordering::Relaxed);
        self.native.observe(nanos);
    }

    /// The count is the sum of the buckets, whatever is counted meanwhile.
    pub(super) fn counted(&self) -> Counted {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let held = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        let mut buckets: Vec<_> = self
            .bounds
            .iter()
            .zip(&self.buckets)
            .map(|(bound, bucket)| (seconds(*bound), held(bucket)))
            .collect();
        buckets.push((f64::INFINITY, held(&self.above)));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = seconds(self.sum_ns.load(Ordering::Relaxed));
        Counted { sum, count, buckets, native: self.native.counted() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new([1_000, 2_000]);
        for nanos in [0, 1_000, 1_001, 2_000, 2_001, 1_000_000] {
            histogram.observe(Duration::from_nanos(nanos));
        }
        let counted = histogram.counted();
        assert_eq!((counted.sum, counted.count), (0.001_006_002, 6));
        assert_eq!(counted.buckets, [(1e-6, 2), (2e-6, 2), (f64::INFINITY, 2)]);
        assert_eq!((counted.native.sum, counted.native.count), (counted.sum, 6));
    }
}
