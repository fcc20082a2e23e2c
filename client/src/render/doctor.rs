//! Findings, as text and as JSON.

use serde_json::{Value, json};

use super::{canvas::Canvas, paint::Mood, text::safe};
use crate::doctor::{Finding, Level};

/// Findings from `least` on, each with what mends it, and how many there were of each kind.
pub(crate) fn findings(findings: &[Finding], least: Level, canvas: Canvas) -> String {
    let shown = findings.iter().filter(|finding| finding.level >= least);
    let mut text: String = shown.map(|finding| one(finding, canvas)).collect();
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let counts = [Level::Error, Level::Warning, Level::Note, Level::Ok]
        .map(|level| (count(level), level))
        .map(|(number, level)| match level {
            Level::Error | Level::Warning | Level::Note if number != 1 => {
                format!("{number} {}s", level.as_str())
            }
            _ => format!("{number} {}", level.as_str()),
        });
    text += &format!("{}\n", counts.join(", "));
    text
}

fn one(finding: &Finding, canvas: Canvas) -> String {
    let level = canvas.text(mood(finding.level), &format!("{:<7}", finding.level.as_str()));
    let mut text = canvas.sentence(&format!("{level}  {:<18}  ", finding.check), &finding.text);
    if let Some(remedy) = &finding.remedy {
        // In one line whatever its length, so that it can be copied.
        text += &format!("         -> {}\n", safe(remedy));
    }
    text
}

const fn mood(level: Level) -> Mood {
    match level {
        Level::Ok => Mood::Good,
        Level::Note => Mood::Neutral,
        Level::Warning => Mood::Warning,
        Level::Error => Mood::Bad,
    }
}

/// All of them, for a program.
pub(crate) fn json(findings: &[Finding]) -> Value {
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    let checks = findings.iter().map(|finding| {
        json!({
            "check": finding.check,
            "level": finding.level.as_str(),
            "text": finding.text,
            "remedy": finding.remedy,
        })
    });
    json!({ "level": worst.as_str(), "checks": checks.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_their_remedy_below_and_those_that_are_well_may_be_left_out() {
        let finding = |level, remedy: Option<&str>| Finding {
            check: "driver.module",
            level,
            text: "the nvidia module is not loaded: no engine can use a GPU, and no memory is watched".into(),
            remedy: remedy.map(Into::into),
        };
        let all = [finding(Level::Error, Some("modprobe nvidia")), finding(Level::Ok, None)];
        let text = findings(&all, Level::Note, Canvas::PLAIN);
        let expected = "error    driver.module       the nvidia module is not loaded: no engine can use
                             a GPU, and no memory is watched
         -> modprobe nvidia
1 error, 0 warnings, 0 notes, 1 ok
";
        assert_eq!(text, expected);
        assert_eq!(json(&all)["level"], "error");
        assert_eq!(json(&all)["checks"][1]["remedy"], Value::Null);
    }
}
