//! Columns of engines and devices. Where not all fit, the least useful go first.

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
use crate::render::{Names, bar, bytes, count, fitted, or_unknown_short, percent, rate, state_word};

/// What a cell is drawn from beside its row.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) top: &'a Top,
    pub(super) names: &'a Names,
}

/// A column.
pub(super) struct Column<T> {
    /// How useful it is; where not all fit, the columns of the lowest rank go first.
    rank: u8,
    /// Its least width.
    least: usize,
    /// Its greatest width; what is left goes to the columns in their order.
    most: usize,
    pub(super) title: &'static str,
    /// Whether it holds numbers.
    pub(super) right: bool,
    /// Its text, at most this many columns wide.
    pub(super) cell: fn(View<'_>, &T, usize) -> Text<'static>,
}

impl<T> Column<T> {
    const fn text(
        rank: u8,
        (least, most): (usize, usize),
        title: &'static str,
        cell: fn(View<'_>, &T, usize) -> Text<'static>,
    ) -> Self {
        Self { rank, least, most, title, right: false, cell }
    }

    const fn number(
        rank: u8,
        width: usize,
        title: &'static str,
        cell: fn(View<'_>, &T, usize) -> Text<'static>,
    ) -> Self {
        Self { rank, least: width, most: width, title, right: true, cell }
    }
}

/// The columns that fit `width`, and their widths with one blank between them. A column of text is as wide as what
/// stands in it, as far as there is room.
pub(super) fn fitting<'a, T>(
    columns: &'a [Column<T>],
    view: View<'_>,
    rows: &[&T],
    width: usize,
) -> Vec<(&'a Column<T>, usize)> {
    let mut shown: Vec<&Column<T>> = columns.iter().collect();
    let taken =
        |shown: &[&Column<T>]| shown.iter().map(|column| column.least + 1).sum::<usize>().saturating_sub(1);
    while taken(&shown) > width
        && let Some(index) = (0..shown.len()).min_by_key(|index| shown.get(*index).map(|column| column.rank))
    {
        shown.remove(index);
    }
    let mut left = width.saturating_sub(taken(&shown));
    let widen = |column: &'a Column<T>| {
        let needed = rows.iter().map(|row| (column.cell)(view, row, column.most).width()).max().unwrap_or(0);
        let more = needed.saturating_sub(column.least).min(left);
        left -= more;
        (column, column.least + more)
    };
    shown.into_iter().map(widen).collect()
}

/// Columns of a bar, its brackets left out.
const BAR: usize = 10;
/// Columns of a sparkline.
const HISTORY: (usize, usize) = (8, 512);

/// Of engines.
pub(super) const ENGINES: [Column<Engine>; 11] = [
    Column::text(9, (14, 60), "ENGINE", |_, engine, width| fitted(&engine.id, width).into()),
    Column::text(9, (8, 8), "STATE", state),
    Column::text(1, (BAR + 2, BAR + 2), "KV CACHE", |_, engine, _| drawn(in_use(engine)).into()),
    Column::number(8, 5, "USE", |_, engine, _| whole_percent(in_use(engine)).into()),
    Column::number(7, 4, "RUN", |_, engine, _| requests(engine, |pool| pool.running)),
    Column::number(7, 5, "WAIT", |_, engine, _| requests(engine, |pool| pool.waiting)),
    Column::number(3, 5, "RESV", |_, engine, _| count(engine.reservations).into()),
    Column::number(5, 10, "ROOM TOK", room),
    Column::number(6, 6, "DENIED", |_, engine, _| denied(engine.rejections.as_ref())),
    Column::number(2, 6, "TOK/S", speed),
    Column::text(0, HISTORY, "HISTORY", |view, engine, width| {
        over_time(view.top.history.engine(&engine.id), width)
    }),
];

/// Of devices.
pub(super) const DEVICES: [Column<Device>; 7] = [
    Column::text(9, (3, 6), "GPU", |view, device, _| view.names.index(&device.uuid).into()),
    Column::text(2, (12, 40), "NAME", |_, device, width| fitted(&device.name, width).into()),
    Column::text(1, (BAR + 2, BAR + 2), "MEMORY", memory),
    Column::number(8, 9, "FREE", free),
    Column::number(7, 5, "BUSY", |_, device, _| {
        or_unknown_short(device.utilisation_percent, |busy| format!("{busy} %")).into()
    }),
    Column::text(6, (14, 60), "ENGINES", |_, device, width| fitted(&device.engines.join(" "), width).into()),
    Column::text(0, HISTORY, "HISTORY", |view, device, width| {
        over_time(view.top.history.device(&device.uuid), width)
    }),
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

fn state(view: View<'_>, engine: &Engine, _: usize) -> Text<'static> {
    let colour = match engine.state() {
        EngineState::Ready => Color::Green,
        EngineState::Down | EngineState::Stalled => Color::Red,
        _ => Color::Yellow,
    };
    let style = if view.top.colour { Style::new().fg(colour) } else { Style::new() };
    Text::styled(fitted(&state_word(engine.state), 8), style)
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

fn room(_: View<'_>, engine: &Engine, _: usize) -> Text<'static> {
    or_unknown_short(engine.headroom.as_ref(), |room| count(room.tokens)).into()
}

fn denied(rejections: Option<&Rejections>) -> Text<'static> {
    let decided = rejections.filter(|rejections| rejections.decided > 0);
    or_unknown_short(decided, |rejections| percent(rejections.denied, rejections.decided)).into()
}

fn speed(_: View<'_>, engine: &Engine, _: usize) -> Text<'static> {
    or_unknown_short(engine.tokens_per_second_per_request, rate).into()
}

fn memory(_: View<'_>, device: &Device, _: usize) -> Text<'static> {
    let used = device
        .memory
        .as_ref()
        .and_then(|memory| share(memory.total_bytes.saturating_sub(memory.free_bytes), memory.total_bytes));
    drawn(used).into()
}

fn free(_: View<'_>, device: &Device, _: usize) -> Text<'static> {
    or_unknown_short(device.memory.as_ref(), |memory| bytes(memory.free_bytes)).into()
}

fn over_time(values: Option<&Values>, width: usize) -> Text<'static> {
    values.map_or_else(String::new, |values| spark(values, width, Some(1.0))).into()
}
