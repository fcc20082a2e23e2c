//! Simulated GPUs in the words of the NVML child.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuadmit_core::units::Mono;
use gpuadmit_sim::device::{Device, XidEvent};
use tokio::sync::mpsc::{Sender, error::SendError};

use super::mono;
use crate::{
    clock,
    source::nvml::wire::{
        Event, Health, Identity, Memory, Message, Process, Processes, Reading, Span, State, What,
    },
};

/// Time between two lists of processes, and between two reports of health.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// A call that takes longer counts as hung, as in the child.
const DEADLINE: Duration = Duration::from_secs(2);

/// Says of the GPUs what the child would.
pub(super) struct Devices {
    messages: Sender<Message>,
    slow_told: Option<Mono>,
    hung: BTreeMap<Arc<str>, Hang>,
}

#[derive(Clone, Copy)]
struct Hang {
    since: Mono,
    told: bool,
}

impl Devices {
    pub(super) fn new(messages: Sender<Message>) -> Self {
        Self { messages, slow_told: None, hung: BTreeMap::new() }
    }

    /// Tells the GPUs as they are.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(super) async fn tell(
        &mut self,
        devices: &[Device],
        xids: &[XidEvent],
    ) -> Result<(), SendError<Message>> {
        let now = clock::now();
        let slow = self.slow_told.is_none_or(|told| now.since(told) >= SLOW_EVERY);
        for xid in xids {
            let device = Identity { pci: xid.pci.to_string(), uuid: Some(xid.uuid.to_string()) };
            self.messages.send(event(device, mono(xid.at), What::Xid(xid.code))).await?;
        }
        for device in devices {
            if let Some(what) = self.hang(device, now) {
                self.messages.send(event(identity(device), now, what)).await?;
            }
            if device.hung {
                continue;
            }
            self.messages.send(reading(device, now)).await?;
            if slow {
                self.messages.send(processes(device, now)).await?;
            }
        }
        if slow {
            self.slow_told = Some(now);
            self.messages.send(health(devices, now)).await?;
        }
        Ok(())
    }

    /// What is to be told of a device that hangs, or hangs no more.
    fn hang(&mut self, device: &Device, now: Mono) -> Option<What> {
        if !device.hung {
            return self.hung.remove(&device.uuid).filter(|hang| hang.told).map(|_| What::Recovered);
        }
        let begun = Hang { since: now, told: false };
        let hang = self.hung.entry(Arc::clone(&device.uuid)).or_insert(begun);
        let overdue = !hang.told && now.since(hang.since) >= DEADLINE;
        hang.told |= overdue;
        overdue.then_some(What::Hung)
    }
}

fn identity(device: &Device) -> Identity {
    Identity { pci: device.pci.to_string(), uuid: Some(device.uuid.to_string()) }
}

const fn at(now: Mono) -> Span {
    Span { not_before_ns: now.0, not_after_ns: now.0 }
}

const fn event(device: Identity, now: Mono, what: What) -> Message {
    Message::Event(Event { device, span: at(now), what })
}

fn reading(device: &Device, now: Mono) -> Message {
    Message::Reading(Reading {
        device: identity(device),
        span: at(now),
        name: device.name.to_string(),
        index: device.index,
        parent: None,
        instance: None,
        memory: Some(Memory {
            total_bytes: device.total_bytes,
            reserved_bytes: Some(device.reserved_bytes),
            used_bytes: device.used_bytes,
            free_bytes: device.free_bytes,
        }),
        utilisation_percent: Some(device.utilisation_percent),
        problem: String::new(),
    })
}

fn processes(device: &Device, now: Mono) -> Message {
    let process = |one: &gpuadmit_sim::device::DeviceProcess| Process {
        pid: one.pid,
        used_bytes: Some(one.used_bytes),
    };
    let processes = device.processes.iter().map(process).collect();
    Message::Processes(Processes { device: identity(device), span: at(now), processes })
}

fn health(devices: &[Device], now: Mono) -> Message {
    let hung = devices.iter().filter(|device| device.hung).count();
    let state = match hung {
        0 => State::Ok,
        all if all == devices.len() => State::Failed,
        _ => State::Degraded,
    };
    let detail = format!("{} simulated GPUs, {hung} of them hung", devices.len());
    Message::Health(Health { span: at(now), state, detail, busy_us: 0 })
}

#[cfg(test)]
mod tests {
    use gpuadmit_sim::{Scenario, SimNode};
    use tokio::sync::mpsc;

    use super::*;

    fn told(receiver: &mut mpsc::Receiver<Message>) -> Vec<Message> {
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn memory_processes_and_health_are_told_and_nothing_of_a_device_that_hangs() {
        let text = "[[incident]]\nkind='nvml_hang'\nat_s=0\ngpu=1\nfor_s=600";
        let node = SimNode::start(Scenario::parse(text).unwrap()).unwrap();
        let (messages, mut receiver) = mpsc::channel(64);
        let mut devices = Devices::new(messages);
        devices.tell(&node.devices(), &[]).await.unwrap();
        let told_first = told(&mut receiver);
        let [Message::Reading(reading), Message::Processes(list), Message::Health(health)] = &told_first[..]
        else {
            panic!("a reading, a list, and health, not {told_first:?}")
        };
        let memory = reading.memory.unwrap();
        let sum = memory.used_bytes + memory.free_bytes + memory.reserved_bytes.unwrap();
        assert_eq!((reading.index, sum), (0, memory.total_bytes));
        assert_eq!(list.device, reading.device);
        assert_eq!(health.state, State::Degraded);
        devices.tell(&node.devices(), &[]).await.unwrap();
        assert_eq!(told(&mut receiver).len(), 1, "lists and health are told once a second");
    }

    #[test]
    fn a_hang_is_told_once_after_the_deadline_and_its_end_once() {
        let (messages, _receiver) = mpsc::channel(1);
        let mut devices = Devices::new(messages);
        let device = |hung| Device {
            index: 0,
            uuid: "GPU-1".into(),
            pci: "0".into(),
            name: "G".into(),
            total_bytes: 1,
            reserved_bytes: 0,
            used_bytes: 0,
            free_bytes: 1,
            utilisation_percent: 0,
            processes: Vec::new(),
            hung,
        };
        let second = |second: u64| Mono(second * 1_000_000_000);
        assert_eq!(devices.hang(&device(true), second(10)), None);
        assert_eq!(devices.hang(&device(true), second(11)), None);
        assert_eq!(devices.hang(&device(true), second(12)), Some(What::Hung));
        assert_eq!(devices.hang(&device(true), second(13)), None);
        assert_eq!(devices.hang(&device(false), second(14)), Some(What::Recovered));
        assert_eq!(devices.hang(&device(false), second(15)), None);
        assert_eq!(devices.hang(&device(true), second(16)), None);
        assert_eq!(devices.hang(&device(false), second(17)), None, "too short to have been noticed");
    }
}
