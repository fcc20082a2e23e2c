//! Columns of engines and devices: the wider the screen, the more of them.

use std::cmp::Reverse;

use gpuadmit_client::v1::{Device, Engine, EngineState, Rejections};
use ratatui::{
    style::{Color, Style},
    text::Text,
};

use super::{
    Sort, Top,
    history::{Values, in_use, share},
    spark::spark,
};
use crate::render::{bar, bytes, count, fitted, or_unknown_short, percent, rate, state_word};

/// A column: from which width of the screen on it is shown, its own width (0: what is left), its title, and whether it
/// holds numbers.
pub(super) struct Column<T> {
    pub(super) from: u16,
    pub(super) width: u16,
    pub(super) title: &'static str,
    pub(super) right: bool,
    pub(super) cell: fn(&Top, &T, usize) -> Text<'static>,
}

/// Columns of a bar, its brackets left out.
const BAR: usize = 10;

/// Of engines.
pub(super) const ENGINES: [Column<Engine>; 11] = [
    Column {
        from: 0,
        width: 14,
        title: "ENGINE",
        right: false,
        cell: |_, engine, _| fitted(&engine.id, 14).into(),
    },
    Column { from: 0, width: 8, title: "STATE", right: false, cell: state },
    Column { from: 60, width: 12, title: "KV CACHE", right: false, cell: pool },
    Column {
        from: 0,
        width: 5,
        title: "USE",
        right: true,
        cell: |_, engine, _| whole_percent(in_use(engine)).into(),
    },
    Column {
        from: 0,
        width: 4,
        title: "RUN",
        right: true,
        cell: |_, engine, _| requests(engine, |pool| pool.running),
    },
    Column {
        from: 0,
        width: 5,
        title: "WAIT",
        right: true,
        cell: |_, engine, _| requests(engine, |pool| pool.waiting),
    },
    Column {
        from: 60,
        width: 5,
        title: "RESV",
        right: true,
        cell: |_, engine, _| count(engine.reservations).into(),
    },
    Column { from: 60, width: 10, title: "ROOM TOK", right: true, cell: room },
    Column {
        from: 100,
        width: 6,
        title: "DENIED",
        right: true,
        cell: |_, engine, _| denied(engine.rejections.as_ref()),
    },
    Column { from: 100, width: 6, title: "TOK/S", right: true, cell: speed },
    Column {
        from: 78,
        width: 0,
        title: "HISTORY",
        right: false,
        cell: |top, engine, width| over_time(top.history.engine(&engine.id), width),
    },
];

/// Of devices.
pub(super) const DEVICES: [Column<Device>; 7] = [
    Column {
        from: 0,
        width: 3,
        title: "GPU",
        right: true,
        cell: |_, device, _| device.index.to_string().into(),
    },
    Column {
        from: 78,
        width: 22,
        title: "NAME",
        right: false,
        cell: |_, device, _| fitted(&device.name, 22).into(),
    },
    Column { from: 0, width: 12, title: "MEMORY", right: false, cell: memory },
    Column { from: 0, width: 9, title: "FREE", right: true, cell: free },
    Column {
        from: 0,
        width: 5,
        title: "BUSY",
        right: true,
        cell: |_, device, _| or_unknown_short(device.utilisation_percent, |busy| format!("{busy} %")).into(),
    },
    Column {
        from: 60,
        width: 14,
        title: "ENGINES",
        right: false,
        cell: |_, device, _| fitted(&device.engines.join(" "), 14).into(),
    },
    Column {
        from: 78,
        width: 0,
        title: "HISTORY",
        right: false,
        cell: |top, device, width| over_time(top.history.device(&device.uuid), width),
    },
];

/// In the order that was asked for; ties by name.
pub(super) fn sorted(engines: &[Engine], sort: Sort) -> Vec<&Engine> {
    let mut sorted: Vec<&Engine> = engines.iter().collect();
    sorted.sort_by(|one, other| one.id.cmp(&other.id));
    match sort {
        Sort::Name => {}
        Sort::Use => {
            let used = |engine: &Engine| in_use(engine).unwrap_or(-1.0);
            sorted.sort_by(|one, other| used(other).total_cmp(&used(one)));
        }
        Sort::Waiting => {
            let waiting = |engine: &Engine| {
                engine.pools.iter().filter_map(|pool| pool.waiting).fold(0, u64::saturating_add)
            };
            sorted.sort_by_key(|engine| Reverse(waiting(engine)));
        }
    }
    sorted
}

fn state(top: &Top, engine: &Engine, _: usize) -> Text<'static> {
    let colour = match engine.state() {
        EngineState::Ready => Color::Green,
        EngineState::Down | EngineState::Stalled => Color::Red,
        _ => Color::Yellow,
    };
    let style = if top.colour { Style::new().fg(colour) } else { Style::new() };
    Text::styled(fitted(&state_word(engine.state), 8), style)
}

fn pool(_: &Top, engine: &Engine, _: usize) -> Text<'static> {
    drawn(in_use(engine)).into()
}

/// A bar; empty where nothing is known.
fn drawn(share: Option<f64>) -> String {
    let Some(percent) = share.and_then(whole) else { return String::new() };
    bar(&[('#', percent)], 100, BAR)
}

fn whole_percent(share: Option<f64>) -> String {
    or_unknown_short(share.and_then(whole), |percent| format!("{percent} %"))
}

/// Percent, rounded, of a share from 0 to 1.
fn whole(share: f64) -> Option<u64> {
    (0..=100_u32).find(|percent| (f64::from(*percent) + 0.5) / 100.0 > share).or(Some(100)).map(u64::from)
}

fn requests(engine: &Engine, figure: fn(&gpuadmit_client::v1::Pool) -> Option<u64>) -> Text<'static> {
    let sum = engine.pools.iter().map(figure).try_fold(0_u64, |sum, one| Some(sum.saturating_add(one?)));
    or_unknown_short(sum.filter(|_| !engine.pools.is_empty()), count).into()
}

fn room(_: &Top, engine: &Engine, _: usize) -> Text<'static> {
    or_unknown_short(engine.headroom.as_ref(), |room| count(room.tokens)).into()
}

fn denied(rejections: Option<&Rejections>) -> Text<'static> {
    let decided = rejections.filter(|rejections| rejections.decided > 0);
    or_unknown_short(decided, |rejections| percent(rejections.denied, rejections.decided)).into()
}

fn speed(_: &Top, engine: &Engine, _: usize) -> Text<'static> {
    or_unknown_short(engine.tokens_per_second_per_request, rate).into()
}

fn memory(_: &Top, device: &Device, _: usize) -> Text<'static> {
    let used = device
        .memory
        .as_ref()
        .and_then(|memory| share(memory.total_bytes.saturating_sub(memory.free_bytes), memory.total_bytes));
    drawn(used).into()
}

fn free(_: &Top, device: &Device, _: usize) -> Text<'static> {
    or_unknown_short(device.memory.as_ref(), |memory| bytes(memory.free_bytes)).into()
}

fn over_time(values: Option<&Values>, width: usize) -> Text<'static> {
    values.map_or_else(String::new, |values| spark(values, width, Some(1.0))).into()
}
