//! The screen: decisions, engines, devices, events, keys, in as much of it as there is room.

use std::time::Instant;

use gpuadmit_client::v1::{Event, Severity, StatusResponse};
use ratatui::{
    Frame,
    layout::{Constraint, Flex, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table},
};

use super::{
    Top,
    spark::spark,
    tables::{Column, DEVICES, ENGINES, View, fitting, sorted},
};
use crate::render::{Canvas, Names, Paint, count, duration, event::brief, or_unknown, rate, safe};

/// Lines that events get at least, their title included, and the height below which one less has to do.
const LEAST_EVENTS: u16 = 3;
const LOW: u16 = 16;
/// Lines at the top and for the keys.
const FIXED: u16 = 3;
/// Columns of the sparkline of decisions, at most.
const MOST_SPARK: usize = 60;

impl Top {
    /// Draws all of it as of `now`.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let Some((_, status)) = &self.last else {
            frame.render_widget(
                Paragraph::new(self.banner(now).unwrap_or_else(|| "asking the daemon …".into())),
                frame.area(),
            );
            return;
        };
        let area = frame.area();
        let least = if area.height < LOW { LEAST_EVENTS - 1 } else { LEAST_EVENTS };
        let room = area.height.saturating_sub(FIXED + least);
        let engines = rows(status.engines.len()).min(room);
        let devices = rows(status.devices.len()).min(room.saturating_sub(engines));
        let parts = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(engines),
            Constraint::Length(devices),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [head, engine_area, device_area, events, keys] = parts.areas(area);
        self.head(frame, head, status, now);
        let names = Names::of(&status.devices);
        self.table(frame, engine_area, &ENGINES, &names, &sorted(&status.engines, self.sort));
        self.table(frame, device_area, &DEVICES, &names, &status.devices.iter().collect::<Vec<_>>());
        self.events(frame, events, &names, &status.events);
        let text = format!("q quit  s sort ({})  up/down events", self.sort.as_str());
        frame.render_widget(Paragraph::new(text).style(self.bold()), keys);
    }

    /// Why the rest is old.
    fn banner(&self, now: Instant) -> Option<Line<'static>> {
        let problem = self.problem.as_ref()?;
        let since = self.silent_for(now).map_or_else(String::new, |silent| {
            format!(" (below: {} ago)", duration(u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)))
        });
        Some(Line::styled(format!("not connected, trying{since}: {}", safe(problem)), self.alarm()))
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, status: &StatusResponse, now: Instant) {
        let first = self.banner(now).unwrap_or_else(|| {
            let simulated = if status.simulated { "SIMULATED  " } else { "" };
            let fields = [
                format!("gpuadmitd {}", safe(&status.version)),
                format!("up {}", duration(status.uptime_ms)),
                format!(
                    "{} of {} reservations",
                    count(status.reservations),
                    count(status.reservations_limit)
                ),
            ];
            // Those that fit.
            let room = usize::from(area.width).saturating_sub(simulated.len());
            let fitting = Canvas::new(Paint::Plain, room).flow("", "  ", &fields);
            let fields = fitting.lines().next().unwrap_or_default().to_owned();
            Line::from(vec![Span::styled(simulated, self.alarm()), Span::raw(fields)])
        });
        let rate_of = |value: Option<f64>| or_unknown(value, rate);
        let last = self.history.rate();
        let text = format!(
            "decisions/s: {} admitted, {} denied ",
            rate_of(last.map(|rate| rate.admitted)),
            rate_of(last.map(|rate| rate.denied)),
        );
        let left = usize::from(area.width).saturating_sub(text.chars().count()).min(MOST_SPARK);
        let second = text + &spark(self.history.decisions(), left, None);
        frame.render_widget(Paragraph::new(vec![first, Line::raw(second)]), area);
    }

    fn table<T>(&self, frame: &mut Frame<'_>, area: Rect, columns: &[Column<T>], names: &Names, rows: &[&T]) {
        let view = View { top: self, names };
        let shown = fitting(columns, view, rows, area.width.into());
        let cells = |row: &&T| {
            let cells = shown.iter().map(|(column, width)| {
                let text = (column.cell)(view, row, *width);
                Cell::from(if column.right { text.right_aligned() } else { text })
            });
            Row::new(cells.collect::<Vec<_>>())
        };
        let title = |(column, _): &(&Column<T>, usize)| {
            let line = Line::raw(column.title);
            Cell::from(if column.right { line.right_aligned() } else { line })
        };
        // The last row says how many there was no room for.
        let most = usize::from(area.height.saturating_sub(1));
        let hidden = if rows.len() > most { rows.len() - most.saturating_sub(1) } else { 0 };
        let body = rows.iter().take(rows.len() - hidden).map(cells);
        let more = (hidden > 0).then(|| Row::new([Cell::from(format!("… {hidden} more"))]));
        let widths =
            shown.iter().map(|(_, width)| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
        let header = Row::new(shown.iter().map(title).collect::<Vec<_>>()).style(self.bold());
        let table = Table::new(body.chain(more), widths.collect::<Vec<_>>());
        // What is left belongs to the last column.
        frame.render_widget(table.header(header).flex(Flex::Start), area);
    }

    /// As many of the newest as there is room for, the last of them below; each on as many lines as it needs.
    fn events(&self, frame: &mut Frame<'_>, area: Rect, names: &Names, events: &[Event]) {
        let title = match self.skipped {
            0 => "EVENTS".to_owned(),
            skipped => format!("EVENTS ({skipped} newer below)"),
        };
        let room = usize::from(area.height.saturating_sub(1));
        let canvas = Canvas::new(Paint::Plain, area.width.into());
        let mut lines: Vec<Line<'_>> = Vec::new();
        for event in events.iter().rev().skip(self.skipped) {
            let text = brief(event, names, canvas);
            let of_one: Vec<_> =
                text.lines().map(|line| Line::styled(line.to_owned(), self.style(event))).collect();
            // The newest is there at any rate, as far as it goes.
            if !lines.is_empty() && lines.len() + of_one.len() > room {
                break;
            }
            lines.splice(0..0, of_one);
        }
        lines.truncate(room);
        lines.insert(0, Line::styled(title, self.bold()));
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn style(&self, event: &Event) -> Style {
        match event.severity() {
            Severity::Critical => self.alarm(),
            Severity::Warning if self.colour => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// What must be seen, with colour or without.
    fn alarm(&self) -> Style {
        let style = self.bold();
        if self.colour { style.fg(Color::Red) } else { style }
    }

    const fn bold(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Lines of a table of so many rows: title, rows, and one blank; none without rows.
fn rows(count: usize) -> u16 {
    match u16::try_from(count) {
        Ok(0) => 0,
        Ok(count) => count.saturating_add(2),
        Err(_) => u16::MAX,
    }
}
