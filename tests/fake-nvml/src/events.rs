//! Events of devices, and of the driver.

use std::{
    collections::BTreeSet,
    ffi::{c_uint, c_ulonglong},
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeDoubleBitEccError,
    nvmlEventTypeSingleBitEccError, nvmlEventTypeXidCriticalError,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlReturn_enum_NVML_ERROR_TIMEOUT, nvmlReturn_t,
    nvmlSystemEventData_v1_t, nvmlSystemEventSetCreateRequest_t, nvmlSystemEventSetFreeRequest_t,
    nvmlSystemEventSetWaitRequest_t, nvmlSystemEventTypeGpuDriverUnbind, nvmlSystemRegisterEventRequest_t,
};

use crate::{
    out::{code, get, put},
    script::{Event, What},
    world::{LOOK, enter, enter_device, handle},
};

/// Events of the script that this process was told.
static TOLD: AtomicUsize = AtomicUsize::new(0);

/// Handles whose events are asked for; those of others are not told yet.
static REGISTERED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Versions of the requests (nvml.h): sizes 16, 24 and 32, version 1 in the highest byte.
const CREATE_V1: c_uint = 0x0100_0010;
const REGISTER_V1: c_uint = 0x0100_0018;
const WAIT_V1: c_uint = 0x0100_0020;

const ALL: c_ulonglong = (nvmlEventTypeXidCriticalError
    | nvmlEventTypeSingleBitEccError
    | nvmlEventTypeDoubleBitEccError) as c_ulonglong;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    // SAFETY: the caller passes a place for the set, which is never looked into.
    code(enter("nvmlEventSetCreate").and_then(|_| unsafe { put(set, ptr::without_provenance_mut(1)) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlEventSetFree(_set: nvmlEventSet_t) -> nvmlReturn_t {
    code(enter("nvmlEventSetFree").map(drop))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetSupportedEventTypes", device);
    // SAFETY: the caller passes a place for the types.
    code(told.and_then(|_| unsafe { put(types, ALL) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    _types: c_ulonglong,
    _set: nvmlEventSet_t,
) -> nvmlReturn_t {
    code(enter_device("nvmlDeviceRegisterEvents", device).map(|_| {
        registered().insert(device.addr());
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    let next = wait("nvmlEventSetWait_v2", timeout_ms, |script| {
        let next = script.events.get(TOLD.load(Ordering::SeqCst)).copied();
        next.filter(|event| registered().contains(&handle(event.device, None).addr()))
    });
    code(next.and_then(|event| {
        TOLD.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller passes a place for the event.
        unsafe { put(data, told(event)) }
    }))
}

fn registered() -> MutexGuard<'static, BTreeSet<usize>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told(event: Event) -> nvmlEventData_t {
    let (kind, data) = match event.what {
        What::Xid(code) => (nvmlEventTypeXidCriticalError, code),
        What::EccCorrected => (nvmlEventTypeSingleBitEccError, 0),
        What::EccUncorrected => (nvmlEventTypeDoubleBitEccError, 0),
    };
    nvmlEventData_t {
        device: handle(event.device, None),
        eventType: kind.into(),
        eventData: data,
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlSystemEventSetCreate(
    request: *mut nvmlSystemEventSetCreateRequest_t,
) -> nvmlReturn_t {
    code(enter("nvmlSystemEventSetCreate").and_then(|_| {
        // SAFETY: the caller passes a request that states its version.
        let mut asked = unsafe { get(request) }?;
        expect(asked.version, CREATE_V1)?;
        asked.set = ptr::without_provenance_mut(1);
        // SAFETY: as above.
        unsafe { put(request, asked) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlSystemEventSetFree(
    _request: *mut nvmlSystemEventSetFreeRequest_t,
) -> nvmlReturn_t {
    code(enter("nvmlSystemEventSetFree").map(drop))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlSystemRegisterEvents(
    request: *mut nvmlSystemRegisterEventRequest_t,
) -> nvmlReturn_t {
    // SAFETY: the caller passes a request that states its version.
    let asked = enter("nvmlSystemRegisterEvents").and_then(|_| unsafe { get(request) });
    code(asked.and_then(|asked| expect(asked.version, REGISTER_V1)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlSystemEventSetWait(
    request: *mut nvmlSystemEventSetWaitRequest_t,
) -> nvmlReturn_t {
    // SAFETY: the caller passes a request that states its version.
    let asked = unsafe { get(request) }.and_then(|asked| expect(asked.version, WAIT_V1).map(|()| asked));
    code(asked.and_then(|mut asked| {
        wait("nvmlSystemEventSetWait", asked.timeoutms, |script| script.unbind.then_some(()))?;
        let kind = nvmlSystemEventTypeGpuDriverUnbind.into();
        // SAFETY: the caller passes room for at least one event.
        unsafe { put(asked.data, nvmlSystemEventData_v1_t { eventType: kind, gpuId: 0 }) }?;
        asked.numEvent = 1;
        // SAFETY: as above.
        unsafe { put(request, asked) }
    }))
}

fn expect(version: c_uint, known: c_uint) -> Result<(), nvmlReturn_t> {
    if version == known { Ok(()) } else { Err(nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH) }
}

/// Waits until the script has something to tell.
fn wait<T>(
    function: &str,
    timeout_ms: c_uint,
    next: impl Fn(&crate::script::Script) -> Option<T>,
) -> Result<T, nvmlReturn_t> {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some(told) = next(&*enter(function)?) {
            return Ok(told);
        }
        if Instant::now() >= until {
            return Err(nvmlReturn_enum_NVML_ERROR_TIMEOUT);
        }
        thread::sleep(LOOK);
    }
}
