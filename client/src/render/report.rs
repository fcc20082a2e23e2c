//! The report on one screen.

use gpuadmit_client::v1::{EngineReport, Fared, Mode, ReportHour, ReportResponse};

use super::{
    canvas::Canvas,
    engine::ID_COLUMNS,
    numbers::{count, counted, duration, percent},
    paint::Mood,
    status::reason_word,
    text::fitted,
};

/// What was decided in the last `hours` hours, and how the engines fared.
pub(crate) fn report(report: &ReportResponse, hours: u32, canvas: Canvas) -> String {
    let since = format!("the daemon was started {} ago", duration(report.uptime_ms));
    let mut text = canvas.flow("", ", ", &[format!("last {hours} hours"), since]);
    if report.engines.is_empty() {
        text += "no engine was found\n";
    }
    for one in &report.engines {
        text += "\n";
        text += &engine(one, canvas);
    }
    text
}

fn engine(report: &EngineReport, canvas: Canvas) -> String {
    let sum = |of: fn(&ReportHour) -> u64| report.hours.iter().map(of).fold(0, u64::saturating_add);
    let (admitted, denied) = (sum(|hour| hour.admitted), sum(|hour| hour.denied));
    let would = sum(|hour| hour.would_have_denied);
    let mode = match Mode::try_from(report.mode) {
        Ok(Mode::Enforce) => "enforce mode",
        Ok(Mode::Observe) => "observe mode",
        _ => "gone",
    };
    let name = canvas.text(Mood::Strong, &fitted(&report.engine, ID_COLUMNS));
    let mut fields = vec![format!("{} admitted", count(admitted)), format!("{} denied", count(denied))];
    if would > 0 {
        let share = percent(would, admitted.saturating_add(denied));
        fields.push(format!("{} ({share}) would have been denied", count(would)));
    }
    let mut text = canvas.flow("", ", ", &[format!("{name} {mode}")]) + &canvas.flow("  ", ", ", &fields);
    let reasons = by_reason(report);
    if reasons.is_empty() {
        text += &canvas.flow("  ", ", ", &["no denial was due".to_owned()]);
    } else {
        text += &canvas.flow("  for: ", ", ", &reasons);
    }
    let fared = |of: fn(&ReportHour) -> Option<Fared>| add_up(report.hours.iter().filter_map(of));
    let (pressed, calm) = (fared(|hour| hour.pressed), fared(|hour| hour.calm));
    text + &lived("while denials were due", pressed, canvas)
        + &lived("otherwise", calm, canvas)
        + &verdict(pressed, calm, canvas)
}

fn by_reason(report: &EngineReport) -> Vec<String> {
    let mut sums: Vec<(i32, u64)> = Vec::new();
    for one in report.hours.iter().flat_map(|hour| &hour.by_reason) {
        match sums.iter_mut().find(|(reason, _)| *reason == one.reason) {
            Some((_, sum)) => *sum = sum.saturating_add(one.count),
            None => sums.push((one.reason, one.count)),
        }
    }
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    sums.into_iter().map(|(reason, sum)| format!("{} {}", reason_word(reason), count(sum))).collect()
}

fn add_up(all: impl Iterator<Item = Fared>) -> Fared {
    all.fold(Fared::default(), |sum, one| Fared {
        time_ms: sum.time_ms.saturating_add(one.time_ms),
        queued_ms: sum.queued_ms.saturating_add(one.queued_ms),
        preemptions: sum.preemptions.saturating_add(one.preemptions),
    })
}

/// How the engine fared; nothing where nothing was read in that time.
fn lived(when: &str, fared: Fared, canvas: Canvas) -> String {
    if fared.time_ms == 0 {
        return String::new();
    }
    let queued = format!("requests queued in it {} of the time", percent(fared.queued_ms, fared.time_ms));
    let fields = [duration(fared.time_ms), counted(fared.preemptions, "preemption"), queued];
    canvas.flow(&format!("  {when}: "), ", ", &fields)
}

/// Where the engine's troubles lie.
fn verdict(pressed: Fared, calm: Fared, canvas: Canvas) -> String {
    let (time, queued) =
        (pressed.time_ms.saturating_add(calm.time_ms), pressed.queued_ms.saturating_add(calm.queued_ms));
    let preemptions = pressed.preemptions.saturating_add(calm.preemptions);
    if pressed.time_ms == 0 || (preemptions == 0 && queued == 0) {
        return String::new();
    }
    let mut troubles = Vec::new();
    if preemptions > 0 {
        troubles.push(format!("{} of its preemptions", percent(pressed.preemptions, preemptions)));
    }
    if queued > 0 {
        troubles.push(format!("{} of its queueing", percent(pressed.queued_ms, queued)));
    }
    let share = percent(pressed.time_ms, time);
    let words = format!("denials were due {share} of the time; {} fell into it", troubles.join(" and "));
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    canvas.flow("  ", " ", &words)
}

#[cfg(test)]
mod tests {
    use gpuadmit_client::v1::{ReasonCount, denied::Reason};

    use super::*;

    fn hour(full: u64, ttft: u64) -> ReportHour {
        let fared = |time_ms, queued_ms, preemptions| Some(Fared { time_ms, queued_ms, preemptions });
        let count = |reason: Reason, count| ReasonCount { reason: reason.into(), count };
        ReportHour {
            admitted: 1_000,
            would_have_denied: full + ttft,
            by_reason: vec![count(Reason::KvFull, full), count(Reason::Ttft, ttft)],
            pressed: fared(600_000, 240_000, 19),
            calm: fared(3_000_000, 60_000, 1),
            ..ReportHour::default()
        }
    }

    #[test]
    fn a_day_in_observe_mode_fits_a_screen() {
        let hours = vec![hour(30, 5), hour(10, 55)];
        let engines = vec![EngineReport { engine: "vllm-8000".into(), mode: Mode::Observe.into(), hours }];
        let text = report(&ReportResponse { engines, uptime_ms: 90_000_000 }, 24, Canvas::PLAIN);
        let expected = "\
last 24 hours, the daemon was started 1 d 1 h ago

vllm-8000 observe mode
  2,000 admitted, 0 denied, 100 (5 %) would have been denied
  for: TTFT 60, KV_FULL 40
  while denials were due: 20 min 0 s, 38 preemptions,
                          requests queued in it 40 % of the time
  otherwise: 1 h 40 min, 2 preemptions, requests queued in it 2 % of the time
  denials were due 17 % of the time; 95 % of its preemptions and 80 % of its
  queueing fell into it
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_engine_without_denials_says_so() {
        let quiet = ReportHour { admitted: 7, ..ReportHour::default() };
        let engine = EngineReport { engine: "e".into(), mode: Mode::Enforce.into(), hours: vec![quiet] };
        let text = report(&ReportResponse { engines: vec![engine], uptime_ms: 1 }, 1, Canvas::PLAIN);
        assert!(text.ends_with("e enforce mode\n  7 admitted, 0 denied\n  no denial was due\n"), "{text}");
    }
}
