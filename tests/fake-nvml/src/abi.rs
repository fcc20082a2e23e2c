//! The types that callers expect: a function of another type does not compile.

use nvml_wrapper_sys::bindings::NvmlLib;

macro_rules! exported {
    ($($module:ident: $($function:ident),*;)*) => {
        /// Never called: that it compiles is the check.
        const _: fn(&mut NvmlLib) = |library| {
            $($(library.$function = Ok(crate::$module::$function);)*)*
        };
    };
}

exported! {
    system: nvmlInit_v2, nvmlShutdown, nvmlErrorString, nvmlSystemGetDriverVersion, nvmlDeviceGetCount_v2,
        nvmlDeviceGetHandleByIndex_v2;
    device: nvmlDeviceGetUUID, nvmlDeviceGetName, nvmlDeviceGetPciInfo_v3, nvmlDeviceGetMemoryInfo,
        nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetUtilizationRates, nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetMaxMigDeviceCount, nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId;
    events: nvmlEventSetCreate, nvmlEventSetFree, nvmlDeviceGetSupportedEventTypes, nvmlDeviceRegisterEvents,
        nvmlEventSetWait_v2, nvmlSystemEventSetCreate, nvmlSystemEventSetFree, nvmlSystemRegisterEvents,
        nvmlSystemEventSetWait;
}
