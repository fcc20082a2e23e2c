//! The threads that wait for events: errors of the devices, and the unbinding of the driver.

use std::{
    sync::{Arc, mpsc::Receiver},
    thread,
    time::Duration,
};

use nvml_wrapper::{
    EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError,
    struct_wrappers::event::EventData,
};

use super::{
    super::wire::{Event, Identity, Message, Reason, Span, What},
    calls,
    reader::Opened,
    shared::{Shared, Station},
    system_events::SystemEvents,
};

/// Time that one wait takes, and the pause after one that failed.
const WAIT: Duration = Duration::from_secs(1);

/// Waits for errors of the devices that the readers opened.
pub(super) struct ErrorEvents {
    pub(super) nvml: &'static Nvml,
    pub(super) shared: Arc<Shared>,
    pub(super) station: Arc<Station>,
    pub(super) opened: Receiver<Opened>,
}

impl ErrorEvents {
    /// Waits until the child stops. Waiting itself costs nothing and has no deadline.
    pub(super) fn run(&self) {
        let set = match self.station.pulse.call(|| self.nvml.create_event_set()).0 {
            Ok(set) => set,
            Err(error) => {
                self.station.set(|state| state.note = format!("Xid and ECC events are not told: {error}"));
                return;
            }
        };
        let mut watched: Vec<(usize, Identity)> = Vec::new();
        while !self.shared.stopping() {
            watched.extend(self.opened.try_iter().filter_map(|opened| self.register(opened, &set)));
            if watched.is_empty() {
                thread::sleep(WAIT / 10);
                continue;
            }
            match set.wait(millis(WAIT)) {
                Ok(event) => self.tell(&event, &watched),
                Err(NvmlError::Timeout) => {}
                Err(_) => thread::sleep(WAIT),
            }
        }
    }

    fn register(&self, opened: Opened, set: &EventSet<'static>) -> Option<(usize, Identity)> {
        let Opened { device, identity } = opened;
        let answer = self.station.pulse.call(|| {
            let wanted = EventTypes::CRITICAL_XID_ERROR
                | EventTypes::SINGLE_BIT_ECC_ERROR
                | EventTypes::DOUBLE_BIT_ECC_ERROR;
            let events = device.supported_event_types()? & wanted;
            if events.is_empty() {
                return Err(NvmlError::NotSupported);
            }
            calls::register_events(self.nvml, &device, events, set)
        });
        if let Err(error) = answer.0 {
            let pci = &identity.pci;
            self.station
                .set(|state| state.note = format!("Xid and ECC events of {pci} are not told: {error}"));
            return None;
        }
        Some((calls::handle_number(&device), identity))
    }

    /// The device is told by its handle: after some errors NVML no longer knows its UUID.
    fn tell(&self, event: &EventData<'static>, watched: &[(usize, Identity)]) {
        let handle = calls::handle_number(&event.device);
        let Some((_, device)) = watched.iter().find(|(number, _)| *number == handle) else { return };
        let now_ns = crate::clock::now().0;
        let span = Span { not_before_ns: now_ns.saturating_sub(nanos(WAIT)), not_after_ns: now_ns };
        let happened = [
            event.event_data.as_ref().map(|error| What::Xid(xid(error))),
            event.event_type.contains(EventTypes::SINGLE_BIT_ECC_ERROR).then_some(What::EccCorrected),
            event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR).then_some(What::EccUncorrected),
        ];
        for what in happened.into_iter().flatten() {
            self.shared.send(&Message::Event(Event { device: device.clone(), span, what }));
        }
    }
}

/// Waits for the unbinding of the driver, which waits for all who hold it, and lets go.
pub(super) fn watch_unbinding(nvml: &'static Nvml, shared: &Shared, station: &Station) {
    let cannot = |error: &NvmlError| {
        station.set(|state| state.note = format!("unbinding of the driver is not announced: {error}"));
    };
    let events = match station.pulse.call(|| SystemEvents::of_unbinding(nvml)).0 {
        Ok(events) => events,
        Err(error) => return cannot(&error),
    };
    while !shared.stopping() {
        match events.wait(WAIT) {
            Ok(true) => shared.end(Reason::Unbind, "the driver is being unbound from a GPU".to_owned()),
            Ok(false) => {}
            Err(error) => return cannot(&error),
        }
    }
}

fn xid(error: &XidError) -> u64 {
    /// Stands for an unknown error (nvml.h).
    const UNKNOWN: u64 = 999;
    match error {
        XidError::Value(code) => *code,
        XidError::Unknown => UNKNOWN,
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
