//! The driver's own events: it tells when it is unbound from a GPU and waits for all who hold it.

use std::{ptr, time::Duration};

use nvml_wrapper::{
    Nvml,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    nvmlSystemEventData_v1_t, nvmlSystemEventSet_t, nvmlSystemEventSetCreateRequest_t,
    nvmlSystemEventSetWaitRequest_t, nvmlSystemEventTypeGpuDriverUnbind, nvmlSystemRegisterEventRequest_t,
};

use super::calls::struct_version;

/// Events taken in one wait. One unbinding tells enough.
const EVENTS: usize = 4;

/// Events of the driver, waited for by one thread.
pub(super) struct SystemEvents {
    nvml: &'static Nvml,
    set: nvmlSystemEventSet_t,
}

impl SystemEvents {
    /// Asks to be told of unbinding. Drivers before 570 cannot tell.
    pub(super) fn of_unbinding(nvml: &'static Nvml) -> Result<Self, NvmlError> {
        let create = nvml_sym(nvml.lib().nvmlSystemEventSetCreate.as_ref())?;
        let register = nvml_sym(nvml.lib().nvmlSystemRegisterEvents.as_ref())?;
        let mut created = nvmlSystemEventSetCreateRequest_t {
            version: struct_version::<nvmlSystemEventSetCreateRequest_t>(1),
            set: ptr::null_mut(),
        };
        // SAFETY: the request has the version and size that it states and outlives the call.
        nvml_try(unsafe { create(&raw mut created) })?;
        let mut request = nvmlSystemRegisterEventRequest_t {
            version: struct_version::<nvmlSystemRegisterEventRequest_t>(1),
            eventTypes: nvmlSystemEventTypeGpuDriverUnbind.into(),
            set: created.set,
        };
        // SAFETY: as above; the set was made by the call before.
        nvml_try(unsafe { register(&raw mut request) })?;
        Ok(Self { nvml, set: created.set })
    }

    /// Waits at most `most`; true when the driver is being unbound.
    pub(super) fn wait(&self, most: Duration) -> Result<bool, NvmlError> {
        let wait = nvml_sym(self.nvml.lib().nvmlSystemEventSetWait.as_ref())?;
        let mut events = [nvmlSystemEventData_v1_t { eventType: 0, gpuId: 0 }; EVENTS];
        let mut request = nvmlSystemEventSetWaitRequest_t {
            version: struct_version::<nvmlSystemEventSetWaitRequest_t>(1),
            timeoutms: u32::try_from(most.as_millis()).unwrap_or(u32::MAX),
            set: self.set,
            data: events.as_mut_ptr(),
            dataSize: u32::try_from(EVENTS).unwrap_or(0),
            numEvent: 0,
        };
        // SAFETY: the request has the version and size that it states; it and its events outlive the call.
        match nvml_try(unsafe { wait(&raw mut request) }) {
            Ok(()) => {
                let unbind = u64::from(nvmlSystemEventTypeGpuDriverUnbind);
                let told = usize::try_from(request.numEvent).unwrap_or(EVENTS);
                Ok(events.iter().take(told).any(|event| event.eventType & unbind != 0))
            }
            // More events than there is room for, and nothing else was asked for.
            Err(NvmlError::InsufficientSize(_)) => Ok(true),
            Err(NvmlError::Timeout) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
