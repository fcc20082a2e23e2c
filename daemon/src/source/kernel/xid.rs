//! Xid errors come by up to three ways: a tracepoint, the kernel's log and NVML. Each is told once, by whichever way is
//! first. NVML and the log drop some when many come at once, so that the ways are counted and not just matched.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuadmit_core::{observation::MigInstance, units::Mono};

use super::{kmsg::Part, pci::Address};

/// Most GPUs whose address is remembered.
const MAX_DEVICES: usize = 64;
/// Most pairs of GPU and number remembered at once; beyond it the oldest is forgotten.
const MAX_PAIRS: usize = 1024;
/// Most MIG instances remembered.
const MAX_PARTS: usize = 512;
/// The same Xid of the same GPU after this time is another one. NVML is the slowest way: some milliseconds.
const WINDOW: Duration = Duration::from_secs(5);

/// How an Xid became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Tracepoint nvidia:nvidia_dev_xid.
    Tracepoint,
    /// `/dev/kmsg`.
    Log,
    /// NVML's event.
    Nvml,
}

/// What was told of late.
#[derive(Debug, Default)]
pub struct Xids {
    devices: BTreeMap<Address, Arc<str>>,
    parts: BTreeMap<Arc<str>, (Address, MigInstance)>,
    pairs: BTreeMap<(Arc<str>, u64), Pair>,
}

#[derive(Debug)]
struct Pair {
    /// When the newest came.
    last: Mono,
    told: u32,
    /// How many came by each way.
    came: [u32; 3],
}

impl Xids {
    /// Remembers whose address it is: a lost GPU can be asked no more.
    pub fn learn(&mut self, address: Address, uuid: &Arc<str>) {
        if self.devices.len() < MAX_DEVICES || self.devices.contains_key(&address) {
            self.devices.insert(address, Arc::clone(uuid));
        }
    }

    /// Remembers which MIG instance has this UUID.
    pub fn learn_part(&mut self, address: Address, instance: MigInstance, uuid: &Arc<str>) {
        // An operator who splits a GPU anew gives the same place another UUID.
        self.parts.retain(|_, known| *known != (address, instance));
        if self.parts.len() < MAX_PARTS {
            self.parts.insert(Arc::clone(uuid), (address, instance));
        }
    }

    /// UUIDs of the MIG instances that `part` names; of the whole GPU where none of them is known.
    #[must_use]
    pub fn parts(&self, address: Address, part: Option<Part>, gpu: &Arc<str>) -> Vec<Arc<str>> {
        let meant = |instance: MigInstance| {
            part.is_some_and(|part| {
                part.gpu == instance.gpu && part.compute.is_none_or(|compute| compute == instance.compute)
            })
        };
        let known = self.parts.iter().filter(|(_, (at, instance))| *at == address && meant(*instance));
        let named: Vec<_> = known.map(|(uuid, _)| Arc::clone(uuid)).collect();
        if named.is_empty() { vec![Arc::clone(gpu)] } else { named }
    }

    /// UUID of the GPU at `address`.
    #[must_use]
    pub fn uuid(&self, address: Address) -> Option<Arc<str>> {
        self.devices.get(&address).cloned()
    }

    /// Whether this one is to be told, or has been, by another way.
    pub fn is_new(&mut self, now: Mono, way: Way, uuid: &Arc<str>, code: u64) -> bool {
        self.pairs.retain(|_, pair| now.since(pair.last) < WINDOW);
        if self.pairs.len() >= MAX_PAIRS {
            let oldest = self.pairs.iter().min_by_key(|(_, pair)| pair.last).map(|(key, _)| key.clone());
            oldest.map(|key| self.pairs.remove(&key));
        }
        let fresh = Pair { last: now, told: 0, came: [0; 3] };
        let pair = self.pairs.entry((Arc::clone(uuid), code)).or_insert(fresh);
        pair.last = now;
        let [tracepoint, log, nvml] = &mut pair.came;
        let came = match way {
            Way::Tracepoint => tracepoint,
            Way::Log => log,
            Way::Nvml => nvml,
        };
        *came = came.saturating_add(1);
        let is_new = *came > pair.told;
        pair.told = pair.told.max(*came);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(of: &[(u64, Way)]) -> Vec<bool> {
        let (mut xids, uuid) = (Xids::default(), "GPU-1".into());
        of.iter().map(|(ms, way)| xids.is_new(Mono(ms * 1_000_000), *way, &uuid, 79)).collect()
    }

    #[test]
    fn one_xid_is_told_once_by_the_first_way() {
        assert_eq!(told(&[(0, Way::Log), (3, Way::Nvml)]), [true, false]);
        assert_eq!(told(&[(0, Way::Nvml), (3, Way::Log), (4, Way::Tracepoint)]), [true, false, false]);
    }

    #[test]
    fn two_by_one_way_are_two_even_if_another_way_dropped_one() {
        assert_eq!(told(&[(0, Way::Log), (1, Way::Log), (2, Way::Nvml)]), [true, true, false]);
        assert_eq!(told(&[(0, Way::Log), (1, Way::Nvml), (2, Way::Log)]), [true, false, true]);
    }

    #[test]
    fn a_mig_instance_is_found_by_its_ids() {
        let address = super::super::pci::parse("0000:01:00").unwrap();
        let (mut xids, gpu): (_, Arc<str>) = (Xids::default(), "GPU-1".into());
        for (uuid, gpu, compute) in [("MIG-a", 5, 0), ("MIG-b", 5, 1), ("MIG-old", 6, 0), ("MIG-c", 6, 0)] {
            xids.learn_part(address, MigInstance { gpu, compute }, &uuid.into());
        }
        let named = |gpu_id, compute| {
            let part = Some(Part { gpu: gpu_id, compute });
            xids.parts(address, part, &gpu).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(named(5, Some(1)), ["MIG-b"]);
        assert_eq!(named(5, None), ["MIG-a", "MIG-b"]);
        assert_eq!(named(6, None), ["MIG-c"]);
        assert_eq!(named(7, None), ["GPU-1"]);
        assert_eq!(xids.parts(address, None, &gpu), std::slice::from_ref(&gpu));
    }

    #[test]
    fn the_same_one_later_is_another() {
        assert_eq!(told(&[(0, Way::Log), (6000, Way::Nvml)]), [true, true]);
    }
}
