//! Functions of the library and the driver as a whole.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t,
};

use crate::{
    out::{code, put, put_text},
    world::{enter, handle},
};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    code(enter("nvmlInit_v2").map(drop))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(enter("nvmlShutdown").map(drop))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlErrorString(_code: nvmlReturn_t) -> *const c_char {
    c"an error of the fake NVML".as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: c_uint) -> nvmlReturn_t {
    // SAFETY: the caller passes a buffer of that size.
    code(
        enter("nvmlSystemGetDriverVersion")
            .and_then(|script| unsafe { put_text(text, room, &script.driver) }),
    )
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    let counted = |count: usize| c_uint::try_from(count).unwrap_or(c_uint::MAX);
    code(
        enter("nvmlDeviceGetCount_v2")
            // SAFETY: the caller passes a place for the count.
            .and_then(|script| unsafe { put(count, counted(script.devices.len())) }),
    )
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    match enter("nvmlDeviceGetHandleByIndex_v2") {
        Err(error) => error,
        Ok(script) if index >= script.devices.len() => nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
        // SAFETY: the caller passes a place for the handle.
        Ok(_) => unsafe { put(device, handle(index, None)) }.err().unwrap_or(nvmlReturn_enum_NVML_SUCCESS),
    }
}
