//! How many tokens requests of unknown length will hold.

/// Output lengths of a family of requests.
pub(super) struct Lengths {
    /// Ascending.
    sorted: Vec<u64>,
}

/// A request whose length is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growing {
    /// Steps from now until it starts.
    pub(super) start: u64,
    pub(super) prompt: u64,
    pub(super) generated: u64,
    pub(super) max_tokens: u64,
    /// Whether it is there, rather than one of those that come at random.
    pub(super) certain: bool,
}

/// Moments of the tokens that requests hold together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// Requests that are there, on average.
    pub(super) count: f64,
}

impl Lengths {
    pub(super) fn new(mut lengths: Vec<u64>) -> Self {
        lengths.sort_unstable();
        Self { sorted: lengths }
    }

    /// How many outputs are longer than `tokens`.
    fn longer(&self, tokens: u64) -> usize {
        self.sorted.len() - self.sorted.partition_point(|length| *length <= tokens)
    }

    /// The output that this share of those longer than `generated` does not exceed; `generated + 1` where none is longer.
    pub(super) fn quantile(&self, generated: u64, share: f64) -> u64 {
        let longer = &self.sorted[self.sorted.len() - self.longer(generated)..];
        longer.get((share * longer.len() as f64) as usize).copied().unwrap_or(generated + 1)
    }

    /// Chance that a request which has generated so many tokens has not ended `steps` later.
    fn survives(&self, request: &Growing, steps: u64) -> f64 {
        let then = request.generated + steps;
        if then >= request.max_tokens {
            return 0.0;
        }
        let now = self.longer(request.generated);
        if now == 0 { f64::from(u8::from(steps == 0)) } else { self.longer(then) as f64 / now as f64 }
    }

    /// What `requests` hold `step` steps from now. Lengths and arrivals are independent.
    pub(super) fn held(&self, requests: &[Growing], step: u64) -> Held {
        let mut held = Held::default();
        for request in requests.iter().filter(|request| request.start <= step) {
            let steps = step - request.start;
            let chance = self.survives(request, steps);
            let tokens = (request.prompt + request.generated + steps) as f64;
            held.mean += chance * tokens;
            // Of Poisson arrivals the number varies as well.
            let spread = if request.certain { chance * (1.0 - chance) } else { chance };
            held.variance += spread * tokens * tokens;
            held.count += chance;
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_independent_ends() {
        let lengths = Lengths::new(vec![10, 20, 30, 40]);
        let one = Growing { start: 0, prompt: 100, generated: 0, max_tokens: 1000, certain: true };
        // 15 steps from now one of four has ended.
        let held = lengths.held(&[one, one], 15);
        assert_eq!(held.mean, 2.0 * 0.75 * 115.0);
        assert_eq!(held.variance, 2.0 * 0.75 * 0.25 * 115.0 * 115.0);
        let perhaps = Growing { certain: false, ..one };
        assert_eq!(lengths.held(&[perhaps], 15).variance, 0.75 * 115.0 * 115.0);
        // One that has generated 25 is one of the two longest.
        let old = Growing { generated: 25, ..one };
        assert_eq!(lengths.held(&[old], 10).mean, 0.5 * 135.0);
        assert_eq!(lengths.held(&[Growing { max_tokens: 30, ..old }], 10).mean, 0.0);
        assert_eq!(lengths.quantile(25, 0.4), 30);
        assert_eq!(lengths.quantile(40, 0.4), 41);
    }
}
