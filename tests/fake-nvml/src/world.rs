//! The script as it stands now, and which of its answers a call gets.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    ptr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN, nvmlReturn_t,
};

use crate::script::{Device, Script};

/// Time between two looks at the file by a call that hangs or waits.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// Handles of a GPU's instances lie behind its own; more than it can have.
const HANDLES_A_GPU: usize = 64;

/// Which file was read: inode, time of change in ns, and bytes.
type Version = (u64, i64, u64);

static READ: Mutex<Option<(Version, Arc<Script>)>> = Mutex::new(None);

/// The script, read again if it was replaced. Without a readable one the last stays.
pub(crate) fn script() -> Result<Arc<Script>, nvmlReturn_t> {
    let path = env::var_os("GPUADMIT_FAKE_NVML").map(PathBuf::from);
    let path = path.ok_or(nvmlReturn_enum_NVML_ERROR_UNKNOWN)?;
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let version = fs::metadata(&path).ok().map(|file| (file.ino(), file.mtime_nsec(), file.size()));
    if let (Some(version), false) = (version, read.as_ref().map(|(version, _)| *version) == version) {
        match fs::read(&path).map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes)) {
            Ok(script) => *read = Some((version, Arc::new(script))),
            Err(error) => eprintln!("fake NVML: {}: {error}", path.display()),
        }
    }
    read.as_ref().map(|(_, script)| Arc::clone(script)).ok_or(nvmlReturn_enum_NVML_ERROR_UNKNOWN)
}

fn parse(bytes: &[u8]) -> Result<Script, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Enters a function that concerns no device: hangs or fails as the script says.
pub(crate) fn enter(function: &str) -> Result<Arc<Script>, nvmlReturn_t> {
    loop {
        let script = script()?;
        if script.hang.iter().any(|name| name == function) {
            thread::sleep(LOOK);
            continue;
        }
        return script.errors.get(function).map_or(Ok(script.clone()), |error| Err(error.code()));
    }
}

/// Enters a function of a device: hangs or fails as the script says.
pub(crate) fn enter_device(function: &str, handle: nvmlDevice_t) -> Result<Device, nvmlReturn_t> {
    loop {
        let script = enter(function)?;
        let device = find(&script, handle)?;
        if device.hang.iter().any(|name| name == function) {
            thread::sleep(LOOK);
            continue;
        }
        let error = device.errors.get(function).or_else(|| device.errors.get("*"));
        return error.map_or(Ok(device.clone()), |error| Err(error.code()));
    }
}

/// The handle of a GPU, or of one of its instances.
pub(crate) fn handle(gpu: usize, instance: Option<usize>) -> nvmlDevice_t {
    let number = gpu.saturating_add(1).saturating_mul(HANDLES_A_GPU);
    let number = number.saturating_add(instance.map_or(0, |instance| instance.saturating_add(1)));
    ptr::without_provenance_mut(number)
}

/// Position of the GPU that a handle belongs to, and of the instance if it is one.
pub(crate) fn position(handle: nvmlDevice_t) -> Option<(usize, Option<usize>)> {
    let number = handle.addr();
    let gpu = (number / HANDLES_A_GPU).checked_sub(1)?;
    Some((gpu, (number % HANDLES_A_GPU).checked_sub(1)))
}

fn find(script: &Script, handle: nvmlDevice_t) -> Result<&Device, nvmlReturn_t> {
    let (gpu, instance) = position(handle).ok_or(nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)?;
    let gpu = script.devices.get(gpu).ok_or(nvmlReturn_enum_NVML_ERROR_NOT_FOUND)?;
    match instance {
        None => Ok(gpu),
        Some(instance) => gpu.instances.get(instance).ok_or(nvmlReturn_enum_NVML_ERROR_NOT_FOUND),
    }
}
