//! The future of one pool: how many blocks its requests will hold when each has generated so many tokens more.
//!
//! Every request holds its prompt and what it has generated, grows by a block every few tokens, and gives all back when
//! it ends. At what length it ends is random ([`crate::lengths`]), so its use at a future moment has a mean and a
//! variance, and those add up over requests. The moments are counted in tokens from now, for running requests advance
//! together, a token each per step. A request fits when at every moment the mean and some standard deviations stay below
//! the limit. (The idea of the future peak: Past-Future scheduler, arXiv 2507.10150; here without sampling, so that
//! adding a request costs a few dozen additions and the answer is the same at every replay.)

use libm::{exp, log};

use crate::{
    lengths::Survival,
    prompts::Prompts,
    units::{Blocks, Tokens, real},
};

/// Future moments, in tokens from now.
pub(crate) const MOMENTS: [u32; COUNT] = [
    0, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
    16384, 32768, 65536,
];
/// How many there are.
pub(crate) const COUNT: usize = 24;

/// What one request adds at each moment.
#[derive(Clone, Debug)]
pub(crate) struct Footprint {
    /// Mean, blocks.
    pub(crate) mean: [f32; COUNT],
    /// Variance, blocks².
    pub(crate) variance: [f32; COUNT],
}

impl Default for Footprint {
    fn default() -> Self {
        Self { mean: [0.0; COUNT], variance: [0.0; COUNT] }
    }
}

/// A request as the forecast sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(crate) prompts: Prompts,
    /// Generated so far, per sequence.
    pub(crate) generated: Tokens,
    /// It ends there at the latest, per sequence.
    pub(crate) most: Tokens,
    /// Sequences, of all prompts together.
    pub(crate) n: u32,
}

impl Footprint {
    /// Of a request whose output length is distributed as `survival` says.
    #[expect(clippy::cast_possible_truncation, reason = "f32 keeps a block count to one part in ten million")]
    pub(crate) fn of(outlook: &Outlook, survival: &Survival, block_size: u64) -> Self {
        let mut footprint = Self::default();
        let mut walk = survival.walk();
        let start = walk.at(real(outlook.generated.0));
        let slots = footprint.mean.iter_mut().zip(&mut footprint.variance);
        for (moment, (mean, variance)) in MOMENTS.iter().zip(slots) {
            let length = outlook.generated + Tokens(u64::from(*moment));
            if length >= outlook.most && *moment > 0 {
                // It may be a few tokens short of the moment: it is counted up to the one before.
                break;
            }
            let alive = exp(start - walk.at(real(length.0)));
            let (shared, own) = parts(outlook, length, block_size);
            let (n, prompts) = (f64::from(outlook.n), f64::from(outlook.prompts.count.max(1)));
            let samples = i32::try_from(outlook.prompts.samples(outlook.n)).unwrap_or(i32::MAX);
            let any = 1.0 - (1.0 - alive).powi(samples);
            *mean = (shared * prompts * any + own * n * alive) as f32;
            *variance = (own * own * n * alive * (1.0 - alive)
                + shared * shared * prompts * any * (1.0 - any)) as f32;
        }
        footprint
    }
}

/// Blocks that the sequences of one prompt share, and that each has of its own: the mean over the prompts.
fn parts(outlook: &Outlook, length: Tokens, block_size: u64) -> (f64, f64) {
    let Outlook { prompts, n, .. } = outlook;
    let shared = if prompts.samples(*n) > 1 { prompts.shared(block_size) } else { Blocks::ZERO };
    let own = prompts.each(length, block_size).saturating_sub(shared);
    let count = f64::from(prompts.count.max(1));
    (real(shared.0) / count, real(own.0) / count)
}

/// All requests of a pool together.
#[derive(Clone, Debug)]
pub(crate) struct Forecast {
    mean: [f64; COUNT],
    variance: [f64; COUNT],
}

impl Default for Forecast {
    fn default() -> Self {
        Self { mean: [0.0; COUNT], variance: [0.0; COUNT] }
    }
}

impl Forecast {
    /// Adds a request, or takes it off.
    pub(crate) fn change(&mut self, footprint: &Footprint, add: bool) {
        let sign = if add { 1.0 } else { -1.0 };
        for (sum, one) in self.mean.iter_mut().zip(&footprint.mean) {
            *sum += sign * f64::from(*one);
        }
        for (sum, one) in self.variance.iter_mut().zip(&footprint.variance) {
            *sum += sign * f64::from(*one);
        }
    }

