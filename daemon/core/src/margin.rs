//! How much later than foreseen first tokens come.

use std::time::Duration;

/// What most of them kept to, as a multiple of the time foreseen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Margin(f64);

/// Before anything is known, and its bounds.
const MARGIN: f64 = 1.25;
const MARGINS: (f64, f64) = (1.05, 2.0);
/// Share of first tokens that may come later.
const LATE: f64 = 0.1;
/// How far one of them moves it.
const MARGIN_STEP: f64 = 0.05;
/// Shorter times tell of steps and the way to the engine.
const LEAST_FORESEEN: Duration = Duration::from_millis(500);

impl Default for Margin {
    fn default() -> Self {
        Self(MARGIN)
    }
}

impl Margin {
    /// A first token that was `foreseen` took `actual`.
    pub(crate) fn learn(&mut self, foreseen: Duration, actual: Duration) {
        if foreseen < LEAST_FORESEEN {
            return;
        }
        let late = actual.as_secs_f64() > foreseen.as_secs_f64() * self.0;
        let step = MARGIN_STEP * if late { 1.0 - LATE } else { -LATE };
        self.0 = (self.0 + step).clamp(MARGINS.0, MARGINS.1);
    }

    /// What it is wise to foresee.
    pub(crate) fn of(self, foreseen: Duration) -> Duration {
        foreseen.mul_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_comes_to_hold_for_nine_in_ten() {
        let (mut margin, mut late) = (Margin::default(), 0);
        for index in 0..1000_u32 {
            // Evenly from 0.8 to 1.8 times what was foreseen.
            let actual = Duration::from_secs_f64(0.8 + f64::from(index * 37 % 100) / 100.0);
            late += u32::from(actual > margin.of(Duration::from_secs(1)));
            margin.learn(Duration::from_secs(1), actual);
        }
        assert!((80..=120).contains(&late), "{late}");
        margin.learn(Duration::from_millis(100), Duration::from_secs(9));
    }
}
