//! What a scenario may be.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

use super::{
    EngineSpec, Gpu, Incident, Length, MAX_ENGINES, MAX_GPUS, MAX_INCIDENTS, Scenario, ScenarioError, Traffic,
};

/// Longest time that may be asked for, seconds: a week.
const MAX_SECONDS: f64 = 604_800.0;
/// Largest memory, MiB: 4 TiB.
const MAX_MIB: u64 = 4 << 20;
/// Most tokens of anything.
const MAX_TOKENS: u64 = 10_000_000;
/// Longest name, bytes.
const MAX_NAME_BYTES: usize = 128;

type Checked = Result<(), ScenarioError>;

impl Scenario {
    pub(super) fn check(&self) -> Checked {
        within("the number of gpus", self.gpus.len(), 1..=MAX_GPUS)?;
        within("the number of engines", self.engines.len(), 1..=MAX_ENGINES)?;
        within("the number of incidents", self.incidents.len(), 0..=MAX_INCIDENTS)?;
        for (position, gpu) in self.gpus.iter().enumerate() {
            gpu.check(&format!("gpu[{position}]"))?;
        }
        let mut names = BTreeSet::new();
        for (position, engine) in self.engines.iter().enumerate() {
            let key = format!("engine[{position}]");
            engine.check(&key, self.gpus.len())?;
            if !names.insert(engine.name.as_str()) {
                return refuse(format!("{key}.name"), &engine.name, "each engine needs a name of its own");
            }
        }
        self.check_memory()?;
        self.traffic.check()?;
        for (position, incident) in self.incidents.iter().enumerate() {
            incident.check(&format!("incident[{position}]"), &names, self.gpus.len())?;
        }
        Ok(())
    }

    /// The engines of a GPU fit it.
    fn check_memory(&self) -> Checked {
        for (position, gpu) in self.gpus.iter().enumerate() {
            let room = gpu.memory_mib.saturating_sub(gpu.reserved_mib);
            let on_it = self.engines.iter().filter(|engine| engine.gpus.contains(&position));
            let taken: u64 = on_it.map(|engine| engine.memory_mib).sum();
            let key = format!("the sum of memory_mib of the engines on gpu[{position}]");
            within(&key, taken, 0..=room)?;
        }
        Ok(())
    }
}

impl Gpu {
    fn check(&self, key: &str) -> Checked {
        within(&format!("{key}.name, bytes"), self.name.len(), 1..=MAX_NAME_BYTES)?;
        within(&format!("{key}.memory_mib"), self.memory_mib, 1..=MAX_MIB)?;
        within(&format!("{key}.reserved_mib"), self.reserved_mib, 0..=self.memory_mib)
    }
}

impl EngineSpec {
    fn check(&self, key: &str, gpus: usize) -> Checked {
        let name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let model = |c: char| name(c) || "/:".contains(c);
        word(&format!("{key}.name"), &self.name, name, "letters, digits, and -_.")?;
        word(&format!("{key}.model"), &self.model, model, "letters, digits, and -_./:")?;
        within(&format!("the number of {key}.gpus"), self.gpus.len(), 1..=gpus)?;
        for gpu in &self.gpus {
            within(&format!("{key}.gpus"), *gpu, 0..=gpus - 1)?;
        }
        if self.gpus.iter().collect::<BTreeSet<_>>().len() < self.gpus.len() {
            return refuse(format!("{key}.gpus"), format_args!("{:?}", self.gpus), "each GPU once");
        }
        within(&format!("{key}.memory_mib"), self.memory_mib, 1..=MAX_MIB)?;
        within(&format!("{key}.block_size"), self.block_size, 1..=4096)?;
        within(&format!("{key}.blocks"), self.blocks, 2..=MAX_TOKENS)?;
        // As vLLM, which does not start with a pool in which one full window does not fit.
        let pool = ((self.blocks - 1) * self.block_size).min(MAX_TOKENS);
        within(&format!("{key}.max_model_len"), self.max_model_len, 2..=pool)?;
        within(&format!("{key}.max_num_seqs"), self.max_num_seqs, 1..=4096)?;
        within(&format!("{key}.max_num_batched_tokens"), self.max_num_batched_tokens, 1..=MAX_TOKENS)?;
        within(&format!("{key}.step_base_us"), self.step_base_us, 100..=10_000_000)?;
        within(&format!("{key}.step_per_sequence_us"), self.step_per_sequence_us, 0..=1_000_000)?;
        within(&format!("{key}.step_per_prefill_token_us"), self.step_per_prefill_token_us, 0..=1_000_000)?;
        within(&format!("{key}.step_jitter"), self.step_jitter, 0.0..=0.9)?;
        within(&format!("{key}.load_ms"), self.load_ms, 0..=3_600_000)
    }
}

