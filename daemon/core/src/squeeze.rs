//! Who takes a device's memory: co-tenants that grow, and whether what an engine has needed before is still free.

use std::{sync::Arc, time::Duration};

use crate::{
    alarm::{Level, Patience},
    event::EventKind,
    leak::Exhaustion,
    node::Node,
    snapshot::About,
    units::{Bytes, Mono},
};

/// What an engine may need for a moment beyond what it holds: a forward pass, a CUDA graph. Below it a device counts as
/// full.
pub(crate) const RESERVE: Bytes = Bytes(256 << 20);
/// A need below this is noise.
const LEAST_NEED: Bytes = Bytes(512 << 20);
/// Growth is news at once; that it stopped is believed after a while.
const GROWTH: Patience = Patience { raise: Duration::ZERO, lower: Duration::from_secs(20) };
/// An engine that wakes takes its memory back step by step.
const LOW: Patience = Patience { raise: Duration::from_secs(3), lower: Duration::from_secs(10) };

impl Node {
    /// Works out for each engine on the device whether co-tenants squeeze it.
    pub(crate) fn look_at_device(&mut self, now: Mono, uuid: &Arc<str>) {
        let Some(device) = self.devices.get(uuid) else { return };
        let (settings, pids) = (&self.settings, &self.engine_pids);
        let mut worst = Bytes::ZERO;
        let mut free_now = None;
        for engine in self.engines.iter_mut().filter(|engine| engine.devices.contains(uuid)) {
            let name = Arc::clone(&engine.facts.engine);
            let Some((grown, free)) = device.growth_beside(&name, now, settings, |pid| pids.contains(&pid))
            else {
                continue;
            };
            engine.note_growth(uuid, now, grown, free);
            worst = worst.max(grown);
            free_now = Some(free);
        }
        let Some(free) = free_now else { return };
        let growth = &device.co_tenants;
        let end = growth.exhaustion(free.saturating_sub(RESERVE));
        let danger = worst >= settings.co_tenant_growth && free < settings.device_floor;
        let over = worst.times(2) < settings.co_tenant_growth || free > settings.device_floor.times(2);
        let level = Level::of(danger || end.is_some(), over && !growth.grows());
        if level == Level::Danger {
            for engine in self.engines.iter().filter(|engine| engine.devices.contains(uuid)) {
                self.guard.exonerate(&engine.facts.engine);
            }
        }
        let message = || {
            let soon = end.map_or_else(String::new, |end| forecast(&end));
            format!(
                "other processes on device {uuid} hold {worst} more than when its engine started; {free} free{soon}"
            )
        };
        let key = (EventKind::CoTenantGrowth, About::Device(Arc::clone(uuid)));
        self.judge(now, key, level, GROWTH, message);
    }

    /// Follows who holds how much, from a new list of processes.
    pub(crate) fn follow_tenants(&mut self, now: Mono, uuid: &Arc<str>) {
        let pids = self.engine_pids.clone();
        let Some(device) = self.devices.get_mut(uuid) else { return };
        device.follow_co_tenants(|pid| pids.contains(&pid));
        let Some(free) = device.free(now, &self.settings) else { return };
        let mut short = None;
        for engine in self.engines.iter().filter(|engine| engine.devices.contains(uuid)) {
            let own = |pid| engine.facts.processes.iter().any(|process| process.pid == pid);
            let need = device.need_of(&engine.facts.engine, own).filter(|need| *need >= LEAST_NEED);
            let missing = need.map(|need| (need, need.saturating_sub(free)));
            short =
                short.max(missing.map(|(need, missing)| (missing, need, Arc::clone(&engine.facts.engine))));
        }
        let others = device.co_tenant(|pid| pids.contains(&pid)).is_some_and(|held| held >= LEAST_NEED);
        let (missing, need, engine) = short.unwrap_or((Bytes::ZERO, Bytes::ZERO, "".into()));
        let several = self.engines.iter().filter(|engine| engine.devices.contains(uuid)).count() > 1;
        let level = Level::of(missing > Bytes::ZERO && (others || several), missing == Bytes::ZERO);
        let message = || {
            format!("engine {engine} has needed {need} more on device {uuid} than it holds now; {free} free")
        };
        self.judge(now, (EventKind::DeviceMemoryLow, About::Device(Arc::clone(uuid))), level, LOW, message);
    }
}

fn forecast(end: &Exhaustion) -> String {
    let (within, grown) = (end.within.as_secs(), end.grown_for.as_secs());
    let mib = end.pace / f64::from(1 << 20);
    format!(", full in {within} s at the pace of the last {grown} s ({mib:.0} MiB/s)")
}