    /// Adds another pool's requests.
    pub(crate) fn join(&mut self, other: &Self) {
        let pairs = self.mean.iter_mut().chain(&mut self.variance);
        for (sum, one) in pairs.zip(other.mean.iter().chain(&other.variance)) {
            *sum += one;
        }
    }

    /// The moment that is tightest with `also` added and `other` holding what the ledger does not know of.
    pub(crate) fn tightest(
        &self,
        also: Option<&Footprint>,
        weight: f64,
        other: &Other,
        sigmas: f64,
    ) -> Tightest {
        let [tightest] = self.tightest_each(also, weight, other, [sigmas]);
        tightest
    }

    /// The same for several numbers of standard deviations at once.
    pub(crate) fn tightest_each<const N: usize>(
        &self,
        also: Option<&Footprint>,
        weight: f64,
        other: &Other,
        sigmas: [f64; N],
    ) -> [Tightest; N] {
        let mut tightest = [Tightest::default(); N];
        for moment in 0..COUNT {
            let of = |array: &[f64; COUNT]| array.get(moment).copied().unwrap_or(0.0).max(0.0);
            let (mut mean, mut variance) = (of(&self.mean), of(&self.variance));
            if let Some(footprint) = also {
                mean += f64::from(footprint.mean.get(moment).copied().unwrap_or(0.0));
                variance += f64::from(footprint.variance.get(moment).copied().unwrap_or(0.0));
            }
            let (others, others_variance) = other.at(moment);
            let mean = mean * weight + others;
            let deviation = (variance * weight * weight + others_variance).sqrt();
            for (tightest, sigmas) in tightest.iter_mut().zip(sigmas) {
                let spread = sigmas * deviation;
                if mean + spread > tightest.mean + tightest.spread || moment == 0 {
                    *tightest = Tightest { moment, mean, spread };
                }
            }
        }
        tightest
    }
}

/// The tightest future moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tightest {
    /// Index into [`MOMENTS`].
    pub(crate) moment: usize,
    /// Expected use, blocks.
    pub(crate) mean: f64,
    /// Standard deviations kept free, blocks.
    pub(crate) spread: f64,
}

impl Tightest {
    /// When, in tokens from now.
    pub(crate) fn tokens(&self) -> Tokens {
        Tokens(MOMENTS.get(self.moment).copied().map_or(0, u64::from))
    }
}

/// Use that the ledger does not know of: traffic that bypasses admission. It starts from what is there now and goes to
/// its long-run mean, for it will go on arriving, with the time constant of a request's life.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Other {
    /// Blocks now.
    pub(crate) now: f64,
    /// Blocks that what is there now grows by with each token.
    pub(crate) growth: f64,
    /// Long-run mean, blocks.
    pub(crate) mean: f64,
    /// Long-run variance, blocks².
    pub(crate) variance: f64,
    /// Variance of what we believe of the present, blocks².
    pub(crate) doubt: f64,
    /// Tokens that each request has generated since the reading.
    pub(crate) since: f64,
    /// How many times as many as usual came since.
    pub(crate) busier: f64,
    /// Tokens after which 1/e of what is there is left.
    pub(crate) life: f64,
}

impl Other {
    /// Blocks at the moment of asking.
    pub(crate) fn by_now(&self) -> f64 {
        self.at(0).0
    }

    fn at(&self, moment: usize) -> (f64, f64) {
        if self.now <= 0.0 && self.mean <= 0.0 && self.growth <= 0.0 {
            return (0.0, self.doubt);
        }
        let ahead = MOMENTS.get(moment).copied().map_or(0.0, f64::from);
        let tokens = ahead + self.since;
        let kept = |tokens: f64| exp(-tokens / self.life.max(1.0));
        let (left, doubted) = (kept(tokens), kept(ahead).powi(2));
        let usual = self.mean.max(0.0);
        let came = self.busier * (kept(ahead) - left) + (1.0 - kept(ahead));
        let mean = (self.now + self.growth * tokens) * left + usual * came;
        // Most of what is doubted of the present is what came by other ways; that ends, and what comes instead varies as it
        // always did. What is doubted of ours does not.
        (mean, self.doubt.max(self.doubt * doubted + self.variance * (1.0 - doubted)))
    }
}

