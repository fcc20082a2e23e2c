//! Switches for what the core learns, so that an evaluation can tell what each part is worth.

macro_rules! parts {
    ($($(#[$doc:meta])* $field:ident, $name:literal;)*) => {
        /// Which learned parts are in use: all by default. One that is off has its neutral value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Parts {
            $($(#[$doc])* pub $field: bool,)*
        }

        impl Default for Parts {
            fn default() -> Self {
                Self { $($field: true),* }
            }
        }

        impl Parts {
            /// Names of the parts, as [`Parts::without`] takes them.
            pub const NAMES: &[&'static str] = &[$($name),*];

            /// The same without the part of this name; `None`: there is no such part.
            #[must_use]
            pub fn without(mut self, name: &str) -> Option<Self> {
                match name {
                    $($name => self.$field = false,)*
                    _ => return None,
                }
                Some(self)
            }
        }
    };
}

parts! {
    /// Requests per second that bypass admission. Off: none are expected.
    bypass_per_second, "bypass-per-second";
    /// Requests that bypass admission for each one that asks. Off: only those per second are expected.
    bypass_per_ask, "bypass-per-ask";
    /// Prompt length of requests that bypass admission. Off: as long as all others.
    bypass_prompt, "bypass-prompt";
    /// Share of requests that bypass admission. Off: none.
    bypass_share, "bypass-share";
    /// Long-run use of the pool by requests that bypass admission. Off: it stays as the last reading shows it.
    bypass_use, "bypass-use";
    /// Caution by the preemptions that happened. Off: the accepted risk alone decides.
    caution, "caution";
    /// Room kept for callers that were told to come back. Off: none.
    expected_back, "expected-back";
    /// Factor of Retry-After by who was admitted on return. Off: 1.
    retry_after, "retry-after";
    /// Whether the pool was written over since a session was last here. Off: its prefix is always in the cache.
    written_over, "written-over";
    /// Share of prompt tokens found in the prefix cache. Off: none.
    cached_share, "cached-share";
    /// Margin of the time to first token. Off: its first value.
    ttft_margin, "ttft-margin";
    /// Cost of a prompt token by the tokens before it. Off: the cost per token alone.
    cost_per_pair, "cost-per-pair";
    /// Blocks in use for each one that is reckoned. Off: 1.
    block_weight, "block-weight";
    /// Band of the published estimate. Off: what can have changed since the reading.
    band, "band";
    /// Band of the estimate that decisions rest on. Off: what can have changed since the reading.
    decision_band, "decision-band";
    /// Output lengths. Off: what is assumed before anything is known.
    lengths, "lengths";
    /// Output lengths by class of request. Off: those of the model.
    lengths_by_class, "lengths-by-class";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_switches_one_part_off() {
        let all = Parts::default();
        let mut seen = vec![all];
        for name in Parts::NAMES {
            let without = all.without(name).unwrap();
            assert!(!seen.contains(&without), "{name}");
            seen.push(without);
        }
        assert_eq!(all.without("caution").map(|parts| (parts.caution, parts.band)), Some((false, true)));
        assert_eq!(all.without("nothing"), None);
    }
}
