//! What the child writes to its pipe: one JSON object a line. The simulated node builds the same values.
//!
//! All instants are `CLOCK_MONOTONIC` nanoseconds, which parent and child share. Missing is absent, never zero.

use serde::{Deserialize, Serialize};

/// Longest line, bytes, its newline included: a list of [`MAX_PROCESSES`] fits. Longer ones are skipped and counted.
pub const LINE_BYTES: usize = 64 * 1024;

/// Most processes told of one device; the driver's list is cut there.
pub const MAX_PROCESSES: usize = 1024;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// A device was read.
    Reading(Reading),
    /// A device's compute processes were listed.
    Processes(Processes),
    /// Something happened to a device.
    Event(Event),
    /// How the reader fares; at least once a second.
    Health(Health),
    /// The last line of a child that ends by itself.
    Bye(Bye),
}

/// When something was seen: between asking and having the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Before the call, ns.
    pub not_before_ns: u64,
    /// After the call, ns.
    pub not_after_ns: u64,
}

/// Which device. A MIG instance shares its GPU's PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// PCI address, `00000000:41:00.0`.
    pub pci: String,
    /// `GPU-…` or `MIG-…`; absent where the driver could not tell any more: the parent knows it by the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// A device's memory and load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Of which device.
    pub device: Identity,
    /// When.
    pub span: Span,
    /// Product name.
    pub name: String,
    /// Position in NVML's order; of a MIG instance, its position in its GPU.
    pub index: u32,
    /// UUID of the GPU that this MIG instance is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its GPU instance id and compute instance id, of a MIG instance whose driver tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
    /// Absent where the device has none of its own or the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Percent of time in which a kernel ran, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// What could not be read, one sentence; empty when all was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// Memory as NVML tells it: with `reserved_bytes` by `nvmlMemory_v2_t` (total = reserved + used + free), without by
/// `nvmlMemory_t` (used includes what the driver reserves).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// Held by the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// In use.
    pub used_bytes: u64,
    /// Free.
    pub free_bytes: u64,
}

/// Compute processes on a device, at most [`MAX_PROCESSES`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// On which device.
    pub device: Identity,
    /// When.
    pub span: Span,
    /// The processes.
    pub processes: Vec<Process>,
}

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// Its device memory; absent where NVML answers N/A.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}

/// Something that happened to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// To which device.
    pub device: Identity,
    /// When it was noticed.
    pub span: Span,
    /// What.
    pub what: What,
}

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The driver reported this Xid error.
    Xid(u64),
    /// A single-bit ECC error was corrected.
    EccCorrected,
    /// A double-bit ECC error.
    EccUncorrected,
    /// NVML answers that the GPU is lost.
    Lost,
    /// A call has not returned within its deadline.
    Hung,
    /// It answers again.
    Recovered,
}

/// How the reader fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// When.
    pub span: Span,
    /// Health.
    pub state: State,
    /// One sentence.
    pub detail: String,
    /// Time spent inside NVML by all threads since the child started, microseconds.
    pub busy_us: u64,
}

/// Health of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every device delivers.
    Ok,
    /// Some deliver, or late.
    Degraded,
    /// None delivers.
    Failed,
    /// No library, driver or device.
    Absent,
}

/// Why the child ends by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why.
    pub reason: Reason,
    /// One sentence.
    pub detail: String,
}

/// Why the child ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It was told to.
    Stopped,
    /// No library, driver or device.
    Absent,
    /// The driver is being unbound from a GPU: it waits for all who hold it.
    Unbind,
    /// The library failed in a way that only a new start mends.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { not_before_ns: u64::MAX, not_after_ns: u64::MAX };

    #[test]
    fn the_longest_list_fits_a_line() {
        let device = Identity { pci: "00000000:41:00.0".to_owned(), uuid: Some("M".repeat(96)) };
        let processes = vec![Process { pid: u32::MAX, used_bytes: Some(u64::MAX) }; MAX_PROCESSES];
        let line =
            serde_json::to_vec(&Message::Processes(Processes { device, span: SPAN, processes })).unwrap();
        assert!(line.len() < LINE_BYTES, "{} bytes", line.len());
    }

    #[test]
    fn an_event_is_spelled_as_documented() {
        let device = Identity { pci: "00000000:41:00.0".to_owned(), uuid: None };
        let span = Span { not_before_ns: 1, not_after_ns: 2 };
        let message = Message::Event(Event { device, span, what: What::Xid(79) });
        let line = r#"{"type":"event","device":{"pci":"00000000:41:00.0"},"span":{"not_before_ns":1,"not_after_ns":2},"what":{"xid":79}}"#;
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
        assert_eq!(serde_json::from_str::<Message>(line).unwrap(), message);
    }
}
