//! One page while it is written: families of samples. Every family is named, also one without a sample.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
    },
    metrics::{MetricType, exemplar::Exemplar},
};

use super::histogram::Counted;

/// No exemplar.
const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;
/// The labels of what there is one of.
pub(super) const ALONE: [(&str, &str); 0] = [];

/// The page.
pub(super) struct Sheet<'a> {
    encoder: DescriptorEncoder<'a>,
    native: bool,
}

impl<'a> Sheet<'a> {
    /// `native`: histograms are native ones, too.
    pub(super) const fn new(encoder: DescriptorEncoder<'a>, native: bool) -> Self {
        Self { encoder, native }
    }

    /// Values that go up and down. `None` is unknown, and has no sample.
    pub(super) fn gauge<Labels: EncodeLabelSet, Value: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Option<Value>)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, samples, gauge)
    }

    /// Values that only grow while the daemon runs. `name` is without its `_total`.
    pub(super) fn counter<Labels: EncodeLabelSet, Value: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Option<Value>)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, samples, |encoder, value| {
            encoder.encode_counter(value, NO_EXEMPLAR)
        })
    }

    /// A distribution.
    pub(super) fn histogram(&mut self, name: &str, help: &str, counted: &Counted) -> fmt::Result {
        let (samples, native) = ([(ALONE, Some(counted))], self.native);
        self.family(name, help, MetricType::Histogram, samples, |encoder, counted| {
            let Counted { sum, count, buckets, native: finer } = counted;
            if !native {
                return encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None);
            }
            let (sum, count, finer) = (finer.sum, finer.count, finer.to_encode());
            encoder.encode_histogram_with_native::<NoLabelSet>(sum, count, buckets, None, finer)
        })
    }

    fn family<Labels: EncodeLabelSet, Value>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, Option<Value>)>,
        write: impl Fn(&mut MetricEncoder<'_>, &Value) -> fmt::Result,
    ) -> fmt::Result {
        let mut encoder = self.encoder.encode_descriptor(name, help, None, kind)?;
        let known = samples.into_iter().filter_map(|(labels, value)| Some((labels, value?)));
        for (labels, value) in known {
            write(&mut encoder.encode_family(&labels)?, &value)?;
        }
        Ok(())
    }
}

fn gauge<Value: EncodeGaugeValue>(encoder: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
    encoder.encode_gauge(value)
}
