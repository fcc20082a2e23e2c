//! From the child's messages to the node's observations: the one file that knows both.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpuadmit_core::{
    observation::{
        DeviceEvent, DeviceMemory, DeviceProcess, DeviceProcesses, DeviceReading, MigInstance, Observation,
        SourceHealth, SourceReport,
    },
    units::{Bytes, Mono, Span},
};
use thiserror::Error;

use super::wire;

/// Most devices, MIG instances included, that are passed on; a node has at most 16 GPUs of 7 instances.
pub const MAX_DEVICES: usize = 256;

/// Longest UUID, PCI address or product name, bytes (NVML's own buffers have 96).
const NAME_BYTES: usize = 96;

/// Why a message is left out.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// The span runs backwards.
    #[error("span: not_after_ns ({not_after_ns}) lies before not_before_ns ({not_before_ns})")]
    Span {
        /// As sent.
        not_before_ns: u64,
        /// As sent.
        not_after_ns: u64,
    },
    /// A device without a UUID was never seen with one.
    #[error("device: no UUID is known for PCI address {pci:?}")]
    NeverSeen {
        /// As sent.
        pci: String,
    },
    /// A name is empty or too long.
    #[error("{field}: {bytes} bytes, allowed are 1 to {NAME_BYTES}")]
    Name {
        /// Which.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// More devices than a node can have.
    #[error("device: more than {MAX_DEVICES} devices")]
    TooManyDevices,
    /// More processes than a line may hold.
    #[error("processes: {0} listed, allowed are 0 to {max}", max = wire::MAX_PROCESSES)]
    TooManyProcesses(usize),
}

/// Translates messages and remembers what a single one cannot tell.
#[derive(Debug, Default)]
pub struct Translator {
    /// UUIDs of GPUs by PCI address: after Xid 79 the driver no longer tells them.
    by_pci: BTreeMap<String, Arc<str>>,
    known: BTreeSet<Arc<str>>,
    busy_of_former_children: Duration,
    busy_of_this_child: Duration,
}

impl Translator {
    /// The observation that `message` makes; `None` for a farewell.
    ///
    /// # Errors
    /// The message cannot be true, or breaks a bound.
    pub fn observation(&mut self, message: wire::Message) -> Result<Option<Observation>, Unusable> {
        Ok(Some(match message {
            wire::Message::Reading(reading) => Observation::Device(Box::new(self.reading(reading)?)),
            wire::Message::Processes(list) => Observation::DeviceProcesses(self.processes(list)?),
            wire::Message::Event(event) => Observation::DeviceEvent {
                span: span(event.span)?,
                uuid: self.uuid(event.device, false)?,
                event: what(event.what),
            },
            wire::Message::Health(health) => Observation::Source(self.health(health)?),
            wire::Message::Bye(_) => return Ok(None),
        }))
    }

    /// The child is gone: its time inside NVML is kept, that of the next one adds to it.
    pub fn child_ended(&mut self) {
        self.busy_of_former_children = self.busy();
        self.busy_of_this_child = Duration::ZERO;
    }

    /// Time spent inside NVML by all children so far.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.busy_of_former_children.saturating_add(self.busy_of_this_child)
    }

    fn reading(&mut self, reading: wire::Reading) -> Result<DeviceReading, Unusable> {
        let wire::Reading {
            device, name, index, parent, instance, memory, utilisation_percent, problem, ..
        } = reading;
        named("name", &name)?;
        if let Some(parent) = &parent {
            named("parent", parent)?;
        }
        Ok(DeviceReading {
            span: span(reading.span)?,
            pci: device.pci.clone(),
            uuid: self.uuid(device, parent.is_some())?,
            index,
            name,
            parent: parent.map(Arc::from),
            instance: instance.map(|(gpu, compute)| MigInstance { gpu, compute }),
            memory: memory.map(|memory| DeviceMemory {
                total: Bytes(memory.total_bytes),
                reserved: memory.reserved_bytes.map(Bytes),
                used: Bytes(memory.used_bytes),
                free: Bytes(memory.free_bytes),
            }),
            utilisation_percent,
            problem,
        })
    }

    fn processes(&mut self, list: wire::Processes) -> Result<DeviceProcesses, Unusable> {
        if list.processes.len() > wire::MAX_PROCESSES {
            return Err(Unusable::TooManyProcesses(list.processes.len()));
        }
        let process = |one: wire::Process| DeviceProcess { pid: one.pid, used: one.used_bytes.map(Bytes) };
        Ok(DeviceProcesses {
            span: span(list.span)?,
            uuid: self.uuid(list.device, true)?,
            processes: list.processes.into_iter().map(process).collect(),
        })
    }

    fn health(&mut self, health: wire::Health) -> Result<SourceReport, Unusable> {
        let span = span(health.span)?;
        self.busy_of_this_child = Duration::from_micros(health.busy_us);
        let state = match health.state {
            wire::State::Ok => SourceHealth::Ok,
            wire::State::Degraded => SourceHealth::Degraded,
            wire::State::Failed => SourceHealth::Failed,
            wire::State::Absent => SourceHealth::Absent,
        };
        Ok(self.report(span, state, health.detail))
    }

    /// A report of this source, with the time spent inside NVML so far.
    #[must_use]
    pub fn report(&self, span: Span, health: SourceHealth, detail: String) -> SourceReport {
        SourceReport { source: Arc::from("nvml"), span, health, detail, busy: Some(self.busy()) }
    }

    /// The device's UUID, remembered by its PCI address unless it may be a MIG instance's.
    fn uuid(&mut self, device: wire::Identity, may_be_instance: bool) -> Result<Arc<str>, Unusable> {
        named("pci", &device.pci)?;
        let Some(uuid) = device.uuid else {
            let remembered = self.by_pci.get(&device.pci).cloned();
            return remembered.ok_or(Unusable::NeverSeen { pci: device.pci });
        };
        named("uuid", &uuid)?;
        let uuid = self.intern(uuid)?;
        if !may_be_instance && (self.by_pci.len() < MAX_DEVICES || self.by_pci.contains_key(&device.pci)) {
            self.by_pci.insert(device.pci, Arc::clone(&uuid));
        }
        Ok(uuid)
    }

    fn intern(&mut self, uuid: String) -> Result<Arc<str>, Unusable> {
        if let Some(known) = self.known.get(uuid.as_str()) {
            return Ok(Arc::clone(known));
        }
        if self.known.len() >= MAX_DEVICES {
            return Err(Unusable::TooManyDevices);
        }
        let uuid: Arc<str> = Arc::from(uuid);
        self.known.insert(Arc::clone(&uuid));
        Ok(uuid)
    }
}

fn named(field: &'static str, name: &str) -> Result<(), Unusable> {
    if (1..=NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(Unusable::Name { field, bytes: name.len() })
}

fn span(wire::Span { not_before_ns, not_after_ns }: wire::Span) -> Result<Span, Unusable> {
    if not_after_ns < not_before_ns {
        return Err(Unusable::Span { not_before_ns, not_after_ns });
    }
    Ok(Span { not_before: Mono(not_before_ns), not_after: Mono(not_after_ns) })
}

fn what(what: wire::What) -> DeviceEvent {
    match what {
        wire::What::Xid(code) => DeviceEvent::Xid { code },
        wire::What::EccCorrected => DeviceEvent::EccCorrected,
        wire::What::EccUncorrected => DeviceEvent::EccUncorrected,
        wire::What::Lost => DeviceEvent::Lost,
        wire::What::Hung => DeviceEvent::Hung,
        wire::What::Recovered => DeviceEvent::Recovered,
    }
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
