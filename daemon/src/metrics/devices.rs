//! Devices and their memory.

use std::fmt;

use gpuadmit_core::{
    snapshot::{DeviceSnapshot, MemorySplit},
    units::Bytes,
};

use super::sheet::Sheet;

pub(super) fn write(sheet: &mut Sheet<'_>, devices: &[DeviceSnapshot]) -> fmt::Result {
    let of = |device: &DeviceSnapshot| [("device", device.uuid.to_string())];
    let info = devices.iter().map(|device| {
        let labels = [
            ("device", device.uuid.to_string()),
            ("index", device.index.to_string()),
            ("name", device.name.clone()),
            ("pci", device.pci.clone()),
            ("parent", device.parent.as_deref().unwrap_or_default().to_owned()),
        ];
        (labels, Some(1_u64))
    });
    sheet.gauge("gpuadmit_device_info", "Always 1; the labels tell which device.", info)?;
    let size = |device: &DeviceSnapshot| Some(device.memory?.memory.total.0);
    let help = "Memory that the device has.";
    sheet.gauge("gpuadmit_device_memory_size_bytes", help, devices.iter().map(|one| (of(one), size(one))))?;
    let split = devices.iter().flat_map(|device| {
        let parts = device.memory.map(parts).into_iter().flatten();
        parts.map(|(part, bytes)| {
            ([("device", device.uuid.to_string()), ("part", part.to_owned())], bytes.map(|bytes| bytes.0))
        })
    });
    let help = "Where the device's memory is: free, reserved by the driver, held by engines, by co-tenants, or by \
                nobody that the driver names.";
    sheet.gauge("gpuadmit_device_memory_bytes", help, split)?;
    let age = |device: &DeviceSnapshot| Some(device.age?.as_secs_f64());
    let help = "Age of the last reading of the device's memory.";
    sheet.gauge("gpuadmit_device_memory_age_seconds", help, devices.iter().map(|one| (of(one), age(one))))?;
    let busy = |device: &DeviceSnapshot| Some(f64::from(device.utilisation_percent?) / 100.0);
    let help = "Share of time in which a kernel ran.";
    sheet.gauge("gpuadmit_device_utilisation_ratio", help, devices.iter().map(|one| (of(one), busy(one))))?;
    let trouble = |device: &DeviceSnapshot| Some(u64::from(!device.problem.is_empty()));
    let help = "1 while something is wrong with the device or its figures.";
    sheet.gauge("gpuadmit_device_trouble", help, devices.iter().map(|one| (of(one), trouble(one))))
}

fn parts(split: MemorySplit) -> [(&'static str, Option<Bytes>); 5] {
    [
        ("free", Some(split.memory.free)),
        ("reserved", split.memory.reserved),
        ("engine", split.engine),
        ("co_tenant", split.co_tenant),
        ("unattributed", split.unattributed),
    ]
}