impl Traffic {
    fn check(&self) -> Checked {
        within("traffic.requests_per_second", self.requests_per_second, 0.0..=1000.0)?;
        self.prompt_tokens.check("traffic.prompt_tokens")?;
        self.output_tokens.check("traffic.output_tokens")?;
        within("traffic.max_tokens", self.max_tokens, 1..=MAX_TOKENS)?;
        within("traffic.without_max_tokens", self.without_max_tokens, 0.0..=1.0)?;
        within("traffic.bypass", self.bypass, 0.0..=1.0)?;
        within("traffic.lost_completions", self.lost_completions, 0.0..=1.0)
    }
}

impl Length {
    fn check(self, key: &str) -> Checked {
        within(&format!("{key}.median"), self.median, 1..=MAX_TOKENS)?;
        within(&format!("{key}.p95"), self.p95, self.median..=MAX_TOKENS)?;
        within(&format!("{key}.max"), self.max, self.median..=MAX_TOKENS)
    }
}

impl Incident {
    fn check(&self, key: &str, engines: &BTreeSet<&str>, gpus: usize) -> Checked {
        let seconds = |name: &str, value: f64| within(&format!("{key}.{name}"), value, 0.0..=MAX_SECONDS);
        let known = |engine: &str| {
            if engines.contains(engine) {
                return Ok(());
            }
            refuse(format!("{key}.engine"), engine, format_args!("one of {engines:?}"))
        };
        let gpu = |gpu: usize| within(&format!("{key}.gpu"), gpu, 0..=gpus - 1);
        match self {
            Self::Stall { at_s, engine, for_s } | Self::Sleep { at_s, engine, for_s } => {
                seconds("at_s", *at_s)?;
                seconds("for_s", *for_s)?;
                known(engine)
            }
            Self::HostMemory { at_s, for_s, engine, share, .. } => {
                seconds("at_s", *at_s)?;
                seconds("for_s", *for_s)?;
                within(&format!("{key}.share"), *share, 0.0..=1.0)?;
                known(engine)
            }
            Self::StuckGauge { at_s, for_s, engine, usage } => {
                seconds("at_s", *at_s)?;
                seconds("for_s", *for_s)?;
                within(&format!("{key}.usage"), *usage, 0.0..=1.0)?;
                known(engine)
            }
            Self::OomScore { at_s, engine, to } => {
                seconds("at_s", *at_s)?;
                within(&format!("{key}.to"), *to, -1000..=1000)?;
                known(engine)
            }
            Self::FailedAllocation { at_s, engine, mib } => {
                seconds("at_s", *at_s)?;
                within(&format!("{key}.mib"), *mib, 1..=MAX_MIB)?;
                known(engine)
            }
            Self::Burst { at_s, for_s, requests_per_second } => {
                seconds("at_s", *at_s)?;
                seconds("for_s", *for_s)?;
                within(&format!("{key}.requests_per_second"), *requests_per_second, 0.0..=1000.0)
            }
            Self::Kill { at_s, engine, restart_after_s, .. } => {
                seconds("at_s", *at_s)?;
                seconds("restart_after_s", *restart_after_s)?;
                known(engine)
            }
            Self::CoTenant { at_s, gpu: on, mib_per_s, max_mib, hold_s } => {
                seconds("at_s", *at_s)?;
                seconds("hold_s", *hold_s)?;
                within(&format!("{key}.mib_per_s"), *mib_per_s, 0.001..=1e6)?;
                within(&format!("{key}.max_mib"), *max_mib, 1..=MAX_MIB)?;
                gpu(*on)
            }
            Self::NvmlHang { at_s, gpu: on, for_s } => {
                seconds("at_s", *at_s)?;
                seconds("for_s", *for_s)?;
                gpu(*on)
            }
            Self::Xid { at_s, gpu: on, code } => {
                seconds("at_s", *at_s)?;
                within(&format!("{key}.code"), *code, 1..=1000)?;
                gpu(*on)
            }
        }
    }
}

