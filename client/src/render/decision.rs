//! The answer to `admit`.

use gpuadmit_client::v1::{AdmitResponse, Admitted, Denied, PromptCount, admit_response::Result};

use super::{
    canvas::Canvas,
    engine,
    numbers::{age, count, counted, duration, or_unknown},
    paint::Mood,
    status::reason_word,
    text::safe,
};

/// The decision and what it rests on.
pub(crate) fn decision(response: &AdmitResponse, canvas: Canvas) -> String {
    let mut text = match &response.result {
        Some(Result::Admitted(admitted)) => yes(admitted, canvas),
        Some(Result::Denied(denied)) => no(denied, canvas),
        None => "the daemon answered neither yes nor no (is it newer than this command?)\n".to_owned(),
    };
    let how = match response.prompt_count() {
        PromptCount::Unspecified => "",
        PromptCount::Exact => " (exact)",
        PromptCount::Estimated => " (estimated)",
        PromptCount::Bounded => " (upper bound)",
    };
    let prompt = or_unknown(response.prompt_tokens, |tokens| counted(tokens, "token"));
    let fields = [format!("{prompt}{how}"), format!("engine's reading {}", age(response.data_age_ms))];
    text += &canvas.flow("  prompt    ", ", ", &fields);
    text + &canvas.flow("  headroom  ", ", ", &engine::headroom(response.headroom.as_ref()))
}

fn yes(admitted: &Admitted, canvas: Canvas) -> String {
    let word = canvas.text(Mood::Good, "admitted");
    let mut text = canvas.flow(
        "",
        " ",
        &[word, format!("to {}", safe(&admitted.engine)), format!("at {}", safe(&admitted.address))],
    );
    let held = [
        admitted.reservation_id.to_string(),
        format!("holds {}", counted(admitted.blocks_reserved, "block")),
        format!("lease {}", duration(admitted.lease_ms)),
    ];
    text += &canvas.flow("  reserved  ", ", ", &held);
    let mut forward = vec![
        admitted
            .max_tokens
            .map_or_else(|| "no max_tokens".to_owned(), |tokens| format!("max_tokens {}", count(tokens))),
    ];
    forward.extend(admitted.data_parallel_rank.map(|rank| format!("X-Data-Parallel-Rank: {rank}")));
    text += &canvas.flow("  forward   ", ", ", &forward);
    if let Some(reason) = admitted.observed_reason {
        text += &format!("  observe mode: enforce would have denied, {}\n", reason_word(reason));
    }
    text
}

fn no(denied: &Denied, canvas: Canvas) -> String {
    let word = canvas.text(Mood::Bad, "denied");
    let mut text = format!("{word} {}\n", reason_word(denied.reason));
    text += &canvas.sentence("  ", &denied.message);
    let retry = match (denied.retry_after_ms, denied.http_status) {
        (Some(ms), _) => format!("Retry-After: {} (room in {})", ms.div_ceil(1_000), duration(ms)),
        (None, 400 | 404 | 413) => "no retry: it can never succeed".to_owned(),
        (None, _) => "no Retry-After: when there will be room is unknown".to_owned(),
    };
    text += &canvas.flow("  answer    ", ", ", &[format!("HTTP {}", denied.http_status), retry]);
    if let Some(engine) = &denied.engine {
        text += &format!("  engine    {}\n", safe(engine));
    }
    text
}
