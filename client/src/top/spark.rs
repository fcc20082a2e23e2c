//! Figures over time in one line.

use super::history::Values;

/// Eighths of a column, from the lowest on.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The newest `width` values on a scale from 0 to `most`, or to the largest of them; what is unknown is left blank.
pub(super) fn spark(values: &Values, width: usize, most: Option<f64>) -> String {
    let shown = || values.iter().skip(values.len().saturating_sub(width));
    let largest = shown().flatten().copied().fold(0.0, f64::max);
    let scale = most.unwrap_or(largest);
    let blank = std::iter::repeat_n(' ', width.saturating_sub(values.len()));
    blank.chain(shown().map(|value| value.map_or(' ', |value| level(value, scale)))).collect()
}

fn level(value: f64, scale: f64) -> char {
    let share = if scale > 0.0 { (value / scale).clamp(0.0, 1.0) } else { 0.0 };
    // Each level stands for an eighth of the scale.
    let index = (1..8_u8).take_while(|eighth| share * 8.0 > f64::from(*eighth)).count();
    LEVELS.get(index).copied().unwrap_or('█')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_drawn_by_eighths_and_gaps_are_blank() {
        let values: Values = [Some(0.0), Some(0.125), Some(0.5), None, Some(1.0)].into();
        assert_eq!(spark(&values, 7, Some(1.0)), "  ▁▁▄ █");
        assert_eq!(spark(&values, 3, Some(1.0)), "▄ █");
        assert_eq!(spark(&[Some(3.0), Some(12.0)].into(), 2, None), "▂█");
        assert_eq!(spark(&[Some(0.0)].into(), 2, None), " ▁");
    }
}
