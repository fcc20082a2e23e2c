//! Why decisions came out as they did.

use gpuadmit_client::v1::{DecisionRecord, PriorityClass, Terms};

use super::{
    canvas::Canvas,
    engine::ID_COLUMNS,
    numbers::{UNKNOWN, age, count, counted, date_and_time, or_unknown},
    paint::Mood,
    status::reason_word,
    text::fitted,
};

/// One decision with the sum that it rests on.
pub(crate) fn decision(record: &DecisionRecord, canvas: Canvas) -> String {
    let text = headline(record, canvas);
    match &record.terms {
        // The message tells the same sum.
        Some(terms) => {
            let forecast = forecast(terms).map(|line| canvas.sentence("  ", &line)).unwrap_or_default();
            text + &canvas.flow("  ", " ", &sum(terms)) + &forecast + &canvas.flow("  ", ", ", &basis(terms))
        }
        None => text + &canvas.sentence("  ", &record.message),
    }
}

fn headline(record: &DecisionRecord, canvas: Canvas) -> String {
    let verdict = match (record.denied, record.observed_reason) {
        (Some(reason), _) => canvas.text(Mood::Bad, &format!("denied {}", reason_word(reason))),
        (None, Some(reason)) => {
            canvas.text(Mood::Warning, &format!("admitted (observe: {})", reason_word(reason)))
        }
        (None, None) => canvas.text(Mood::Good, "admitted"),
    };
    let mut fields = vec![verdict];
    if let Some(id) = record.reservation_id {
        let state = record.reservation_state.as_deref().unwrap_or(UNKNOWN);
        fields.push(format!("{id} {}", fitted(state, 10)));
    }
    fields.push(format!("model {}", fitted(&record.model, 40)));
    fields.extend(record.engine.as_deref().map(|engine| format!("engine {}", fitted(engine, ID_COLUMNS))));
    fields.extend(record.tenant.as_deref().map(|tenant| format!("tenant {}", fitted(tenant, 40))));
    if let Ok(class @ (PriorityClass::Interactive | PriorityClass::Batch)) =
        PriorityClass::try_from(record.priority_class)
    {
        fields.push(class.as_str_name().trim_start_matches("PRIORITY_CLASS_").to_lowercase());
    }
    canvas.flow(&(date_and_time(record.unix_ms) + "  "), "  ", &fields)
}

/// `1,240 used + 300 growth + 70 need = 1,610 ≤ 4,095 blocks`; terms of zero are left out.
fn sum(terms: &Terms) -> Vec<String> {
    let changes = [
        ('+', terms.growth, "growth"),
        ('+', terms.unseen, "unseen"),
        ('-', terms.ended, "ended"),
        ('+', terms.bypass, "bypass"),
    ];
    let mut fields = vec![format!("{} used", or_unknown(terms.reported, count))];
    let changed = changes.iter().filter(|(_, blocks, _)| *blocks > 0);
    fields.extend(changed.map(|(sign, blocks, name)| format!("{sign} {} {name}", count(*blocks))));
    fields.push(format!("+ {} need", count(terms.need)));
    let total = terms.reported.map(|reported| total(terms, reported));
    fields.push(format!("= {}", or_unknown(total, count)));
    let limit = or_unknown(terms.limit, |limit| counted(limit, "block"));
    fields.push(match (total, terms.limit) {
        (Some(total), Some(limit_blocks)) if total <= limit_blocks => format!("≤ {limit}"),
        (Some(_), Some(_)) => format!("> {limit}"),
        _ => format!("(limit {limit})"),
    });
    fields
}

/// `forecast 1,400 + 120 kept free = 1,520 ≤ 4,095 blocks, in 96 tokens`.
fn forecast(terms: &Terms) -> Option<String> {
    let (mean, spread) = (terms.peak_mean?, terms.peak_spread?);
    let (peak, limit) = (mean.saturating_add(spread), terms.limit?);
    let sign = if peak <= limit { '≤' } else { '>' };
    let when = counted(terms.peak_in_tokens?, "token");
    let sum = format!("forecast {} + {} kept free = {}", count(mean), count(spread), count(peak));
    Some(format!("{sum} {sign} {}, in {when}", counted(limit, "block")))
}

fn total(terms: &Terms, reported: u64) -> u64 {
    [terms.growth, terms.unseen, terms.bypass, terms.need]
        .into_iter()
        .fold(reported, u64::saturating_add)
        .saturating_sub(terms.ended)
}

fn basis(terms: &Terms) -> [String; 4] {
    [
        format!("prompt {}", counted(terms.prompt_tokens, "token")),
        format!("output {}", counted(terms.output_tokens, "token")),
        format!("{} before", counted(terms.reservations, "reservation")),
        match terms.rank {
            0 => format!("reading {}", age(terms.age_ms)),
            rank => format!("reading of rank {rank} {}", age(terms.age_ms)),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(terms: Terms) -> DecisionRecord {
        DecisionRecord { model: "m".into(), terms: Some(terms), ..Default::default() }
    }

    /// 1240 + 300 - 10 + 5 + 70 = 1605, by hand.
    #[test]
    fn the_sum_stands_in_one_line_with_its_terms() {
        let terms = Terms {
            reported: Some(1240),
            growth: 300,
            ended: 10,
            bypass: 5,
            need: 70,
            limit: Some(4095),
            ..Default::default()
        };
        let line = "1,240 used + 300 growth - 10 ended + 5 bypass + 70 need = 1,605 ≤ 4,095 blocks\n";
        let text = decision(&record(terms), Canvas::PLAIN);
        assert!(text.contains(line), "{text}");
        let denied = Terms { limit: Some(1604), ..terms };
        assert!(decision(&record(denied), Canvas::PLAIN).contains("> 1,604 blocks"));
    }

    #[test]
    fn the_forecast_stands_below_the_worst_case() {
        let terms = Terms {
            reported: Some(50),
            limit: Some(100),
            peak_mean: Some(70),
            peak_spread: Some(20),
            peak_in_tokens: Some(96),
            ..Default::default()
        };
        let text = decision(&record(terms), Canvas::PLAIN);
        assert!(text.contains("forecast 70 + 20 kept free = 90 ≤ 100 blocks, in 96 tokens"), "{text}");
    }

    #[test]
    fn a_sum_without_a_reading_is_unknown() {
        let text = decision(&record(Terms { need: 70, ..Default::default() }), Canvas::PLAIN);
        assert!(text.contains("unknown used +"), "{text}");
        assert!(text.contains("= unknown (limit unknown)"), "{text}");
    }
}
