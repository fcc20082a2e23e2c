//! The calls that nvml-wrapper lacks, or makes in a form that older drivers and our bounds do not allow.

use std::mem;

use nvml_wrapper::{
    Device, EventSet, Nvml,
    bitmasks::event::EventTypes,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
};

use super::super::wire::{MAX_PROCESSES, Memory, Process};

/// Room for processes at the first try; few devices have more.
const FEW_PROCESSES: usize = 64;

/// `NVML_VALUE_NOT_AVAILABLE`: the driver does not tell.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Memory by `nvmlDeviceGetMemoryInfo_v2`.
pub(super) fn memory_v2(device: &Device<'static>) -> Result<Memory, NvmlError> {
    let told = device.memory_info()?;
    Ok(Memory {
        total_bytes: told.total,
        reserved_bytes: Some(told.reserved),
        used_bytes: told.used,
        free_bytes: told.free,
    })
}

/// Memory by `nvmlDeviceGetMemoryInfo`, which every driver has; what the driver reserves is part of `used_bytes`.
pub(super) fn memory_v1(nvml: &Nvml, device: &Device<'static>) -> Result<Memory, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut told = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle comes from this library, which stays loaded, and `told` outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut told) })?;
    Ok(Memory { total_bytes: told.total, reserved_bytes: None, used_bytes: told.used, free_bytes: told.free })
}

/// Compute processes, at most [`MAX_PROCESSES`], in one call where nvml-wrapper makes two.
pub(super) fn processes(nvml: &Nvml, device: &Device<'static>) -> Result<Vec<Process>, NvmlError> {
    match processes_of(nvml, device, FEW_PROCESSES) {
        Err(NvmlError::InsufficientSize(_)) => processes_of(nvml, device, MAX_PROCESSES),
        told => told,
    }
}

fn processes_of(nvml: &Nvml, device: &Device<'static>, most: usize) -> Result<Vec<Process>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref())?;
    let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
    let mut told = vec![empty; most];
    let mut count = u32::try_from(most).unwrap_or(u32::MAX);
    // SAFETY: the handle comes from this library, which stays loaded, and `told` has room for `count` entries.
    let answer = unsafe { call(device.handle(), &raw mut count, told.as_mut_ptr()) };
    // A list that is longer still is cut: NVML fills what there is room for only when it succeeds, so ours stays empty.
    if answer == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE {
        return Err(NvmlError::InsufficientSize(None));
    }
    nvml_try(answer)?;
    told.truncate(usize::try_from(count).unwrap_or(0));
    let used = |bytes: u64| (bytes != NOT_AVAILABLE).then_some(bytes);
    Ok(told.iter().map(|one| Process { pid: one.pid, used_bytes: used(one.usedGpuMemory) }).collect())
}

/// GPU instance id and compute instance id of a MIG instance.
pub(super) fn instance_ids(nvml: &Nvml, device: &Device<'static>) -> Result<(u32, u32), NvmlError> {
    let gpu = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut ids = (0, 0);
    // SAFETY: the handle comes from this library, which stays loaded, and `ids` outlives the call.
    nvml_try(unsafe { gpu(device.handle(), &raw mut ids.0) })?;
    // SAFETY: as above.
    nvml_try(unsafe { compute(device.handle(), &raw mut ids.1) })?;
    Ok(ids)
}

/// Adds the device's events to the set. Unlike nvml-wrapper's form this keeps the set when one device refuses.
pub(super) fn register_events(
    nvml: &Nvml,
    device: &Device<'static>,
    events: EventTypes,
    set: &EventSet<'static>,
) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: both handles come from this library, which stays loaded, and only the calling thread uses the set.
    nvml_try(unsafe { call(device.handle(), events.bits(), set.handle()) })
}

/// A number that is equal for handles of the same device.
pub(super) fn handle_number(device: &Device<'static>) -> usize {
    // SAFETY: the handle is compared, never used.
    unsafe { device.handle() }.addr()
}

/// Lets go of the driver.
pub(super) fn shutdown(nvml: &Nvml) {
    if let Ok(call) = nvml.lib().nvmlShutdown.as_ref() {
        // SAFETY: no other thread is inside the library, and none calls it any more.
        let _code = unsafe { call() };
    }
}

/// `NVML_STRUCT_VERSION`: the size of the struct, and its version in the highest byte (nvml.h).
pub(super) fn struct_version<T>(version: u32) -> u32 {
    u32::try_from(mem::size_of::<T>()).unwrap_or(0) | version << 24
}
