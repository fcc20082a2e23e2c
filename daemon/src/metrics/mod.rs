//! The Prometheus endpoint: what the node published, as text, over HTTP.
//!
//! A page is made from the published snapshot and from counters that nobody locks while they are read, so that a scrape
//! costs the decisions nothing. What is unknown has no sample; there is never a 0 in its place.

mod devices;
mod engines;
mod events;
mod exporter;
mod histogram;
mod native;
mod node;
mod process;
mod server;
mod sheet;
mod sources;
mod timings;

use std::{fmt, sync::Arc};

use gpuadmit_core::snapshot::Snapshot;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, prometheus_protobuf, prometheus_text, text},
    registry::Registry,
};

use self::{events::Told, process::Process, sheet::Sheet};
pub(crate) use self::{exporter::Exporter, timings::Timings};
use crate::{clock, handle::Handle};

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The Prometheus text format 0.0.4.
    Classic,
    /// OpenMetrics text 1.0.
    OpenMetrics,
    /// Prometheus' messages, each after its length: the only format with native histograms.
    Protobuf,
}

impl Format {
    const ALL: [Self; 3] = [Self::Classic, Self::OpenMetrics, Self::Protobuf];

    /// The first known one of an `Accept` header, which scrapers order by their preference.
    fn wanted(accept: &str) -> Self {
        let known = |range: &str| {
            let protobuf =
                ["application/vnd.google.protobuf", "io.prometheus.client.MetricFamily", "delimited"];
            if range.contains("application/openmetrics-text") {
                Some(Self::OpenMetrics)
            } else if protobuf.iter().all(|part| range.contains(part)) {
                Some(Self::Protobuf)
            } else {
                range.contains("text/plain").then_some(Self::Classic)
            }
        };
        accept.split(',').find_map(known).unwrap_or(Self::Classic)
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// All that a page is made of.
#[derive(Clone, Debug)]
struct Metrics {
    handle: Handle,
    told: Arc<Told>,
    process: Process,
    simulated: bool,
}

impl Metrics {
    fn page(&self, format: Format) -> Result<Vec<u8>, fmt::Error> {
        let view = View {
            snapshot: self.handle.snapshot(),
            handle: self.handle.clone(),
            told: Arc::clone(&self.told),
            process: self.process,
            simulated: self.simulated,
            native: format == Format::Protobuf,
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(view));
        let mut page = String::new();
        match format {
            Format::Classic => prometheus_text::encode(&mut page, &registry)?,
            Format::OpenMetrics => text::encode(&mut page, &registry)?,
            Format::Protobuf => {
                return prometheus_protobuf::encode_to_vec(&registry).map_err(|_| fmt::Error);
            }
        }
        Ok(page.into_bytes())
    }
}

/// What one page shows.
#[derive(Debug)]
struct View {
    snapshot: Arc<Snapshot>,
    handle: Handle,
    told: Arc<Told>,
    process: Process,
    simulated: bool,
    /// Whether histograms are native ones, too.
    native: bool,
}

impl Collector for View {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sheet = Sheet::new(encoder, self.native);
        let snapshot = &*self.snapshot;
        node::write(&mut sheet, snapshot, clock::now().since(snapshot.at), self.simulated)?;
        self.handle.timings().write(&mut sheet)?;
        self.told.write(&mut sheet)?;
        engines::write(&mut sheet, &snapshot.engines)?;
        devices::write(&mut sheet, &snapshot.devices)?;
        sources::write(&mut sheet, &snapshot.sources)?;
        self.process.write(&mut sheet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_what_it_asks_for() {
        let text = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                    text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::wanted(text), Format::OpenMetrics);
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                      application/openmetrics-text;version=1.0.0;q=0.8";
        assert_eq!(Format::wanted(native), Format::Protobuf);
        for other in ["", "*/*", "text/plain", "application/vnd.google.protobuf"] {
            assert_eq!(Format::wanted(other), Format::Classic, "{other}");
        }
    }
}
