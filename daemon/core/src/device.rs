//! Devices: where their memory is, and the guard against co-tenants.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    leak::Growth,
    observation::{DeviceProcesses, DeviceReading},
    settings::Settings,
    snapshot::{DeviceSnapshot, MemorySplit},
    units::{Bytes, Mono},
};

/// Most devices kept (GPUs and MIG instances).
pub(crate) const MAX_DEVICES: usize = 256;

/// A trouble of a device within this time of another one has the same cause: an Xid error, then calls that hang.
const TROUBLE_REACH: Duration = Duration::from_mins(1);

/// One device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    pub(crate) reading: Option<DeviceReading>,
    pub(crate) processes: Option<DeviceProcesses>,
    /// What is wrong beyond the reading itself.
    pub(crate) trouble: Option<String>,
    /// Memory of co-tenants when engine (by id) was first seen on it: the level it started beside.
    baseline: BTreeMap<Arc<str>, Bytes>,
    /// The first of the troubles that were told shortly one after the other, and when the last was.
    troubles: Option<(u64, Mono)>,
    /// Co-tenants' memory over time.
    pub(crate) co_tenants: Growth,
    /// The most that each engine has held here.
    peaks: BTreeMap<Arc<str>, Bytes>,
    /// What processes on it took and gave back since the reading, by process id.
    moved: BTreeMap<u32, (Bytes, Bytes)>,
}

/// Who holds which part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shares {
    engine: Option<Bytes>,
    co_tenant: Option<Bytes>,
}

impl Device {
    /// Memory of engines and of others; unknown as soon as NVML withholds one process's figure of that kind.
    fn shares(&self, is_engine: impl Fn(u32) -> bool) -> Shares {
        let Some(listed) = &self.processes else { return Shares::default() };
        let sum = |of_engine: bool| {
            let chosen = listed.processes.iter().filter(|process| is_engine(process.pid) == of_engine);
            chosen.map(|process| process.used).sum::<Option<Bytes>>()
        };
        Shares { engine: sum(true), co_tenant: sum(false) }
    }

    /// Whether the memory reading is recent enough to be believed.
    fn fresh(&self, now: Mono, stale: Duration) -> bool {
        self.reading.as_ref().is_some_and(|reading| now.since(reading.span.not_before) <= stale)
    }

    /// A trouble was told by `event`: returns the earlier event that it follows from, if any.
    pub(crate) fn first_trouble(&mut self, now: Mono, event: u64) -> Option<u64> {
        let first = self.recent_trouble(now);
        self.troubles = Some((first.unwrap_or(event), now));
        first
    }

    /// The event that told a trouble which others may follow from.
    pub(crate) fn recent_trouble(&self, now: Mono) -> Option<u64> {
        self.troubles.filter(|(_, at)| now.since(*at) <= TROUBLE_REACH).map(|(event, _)| event)
    }

    /// Free memory by a recent reading.
    pub(crate) fn free(&self, now: Mono, settings: &Settings) -> Option<Bytes> {
        let free = self.reading.as_ref()?.memory?.free;
        self.fresh(now, settings.device_stale).then_some(free)
    }

    /// Whether it is a MIG instance of the GPU with this UUID.
    pub(crate) fn is_part_of(&self, gpu: &str) -> bool {
        self.reading.as_ref().and_then(|reading| reading.parent.as_deref()) == Some(gpu)
    }

    /// A new reading: what was taken before is in it.
    pub(crate) fn read(&mut self, reading: DeviceReading) {
        self.moved.clear();
        self.reading = Some(reading);
    }

    /// Process `pid` took and gave back memory. Where it uses several devices, it may be that of another one.
    pub(crate) fn moved(&mut self, pid: u32, allocated: Bytes, freed: Bytes) {
        let listed = self.processes.iter().flat_map(|listed| &listed.processes);
        if listed.into_iter().any(|process| process.pid == pid) {
            let (took, gave) = self.moved.entry(pid).or_default();
            (*took, *gave) = (*took + allocated, *gave + freed);
        }
    }