/// How many standard deviations a normal variable exceeds with probability `chance` (0 to 0.5): Abramowitz & Stegun
/// 26.2.23, error below 4.5e-4. Infinite for 0.
pub(crate) fn sigmas(chance: f64) -> f64 {
    if chance <= 0.0 {
        return f64::INFINITY;
    }
    let t = (-2.0 * log(chance.min(0.5))).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    (t - numerator / denominator).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lengths::Counts;

    const BS: u64 = 16;

    /// Outputs end at exactly 100 tokens (bucket 96 to 128).
    fn at_100() -> Survival {
        let mut counts = Counts::default();
        for _ in 0..20_000 {
            counts.take(Tokens(100), false);
        }
        Survival::of_model(&counts)
    }

    fn outlook(prompt: u64, generated: u64, most: u64, n: u32) -> Outlook {
        Outlook { prompts: Tokens(prompt).into(), generated: Tokens(generated), most: Tokens(most), n }
    }

    #[test]
    fn a_request_holds_its_prompt_now_and_more_later_until_it_ends() {
        let footprint = Footprint::of(&outlook(160, 0, 4096, 1), &at_100(), BS);
        assert!((footprint.mean[0] - 10.0).abs() < 0.01); // 160 tokens
        assert!((footprint.mean[5] - 14.0).abs() < 0.2); // 224 tokens
        assert!(footprint.mean[9] < 0.1); // 256 tokens on: ended
        assert!(footprint.variance[5] < 5.0);
    }

    #[test]
    fn it_never_outlives_its_limit() {
        let footprint = Footprint::of(&outlook(160, 0, 64, 1), &Survival::prior(), BS);
        assert!(footprint.mean[4] > 0.0); // at 48
        assert_eq!(footprint.mean[5], 0.0); // at 64
    }

    #[test]
    fn sequences_share_the_prompt() {
        let footprint = Footprint::of(&outlook(161, 0, 4096, 4), &at_100(), BS);
        // 10 full blocks shared, one of its own each.
        assert!((footprint.mean[0] - 14.0).abs() < 0.01, "{}", footprint.mean[0]);
    }

    #[test]
    fn requests_add_up_and_can_be_taken_off() {
        let one = Footprint::of(&outlook(160, 0, 4096, 1), &at_100(), BS);
        let mut forecast = Forecast::default();
        forecast.change(&one, true);
        forecast.change(&one, true);
        let two = forecast.tightest(None, 1.0, &Other::default(), 0.0);
        let single = Forecast::default().tightest(Some(&one), 1.0, &Other::default(), 0.0);
        assert!((two.mean - 2.0 * single.mean).abs() < 1e-6);
        forecast.change(&one, false);
        forecast.change(&one, false);
        assert!(forecast.tightest(None, 1.0, &Other::default(), 3.0).mean.abs() < 1e-9);
    }

    #[test]
    fn the_peak_lies_where_growth_meets_the_end() {
        let one = Footprint::of(&outlook(160, 0, 4096, 1), &at_100(), BS);
        let peak = Forecast::default().tightest(Some(&one), 1.0, &Other::default(), 0.0);
        assert_eq!(peak.tokens(), Tokens(96)); // 256 tokens = 16 blocks, just before it ends
        assert!((peak.mean - 16.0).abs() < 0.5, "{}", peak.mean);
    }

    #[test]
    fn other_traffic_goes_to_its_mean() {
        let other = Other {
            now: 10.0,
            growth: 0.25,
            mean: 30.0,
            variance: 16.0,
            doubt: 0.0,
            since: 0.0,
            busier: 1.0,
            life: 100.0,
        };
        assert_eq!(other.at(0), (10.0, 0.0));
        let (mean, variance) = other.at(COUNT - 1);
        assert!((mean - 30.0).abs() < 1e-6 && (variance - 16.0).abs() < 1e-6);
        // A life later 1/e of what was there is left; of three times as many as usual 1 - 1/e.
        let later = Other { growth: 0.0, since: 100.0, busier: 3.0, ..other };
        let e = exp(-1.0);
        assert!((later.by_now() - (10.0 * e + 90.0 * (1.0 - e))).abs() < 1e-9);
    }

    #[test]
    fn sigmas_are_those_of_the_normal_distribution() {
        for (chance, expected) in [(0.5, 0.0), (0.1587, 1.0), (0.0228, 2.0), (0.00135, 3.0)] {
            assert!((sigmas(chance) - expected).abs() < 2e-3, "{chance}: {}", sigmas(chance));
        }
        assert_eq!(sigmas(0.0), f64::INFINITY);
    }
}
