//! Learned guards.

use gpuadmit_client::v1::Guard;

use super::{
    canvas::Canvas,
    engine::ID_COLUMNS,
    numbers::{count, duration},
    text::fitted,
};

/// All guards, a paragraph each.
pub(crate) fn guards(guards: &[Guard], canvas: Canvas) -> String {
    if guards.is_empty() {
        return "nothing is held back\n".into();
    }
    let paragraph = |guard: &Guard| {
        let [what, probe] = held_back(guard);
        canvas.flow("", "  ", &[fitted(&guard.engine, ID_COLUMNS), what, probe])
            + &canvas.flow(
                "  ",
                ", ",
                &[format!("{} deaths", count(guard.deaths.into())), fitted(&guard.configuration, 60)],
            )
    };
    guards.iter().map(paragraph).collect()
}

/// What one guard holds back and for how long.
pub(crate) fn held_back(guard: &Guard) -> [String; 2] {
    let (shortest, longest) = (count(guard.prompt_tokens_min), count(guard.prompt_tokens_max));
    [
        format!("prompts of {shortest} to {longest} tokens held back for {}", duration(guard.left_ms)),
        format!("one let through in {}", duration(guard.probe_in_ms)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_tells_whom_what_and_how_long() {
        let guard = Guard {
            engine: "vllm-8000".into(),
            prompt_tokens_min: 5_793,
            prompt_tokens_max: 8_191,
            deaths: 2,
            configuration: "vllm 0.32.0 model=m".into(),
            left_ms: 82_800_000,
            probe_in_ms: 7_200_000,
        };
        let text = guards(&[guard], Canvas::PLAIN);
        assert!(text.starts_with("vllm-8000  prompts of 5,793 to 8,191 tokens held back"), "{text}");
        assert!(text.contains("2 deaths, vllm 0.32.0 model=m"), "{text}");
        assert_eq!(guards(&[], Canvas::PLAIN), "nothing is held back\n");
    }
}