    /// Free memory by a recent reading, less what its processes took since. What they gave back may be kept by the driver
    /// for them, and makes up for no more than they took.
    pub(crate) fn free_at_least(&self, now: Mono, settings: &Settings) -> Option<Bytes> {
        let taken = self.moved.values().map(|(took, gave)| took.saturating_sub(*gave));
        Some(self.free(now, settings)?.saturating_sub(taken.fold(Bytes::ZERO, |sum, one| sum + one)))
    }

    /// How much co-tenants have grown since `engine` was first seen here, and what is free; `None` when not known.
    pub(crate) fn growth_beside(
        &self,
        engine: &str,
        now: Mono,
        settings: &Settings,
        is_engine: impl Fn(u32) -> bool,
    ) -> Option<(Bytes, Bytes)> {
        let free = self.reading.as_ref()?.memory?.free;
        let baseline = *self.baseline.get(engine)?;
        let grown = self.shares(is_engine).co_tenant?.saturating_sub(baseline);
        self.fresh(now, settings.device_stale).then_some((grown, free))
    }

    /// These processes are an engine's: memory of theirs that was counted as co-tenants' makes that history worthless.
    pub(crate) fn engine_found(&mut self, pids: &[u32]) {
        let mut listed = self.processes.iter().flat_map(|listed| &listed.processes);
        if listed.any(|process| pids.contains(&process.pid)) {
            self.co_tenants = Growth::default();
        }
    }

    /// Follows co-tenants' memory, from a new list of processes.
    pub(crate) fn follow_co_tenants(&mut self, is_engine: impl Fn(u32) -> bool) {
        let at = self.processes.as_ref().map(|listed| listed.span.not_before);
        if let (Some(at), Some(level)) = (at, self.co_tenant(is_engine)) {
            self.co_tenants.take(at, level);
        }
    }

    /// What co-tenants hold.
    pub(crate) fn co_tenant(&self, is_engine: impl Fn(u32) -> bool) -> Option<Bytes> {
        self.shares(is_engine).co_tenant
    }

    /// How much more an engine has held here than it does now.
    pub(crate) fn need_of(&mut self, engine: &Arc<str>, own: impl Fn(u32) -> bool) -> Option<Bytes> {
        let held = self.shares(own).engine?;
        let peak = self.peaks.entry(Arc::clone(engine)).or_insert(held);
        *peak = held.max(*peak);
        Some(peak.saturating_sub(held))
    }

    /// Notes the level beside which `engine` started.
    pub(crate) fn note_baseline(&mut self, engine: &Arc<str>, is_engine: impl Fn(u32) -> bool) {
        if let Some(level) = self.shares(is_engine).co_tenant {
            self.baseline.entry(Arc::clone(engine)).or_insert(level);
        }
    }

    /// `engine` is gone or was started again: its next start sets a new level.
    pub(crate) fn forget_baseline(&mut self, engine: &str) {
        self.baseline.remove(engine);
        self.peaks.remove(engine);
    }

