//! Writing answers where the caller wants them.

use std::{ffi::c_char, slice};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t,
};

/// A call's outcome as its code.
pub(crate) fn code(outcome: Result<(), nvmlReturn_t>) -> nvmlReturn_t {
    outcome.err().unwrap_or(nvmlReturn_enum_NVML_SUCCESS)
}

/// Writes a value.
///
/// # Safety
/// `place` is null or valid for writing a `T`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), nvmlReturn_t> {
    if place.is_null() {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads a value.
///
/// # Safety
/// `place` is null or valid for reading a `T`.
pub(crate) unsafe fn get<T: Copy>(place: *const T) -> Result<T, nvmlReturn_t> {
    if place.is_null() {
        return Err(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller vouches for it.
    Ok(unsafe { place.read() })
}

/// Writes several values; null is allowed for none.
///
/// # Safety
/// `place` is null or valid for writing `room` values.
pub(crate) unsafe fn put_all<T: Copy>(place: *mut T, room: usize, values: &[T]) -> Result<(), nvmlReturn_t> {
    if values.is_empty() {
        return Ok(());
    }
    if place.is_null() || values.len() > room {
        return Err(nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, the caller vouches for `room` values, and there are no more.
    unsafe { slice::from_raw_parts_mut(place, values.len()) }.copy_from_slice(values);
    Ok(())
}

/// Writes a text with the null that ends it.
///
/// # Safety
/// `place` is null or valid for writing `room` characters.
pub(crate) unsafe fn put_text(place: *mut c_char, room: u32, text: &str) -> Result<(), nvmlReturn_t> {
    let text = characters(text);
    let room = usize::try_from(room).unwrap_or(0);
    // SAFETY: the caller vouches for it.
    unsafe { put_all(place, room, &text) }
}

/// A text as C has it, with the null that ends it.
pub(crate) fn characters(text: &str) -> Vec<c_char> {
    text.bytes().chain([0]).map(|byte| c_char::from_ne_bytes([byte])).collect()
}
