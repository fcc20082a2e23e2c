//! Functions of a device.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, nvmlReturn_t,
    nvmlUtilization_t,
};

use crate::{
    out::{characters, code, get, put, put_all, put_text},
    script::Process,
    world::{enter_device, handle, position},
};

/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// `nvmlMemory_v2` (nvml.h): the size of the struct, 40, and version 2 in the highest byte.
const MEMORY_V2: c_uint = 0x0200_0028;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    text: *mut c_char,
    room: c_uint,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetUUID", device);
    // SAFETY: the caller passes a buffer of that size.
    code(told.and_then(|device| unsafe { put_text(text, room, &device.uuid) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    text: *mut c_char,
    room: c_uint,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetName", device);
    // SAFETY: the caller passes a buffer of that size.
    code(told.and_then(|device| unsafe { put_text(text, room, &device.name) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    pci: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetPciInfo_v3", device);
    let answer = |address: &str| {
        let mut answer = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        // The last place keeps its null.
        for (place, character) in answer.busId.iter_mut().take(31).zip(characters(address)) {
            *place = character;
        }
        answer
    };
    // SAFETY: the caller passes a place for the answer.
    code(told.and_then(|device| unsafe { put(pci, answer(&device.pci)) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetMemoryInfo", device)
        .and_then(|device| device.memory.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED));
    code(told.and_then(|told| {
        let used = told.used.saturating_add(told.reserved);
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(memory, nvmlMemory_t { total: told.total, free: told.free, used }) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the caller passes a struct that states its version.
    let version = match unsafe { get(memory) } {
        Ok(asked) => asked.version,
        Err(error) => return error,
    };
    if version != MEMORY_V2 {
        return nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    let told = enter_device("nvmlDeviceGetMemoryInfo_v2", device)
        .and_then(|device| device.memory.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED));
    code(told.and_then(|told| {
        let crate::script::Memory { total, reserved, used, free } = told;
        // SAFETY: the caller passes a place for the answer.
        unsafe { put(memory, nvmlMemory_v2_t { version, total, reserved, free, used }) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetUtilizationRates", device)
        .and_then(|device| device.utilisation.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED));
    // SAFETY: the caller passes a place for the answer.
    code(told.and_then(|gpu| unsafe { put(rates, nvmlUtilization_t { gpu, memory: 0 }) }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    places: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let listed = |one: &Process| nvmlProcessInfo_t {
        pid: one.pid,
        usedGpuMemory: one.used.unwrap_or(NOT_AVAILABLE),
        gpuInstanceId: c_uint::MAX,
        computeInstanceId: c_uint::MAX,
    };
    code(enter_device("nvmlDeviceGetComputeRunningProcesses_v3", device).and_then(|device| {
        let told: Vec<_> = device.processes.iter().map(listed).collect();
        // SAFETY: the caller passes the room for entries and a place for their number.
        let room = usize::try_from(unsafe { get(count) }?).unwrap_or(0);
        // SAFETY: as above.
        unsafe { put(count, c_uint::try_from(told.len()).unwrap_or(c_uint::MAX)) }?;
        // SAFETY: the caller passes that much room.
        unsafe { put_all(places, room, &told) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    // A GPU with instances has room for one more, as most have.
    let most = |instances: usize| c_uint::try_from(instances.saturating_add(1)).unwrap_or(c_uint::MAX);
    code(enter_device("nvmlDeviceGetMaxMigDeviceCount", device).and_then(|device| {
        match device.instances.len() {
            0 => Err(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
            // SAFETY: the caller passes a place for the count.
            instances => unsafe { put(count, most(instances)) },
        }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    instance: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    code(enter_device("nvmlDeviceGetMigDeviceHandleByIndex", device).and_then(|told| {
        let (gpu, _) = position(device).ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
        if index >= told.instances.len() {
            return Err(nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
        }
        // SAFETY: the caller passes a place for the handle.
        unsafe { put(instance, handle(gpu, Some(index))) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(
    device: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetGpuInstanceId", device);
    code(told.and_then(|device| {
        let ids = device.ids.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the caller passes a place for the id.
        unsafe { put(id, ids.0) }
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    device: nvmlDevice_t,
    id: *mut c_uint,
) -> nvmlReturn_t {
    let told = enter_device("nvmlDeviceGetComputeInstanceId", device);
    code(told.and_then(|device| {
        let ids = device.ids.ok_or(nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the caller passes a place for the id.
        unsafe { put(id, ids.1) }
    }))
}
