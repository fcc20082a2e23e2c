//! A mean and how far chance may have moved it.

/// A mean with its 95 % confidence interval, by Student's t distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) mean: f64,
    /// Half its width.
    pub(super) around: f64,
}

/// Quantiles of Student's t at 97.5 % for 1 to 30 degrees of freedom, and for more.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
const MORE: f64 = 1.96;

impl Interval {
    /// Of at least two values.
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = STUDENT.get(values.len().saturating_sub(2)).copied().unwrap_or(MORE);
        Self { mean, around: student * (square / count).sqrt() }
    }

    /// Below zero by more than chance.
    pub(super) fn worse(&self) -> bool {
        self.mean + self.around < 0.0
    }

    /// Above zero by more than chance.
    pub(super) fn better(&self) -> bool {
        self.mean - self.around > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_draws_have_three_degrees_of_freedom() {
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0]);
        // Standard deviation √(5/3), its error half of that.
        assert!((interval.mean - 2.5).abs() < 1e-9);
        assert!((interval.around - 3.182 * (5.0_f64 / 3.0).sqrt() / 2.0).abs() < 1e-9);
        assert!(interval.better() == (interval.around < 2.5) && !interval.worse());
        assert!(Interval::of(&[-1.0, -1.1, -0.9, -1.0]).worse());
    }
}
