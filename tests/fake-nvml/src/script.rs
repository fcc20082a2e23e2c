//! What the file says.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as nvml;
use serde::Deserialize;

/// The node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    /// Driver version.
    pub(crate) driver: String,
    /// Functions that do not return while named here, whatever the device.
    pub(crate) hang: Vec<String>,
    /// Functions that answer an error, by name, whatever the device.
    pub(crate) errors: BTreeMap<String, Error>,
    /// GPUs in NVML's order.
    pub(crate) devices: Vec<Device>,
    /// Events, each told once to a process; a test appends.
    pub(crate) events: Vec<Event>,
    /// Whether the driver is being unbound.
    pub(crate) unbind: bool,
}

/// A GPU, or an instance of one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Device {
    pub(crate) uuid: String,
    pub(crate) pci: String,
    pub(crate) name: String,
    /// Absent: the calls answer NOT_SUPPORTED, as on an integrated GPU.
    pub(crate) memory: Option<Memory>,
    /// Percent; absent: NOT_SUPPORTED.
    pub(crate) utilisation: Option<u32>,
    pub(crate) processes: Vec<Process>,
    pub(crate) instances: Vec<Self>,
    /// GPU instance id and compute instance id; absent: NOT_SUPPORTED.
    pub(crate) ids: Option<(u32, u32)>,
    /// Functions that do not return for this device while named here.
    pub(crate) hang: Vec<String>,
    /// Functions that answer an error for this device; `*` stands for all.
    pub(crate) errors: BTreeMap<String, Error>,
}

/// Bytes, as `nvmlMemory_v2_t` has them; the older call adds `reserved` to `used`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
}

/// A compute process.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Bytes; absent: N/A.
    pub(crate) used: Option<u64>,
}

/// An event.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    /// Position of the device.
    pub(crate) device: usize,
    /// What.
    pub(crate) what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Xid(u64),
    EccCorrected,
    EccUncorrected,
}

/// Errors that tests need.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Error {
    Uninitialized,
    NotSupported,
    NoPermission,
    DriverNotLoaded,
    FunctionNotFound,
    GpuIsLost,
    ArgumentVersionMismatch,
    Unknown,
}

impl Error {
    pub(crate) const fn code(self) -> nvml::nvmlReturn_t {
        match self {
            Self::Uninitialized => nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            Self::NotSupported => nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            Self::NoPermission => nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
            Self::DriverNotLoaded => nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
            Self::FunctionNotFound => nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
            Self::GpuIsLost => nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
            Self::ArgumentVersionMismatch => nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            Self::Unknown => nvml::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        }
    }
}