/// NaN is in no range.
fn within<T: PartialOrd + fmt::Display>(key: &str, value: T, range: RangeInclusive<T>) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    refuse(key.to_owned(), value, format_args!("{} to {} is", range.start(), range.end()))
}

fn word(key: &str, value: &str, allowed: impl Fn(char) -> bool, kind: &str) -> Checked {
    if (1..=MAX_NAME_BYTES).contains(&value.len()) && value.chars().all(allowed) {
        return Ok(());
    }
    refuse(key.to_owned(), format_args!("{value:?}"), format_args!("1 to {MAX_NAME_BYTES} of {kind}"))
}

fn refuse(key: String, value: impl fmt::Display, allowed: impl fmt::Display) -> Checked {
    Err(ScenarioError::OutOfRange { key, value: value.to_string(), allowed: allowed.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_and_an_empty_file_are_the_same_and_allowed() {
        assert_eq!(Scenario::parse("").unwrap(), Scenario::default());
    }

    #[test]
    fn the_example_shows_the_default_node_and_every_kind_of_incident() {
        let example = Scenario::parse(include_str!("../../../../systemd/examples/simulate.toml")).unwrap();
        assert_eq!(Scenario { incidents: Vec::new(), ..example.clone() }, Scenario::default());
        let kinds: Vec<_> = example.incidents.iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 11);
        assert!((1..kinds.len()).all(|index| !kinds[..index].contains(&kinds[index])));
    }

    #[test]
    fn an_error_names_the_key_the_value_and_what_is_allowed() {
        let cases = [
            ("[traffic]\nbypass = 1.5", "traffic.bypass = 1.5 is not allowed; 0 to 1 is"),
            ("[traffic]\nbypass = nan", "traffic.bypass = NaN is not allowed; 0 to 1 is"),
            ("[traffic]\nrate = 3", "unknown field `rate`"),
            ("colour = 1", "unknown field `colour`"),
            ("[[engine]]\nname='a'\ngpus=[2]", "engine[0].gpus = 2 is not allowed; 0 to 1 is"),
            ("[[engine]]\nname='a'\ngpus=[0,0]", "engine[0].gpus = [0, 0] is not allowed; each GPU once"),
            ("[[engine]]\nname='a b'\ngpus=[0]", "engine[0].name = \"a b\" is not allowed"),
            (
                "[[engine]]\nname='a'\ngpus=[0]\nblocks=10",
                "engine[0].max_model_len = 8192 is not allowed; 2 to 144",
            ),
            ("[[engine]]\nname='a'\ngpus=[0]\nblocks=1", "engine[0].blocks = 1 is not allowed; 2 to"),
            ("[[engine]]\ngpus=[0]", "missing field `name`"),
            (
                "[[engine]]\nname='a'\ngpus=[0]\n[[engine]]\nname='a'\ngpus=[1]",
                "engine[1].name = a is not allowed; each engine needs a name of its own",
            ),
            (
                "[[engine]]\nname='a'\ngpus=[0]\n[[engine]]\nname='b'\ngpus=[0]",
                "the sum of memory_mib of the engines on gpu[0] = 146806 is not allowed; 0 to 81008 is",
            ),
            ("[[gpu]]\nmemory_mib = 0", "gpu[0].memory_mib = 0 is not allowed; 1 to 4194304 is"),
            (
                "[[incident]]\nkind='stall'\nat_s=1\nengine='x'\nfor_s=1",
                "incident[0].engine = x is not allowed; one of {\"sim-0\", \"sim-1\"}",
            ),
            (
                "[[incident]]\nkind='stall'\nat_s=-1\nengine='sim-0'\nfor_s=1",
                "incident[0].at_s = -1 is not allowed; 0 to 604800 is",
            ),
            ("[[incident]]\nkind='flood'\nat_s=1", "unknown variant `flood`"),
            ("[[incident]]\nkind='xid'\nat_s=1\ngpu=0\ncode=79\nfor_s=1", "unknown field `for_s`"),
            ("seed = ", "seed"),
        ];
        for (text, expected) in cases {
            let error = Scenario::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?} gave {error:?}, not {expected:?}");
        }
    }
}
