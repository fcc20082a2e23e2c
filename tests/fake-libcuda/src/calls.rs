//! The exported calls, as cuda.h declares them.
#![expect(clippy::missing_safety_doc, reason = "cuda.h says what pointers must be")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use crate::memory::memory;

/// `CUDA_SUCCESS`, `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_NOT_FOUND`.
const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_FOUND: c_int = 500;
/// Rows of a pitched allocation begin at multiples of this.
const ROW: usize = 512;

unsafe fn take(place: *mut u64, bytes: usize) -> c_int {
    let taken = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    let Some(bytes) = taken.filter(|_| !place.is_null()) else { return INVALID_VALUE };
    let Some(address) = memory().take(bytes) else { return OUT_OF_MEMORY };
    // SAFETY: the caller's pointer is to a place for it.
    unsafe { place.write(address) };
    SUCCESS
}

fn give_back(address: u64) -> c_int {
    if address == 0 || memory().give_back(address) { SUCCESS } else { INVALID_VALUE }
}

/// `cuMemAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut u64, bytes: usize) -> c_int {
    // SAFETY: the caller's word.
    unsafe { take(place, bytes) }
}

/// `cuMemAllocManaged`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(place: *mut u64, bytes: usize, _flags: c_uint) -> c_int {
    // SAFETY: the caller's word.
    unsafe { take(place, bytes) }
}

/// `cuMemAllocPitch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    place: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> c_int {
    let row = width.next_multiple_of(ROW);
    // SAFETY: the caller's word.
    let code = unsafe { take(place, row.saturating_mul(height)) };
    if code == SUCCESS && !pitch.is_null() {
        // SAFETY: the caller's word.
        unsafe { pitch.write(row) };
    }
    code
}

/// `cuMemAllocAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(place: *mut u64, bytes: usize, _stream: *mut c_void) -> c_int {
    // SAFETY: the caller's word.
    unsafe { take(place, bytes) }
}

/// `cuMemAllocFromPoolAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    place: *mut u64,
    bytes: usize,
    _pool: *mut c_void,
    _stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { take(place, bytes) }
}

/// `cuMemCreate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    _properties: *const c_void,
    _flags: u64,
) -> c_int {
    // SAFETY: the caller's word.
    unsafe { take(handle, bytes) }
}

/// `cuMemFree`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    give_back(address)
}

/// `cuMemFreeAsync`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, _stream: *mut c_void) -> c_int {
    give_back(address)
}

/// `cuMemRelease`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> c_int {
    give_back(handle)
}

/// `cuGetProcAddress`: names without their version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    place: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the caller's word: a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(symbol) };
    let found: *mut c_void = match name.to_bytes() {
        b"cuMemAlloc" => cuMemAlloc_v2 as *mut c_void,
        b"cuMemAllocManaged" => cuMemAllocManaged as *mut c_void,
        b"cuMemAllocPitch" => cuMemAllocPitch_v2 as *mut c_void,
        b"cuMemAllocAsync" => cuMemAllocAsync as *mut c_void,
        b"cuMemAllocFromPoolAsync" => cuMemAllocFromPoolAsync as *mut c_void,
        b"cuMemCreate" => cuMemCreate as *mut c_void,
        b"cuMemFree" => cuMemFree_v2 as *mut c_void,
        b"cuMemFreeAsync" => cuMemFreeAsync as *mut c_void,
        b"cuMemRelease" => cuMemRelease as *mut c_void,
        _ => null_mut(),
    };
    // SAFETY: the caller's word.
    unsafe { place.write(found) };
    if !status.is_null() {
        // SAFETY: the caller's word. `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND` is 1.
        unsafe { status.write(c_int::from(found.is_null())) };
    }
    if found.is_null() { NOT_FOUND } else { SUCCESS }
}
