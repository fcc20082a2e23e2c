//! One device of the status screen.

use gpuadmit_client::v1::{Device, DeviceMemory};

use super::{
    canvas::Canvas,
    engine::ID_COLUMNS,
    names::Names,
    numbers::{UNKNOWN, age, bytes, or_unknown},
    paint::Mood,
    text::{bar, fitted},
};

const BAR_COLUMNS: usize = 24;

/// The lines of one device.
pub(crate) fn device(device: &Device, names: &Names, canvas: Canvas) -> String {
    let mut text = headline(device, names, canvas);
    text += &canvas.sentence("  problem   ", &device.problem);
    match &device.memory {
        Some(memory) => {
            text + &split(memory, device.headroom.as_ref().map(|headroom| headroom.age_ms), canvas)
        }
        None => text + "  memory    unknown\n",
    }
}

fn headline(device: &Device, names: &Names, canvas: Canvas) -> String {
    let mut fields = vec![
        canvas.text(Mood::Strong, &names.device(&device.uuid)),
        fitted(&device.name, 40),
        format!("{} busy", or_unknown(device.utilisation_percent, |percent| format!("{percent} %"))),
    ];
    fields.extend(device.engines.iter().map(|engine| format!("serves {}", fitted(engine, ID_COLUMNS))));
    let mut names = vec![fitted(&device.uuid, 60), fitted(&device.pci, 20)];
    names.extend(device.parent.as_deref().map(|parent| format!("part of {}", fitted(parent, 60))));
    let names =
        if names.iter().all(String::is_empty) { String::new() } else { canvas.flow("  ", "  ", &names) };
    canvas.flow("", "  ", &fields) + &names
}

fn split(memory: &DeviceMemory, age_ms: Option<u64>, canvas: Canvas) -> String {
    let drawn = bar(&parts(memory), memory.total_bytes, BAR_COLUMNS);
    let free = format!("{} free of {}", bytes(memory.free_bytes), bytes(memory.total_bytes));
    let figures = [
        format!("E engines {}", or_unknown(memory.engine_bytes, bytes)),
        format!("C co-tenants {}", or_unknown(memory.co_tenant_bytes, bytes)),
        format!("U unattributed {}", or_unknown(memory.unattributed_bytes, bytes)),
        format!("R reserved {}", or_unknown(memory.reserved_bytes, bytes)),
    ];
    canvas.flow("  memory    ", ", ", &[format!("{drawn} {free}"), age(age_ms)])
        + &canvas.flow("            ", ", ", &figures)
}

/// What the bar shows. Use that nothing accounts for is drawn as `?`.
fn parts(memory: &DeviceMemory) -> [(char, u64); 5] {
    let known = [
        ('E', memory.engine_bytes.unwrap_or(0)),
        ('C', memory.co_tenant_bytes.unwrap_or(0)),
        ('U', memory.unattributed_bytes.unwrap_or(0)),
        ('R', memory.reserved_bytes.unwrap_or(0)),
    ];
    let accounted = known.iter().fold(memory.free_bytes, |sum, (_, part)| sum.saturating_add(*part));
    let [engine, co_tenant, unattributed, reserved] = known;
    [engine, co_tenant, unattributed, ('?', memory.total_bytes.saturating_sub(accounted)), reserved]
}

/// The line that stands where no device is known.
pub(crate) fn none() -> String {
    format!("devices {UNKNOWN}: none was found (no NVIDIA driver, or nothing read yet)\n")
}