    /// The device for those who look.
    pub(crate) fn snapshot(
        &self,
        now: Mono,
        settings: &Settings,
        engines: Vec<Arc<str>>,
        is_engine: impl Fn(u32) -> bool,
    ) -> Option<DeviceSnapshot> {
        let reading = self.reading.as_ref()?;
        let fresh = self.fresh(now, settings.device_stale);
        let age = now.since(reading.span.not_before);
        let memory = reading.memory.filter(|_| fresh).map(|memory| {
            let Shares { engine, co_tenant } = self.shares(is_engine);
            let named = engine.zip(co_tenant).map(|(engine, other)| engine + other);
            let unattributed = named.map(|named| memory.used.saturating_sub(named));
            MemorySplit { memory, engine, co_tenant, unattributed }
        });
        let problem = match &self.trouble {
            Some(trouble) => trouble.clone(),
            None if !fresh => format!("no reading for {:.1} s", age.as_secs_f64()),
            None => reading.problem.clone(),
        };
        Some(DeviceSnapshot {
            uuid: Arc::clone(&reading.uuid),
            index: reading.index,
            name: reading.name.clone(),
            pci: reading.pci.clone(),
            parent: reading.parent.clone(),
            memory,
            age: Some(age),
            utilisation_percent: reading.utilisation_percent.filter(|_| fresh),
            engines,
            problem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        observation::{DeviceMemory, DeviceProcess},
        testing::at,
        units::Span,
    };

    const ENGINE_PID: u32 = 10;
    const OTHER_PID: u32 = 20;

    fn device(free: u64, other: Option<u64>) -> Device {
        let uuid: Arc<str> = "GPU-0".into();
        let memory = DeviceMemory {
            total: Bytes(1000),
            reserved: Some(Bytes(20)),
            used: Bytes(980 - free),
            free: Bytes(free),
        };
        let reading = DeviceReading {
            span: Span::at(at(0.0)),
            uuid: Arc::clone(&uuid),
            index: 0,
            name: "test".into(),
            pci: "00000000:01:00.0".into(),
            parent: None,
            instance: None,
            memory: Some(memory),
            utilisation_percent: Some(5),
            problem: String::new(),
        };
        let processes = vec![
            DeviceProcess { pid: ENGINE_PID, used: Some(Bytes(500)) },
            DeviceProcess { pid: OTHER_PID, used: other.map(Bytes) },
        ];
        let processes = DeviceProcesses { span: Span::at(at(0.0)), uuid, processes };
        Device { reading: Some(reading), processes: Some(processes), ..Device::default() }
    }

    fn is_engine(pid: u32) -> bool {
        pid == ENGINE_PID
    }

    #[test]
    fn used_memory_is_split_into_engine_others_and_the_rest() {
        let split = device(300, Some(100))
            .snapshot(at(1.0), &Settings::default(), vec![], is_engine)
            .and_then(|device| device.memory)
            .unwrap();
        // 980 - 300 = 680 used: 500 engine, 100 other, 80 of nobody.
        assert_eq!(split.engine, Some(Bytes(500)));
        assert_eq!(split.co_tenant, Some(Bytes(100)));
        assert_eq!(split.unattributed, Some(Bytes(80)));
    }

    #[test]
    fn one_withheld_figure_makes_the_share_unknown_not_zero() {
        let split = device(300, None)
            .snapshot(at(1.0), &Settings::default(), vec![], is_engine)
            .and_then(|device| device.memory)
            .unwrap();
        assert_eq!((split.engine, split.co_tenant, split.unattributed), (Some(Bytes(500)), None, None));
    }

    #[test]
    fn an_old_reading_is_not_shown() {
        let snapshot =
            device(300, Some(1)).snapshot(at(10.0), &Settings::default(), vec![], is_engine).unwrap();
        assert_eq!(snapshot.memory, None);
        assert_eq!(snapshot.problem, "no reading for 10.0 s");
    }

    #[test]
    fn what_was_taken_since_the_reading_is_not_free() {
        let settings = Settings::default();
        let mut device = device(300, Some(100));
        device.moved(ENGINE_PID, Bytes(120), Bytes(20));
        device.moved(OTHER_PID, Bytes(10), Bytes(90));
        device.moved(4711, Bytes(1000), Bytes(0));
        assert_eq!(device.free_at_least(at(0.1), &settings), Some(Bytes(200)));
        device.read(device.reading.clone().unwrap());
        assert_eq!(device.free_at_least(at(0.1), &settings), Some(Bytes(300)));
    }

    #[test]
    fn growth_counts_from_the_level_beside_which_the_engine_started() {
        let engine: Arc<str> = "e".into();
        let mut device = device(300, Some(100));
        let settings = Settings::default();
        assert_eq!(device.growth_beside("e", at(1.0), &settings, is_engine), None);
        device.note_baseline(&engine, is_engine);
        let listed = device.processes.as_mut().unwrap();
        listed.processes[1].used = Some(Bytes(250));
        let grown = device.growth_beside("e", at(1.0), &settings, is_engine);
        assert_eq!(grown, Some((Bytes(150), Bytes(300))));
    }
}
