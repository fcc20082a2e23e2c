//! The memory of simulated GPUs, as functions of time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    number::{count, float},
    scenario::Gpu,
};

/// Bytes per MiB.
const MIB: u64 = 1 << 20;

/// A GPU as NVML would tell it, with nvmlMemory_v2_t's sum: total = reserved + used + free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Position.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: Arc<str>,
    /// PCI address.
    pub pci: Arc<str>,
    /// Product name.
    pub name: Arc<str>,
    /// All memory, bytes.
    pub total_bytes: u64,
    /// Held by the driver, bytes.
    pub reserved_bytes: u64,
    /// In use by processes, bytes.
    pub used_bytes: u64,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Percent of time in which a kernel runs.
    pub utilisation_percent: u32,
    /// Processes with memory on it.
    pub processes: Vec<DeviceProcess>,
    /// Calls for it do not return just now: who plays NVML must tell nothing of it.
    pub hung: bool,
}

/// A process on a GPU. Its pid is above any that Linux gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Process id.
    pub pid: u32,
    /// Its memory, bytes.
    pub used_bytes: u64,
}

/// The driver reported an Xid error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidEvent {
    /// When.
    pub at: Instant,
    /// UUID of the GPU.
    pub uuid: Arc<str>,
    /// PCI address of the GPU.
    pub pci: Arc<str>,
    /// Its number.
    pub code: u64,
}

/// A process that takes memory, holds it, and gives it back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CoTenant {
    pub(crate) pid: u32,
    pub(crate) gpu: usize,
    pub(crate) start: Duration,
    pub(crate) mib_per_s: f64,
    pub(crate) max_mib: u64,
    pub(crate) hold: Duration,
}

impl CoTenant {
    /// Its memory at `now`, bytes.
    pub(crate) fn bytes(&self, now: Duration) -> u64 {
        let since = now.saturating_sub(self.start).as_secs_f64();
        let growth = float(self.max_mib) / self.mib_per_s;
        let receding = since - growth - self.hold.as_secs_f64();
        let mib = (self.mib_per_s * since).min(float(self.max_mib)) - self.mib_per_s * receding.max(0.0);
        count(mib.max(0.0) * float(MIB))
    }
}

/// What a GPU is, apart from what lies on it.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    index: u32,
    pub(crate) uuid: Arc<str>,
    pub(crate) pci: Arc<str>,
    name: Arc<str>,
    total: u64,
    reserved: u64,
}

impl Board {
    pub(crate) fn new(index: u32, gpu: &Gpu) -> Self {
        Self {
            index,
            uuid: format!("GPU-51300000-0000-4000-8000-{index:012x}").into(),
            pci: format!("{:08X}:{:02X}:00.0", 0, index + 1).into(),
            name: gpu.name.as_str().into(),
            total: gpu.memory_mib * MIB,
            reserved: gpu.reserved_mib * MIB,
        }
    }

    /// The GPU with these processes on it. Where they want more than there is, the later ones get what is left.
    pub(crate) fn with(&self, wanted: impl Iterator<Item = DeviceProcess>, busy: bool, hung: bool) -> Device {
        let mut free = self.total - self.reserved;
        let processes: Vec<DeviceProcess> = wanted
            .map(|process| {
                let used_bytes = process.used_bytes.min(free);
                free -= used_bytes;
                DeviceProcess { used_bytes, ..process }
            })
            .filter(|process| process.used_bytes > 0)
            .collect();
        Device {
            index: self.index,
            uuid: Arc::clone(&self.uuid),
            pci: Arc::clone(&self.pci),
            name: Arc::clone(&self.name),
            total_bytes: self.total,
            reserved_bytes: self.reserved,
            used_bytes: self.total - self.reserved - free,
            free_bytes: free,
            utilisation_percent: if busy { 100 } else { 0 },
            processes,
            hung,
        }
    }
}

/// `mib` in bytes.
pub(crate) const fn mib(mib: u64) -> u64 {
    mib.saturating_mul(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_co_tenant_grows_holds_and_recedes() {
        let hold = Duration::from_secs(5);
        let start = Duration::from_secs(100);
        let tenant = CoTenant { pid: 1, gpu: 0, start, mib_per_s: 512.0, max_mib: 2048, hold };
        let at = |second: u64| tenant.bytes(Duration::from_secs(second));
        assert_eq!((at(50), at(100), at(102), at(104)), (0, 0, GIB, 2 * GIB));
        assert_eq!((at(109), at(111), at(113), at(200)), (2 * GIB, GIB, 0, 0));
    }

    #[test]
    fn memory_adds_up_and_no_process_gets_what_is_not_there() {
        let gpu = Gpu { name: "G".into(), memory_mib: 10 * 1024, reserved_mib: 1024 };
        let wanted = [(1, 6 * GIB), (2, 5 * GIB), (3, GIB)];
        let wanted = wanted.map(|(pid, used_bytes)| DeviceProcess { pid, used_bytes });
        let device = Board::new(1, &gpu).with(wanted.into_iter(), true, false);
        let held: Vec<_> = device.processes.iter().map(|process| (process.pid, process.used_bytes)).collect();
        assert_eq!(held, [(1, 6 * GIB), (2, 3 * GIB)]);
        assert_eq!((device.used_bytes, device.free_bytes), (9 * GIB, 0));
        assert_eq!(device.reserved_bytes + device.used_bytes + device.free_bytes, device.total_bytes);
        assert_eq!(&*device.pci, "00000000:02:00.0");
    }
}
