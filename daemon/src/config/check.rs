//! The ranges. All problems are told at once, each with its key, its value, and what is allowed.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

use gpuadmit_core::request::{MAX_COUNT, MAX_MODEL_BYTES, MAX_NAME_BYTES};
use tracing_subscriber::EnvFilter;

use super::{Admission, Config, Engine, Kernel, Limits, Nvml, Records, Socket, State, Vllm};
use crate::source::vllm::address::Address;

/// Most `[[engine]]` entries.
const MAX_ENGINES: usize = 64;
/// Most models of one entry.
const MAX_MODELS: usize = 256;
/// Most uids or gids in a list.
const MAX_IDS: usize = 256;
/// `sun_path` of `sockaddr_un` has 108 bytes with its closing zero.
pub(super) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Most characters of a value, or of a line of the file, that an error shows.
const MAX_SHOWN: usize = 120;
const DAY_MS: u64 = 86_400_000;

/// One value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {value} is not allowed; {allowed}")]
pub struct Problem {
    /// Key with its table, `limits.connections`.
    pub key: String,
    /// What the file says, or its length where that is what is wrong.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

/// All of them, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// All problems at once.
    pub fn check(&self) -> Result<(), Problems> {
        let mut found = Found::default();
        found.socket(&self.socket);
        found.limits(&self.limits);
        found.admission(&self.admission);
        found.queue(&self.queue);
        found.class(&self.class);
        found.tenants(&self.tenant_default, &self.tenant);
        found.nvml(&self.nvml);
        found.vllm(&self.vllm);
        found.kernel(&self.kernel);
        found.state(&self.state);
        found.records(&self.records);
        found.engines(&self.engine);
        super::prometheus::check(&self.prometheus, &mut found);
        super::tokens::check(self, &mut found);
        found.unless(
            EnvFilter::try_new(&self.log.level).is_ok(),
            "log.level",
            &self.log.level,
            "error, warn, info, debug, trace, or directives like \"info,gpuadmitd::source=debug\"",
        );
        let journal = &self.log.journal_socket;
        found.unless(journal.is_absolute(), "log.journal_socket", journal, "an absolute path");
        if found.0.is_empty() { Ok(()) } else { Err(Problems(found.0)) }
    }
}

/// The problems found so far.
#[derive(Default)]
pub(super) struct Found(Vec<Problem>);

/// `text` with at most [`MAX_SHOWN`] characters.
pub(super) fn cut(text: String) -> String {
    if text.chars().count() <= MAX_SHOWN {
        text
    } else {
        text.chars().take(MAX_SHOWN).chain(['…']).collect()
    }
}

impl Found {
    /// Notes `value` of `key` unless it is fine. Debug escapes what a terminal would obey.
    pub(super) fn unless(&mut self, fine: bool, key: &str, value: impl fmt::Debug, allowed: &str) {
        if !fine {
            self.0.push(Problem {
                key: key.into(),
                value: cut(format!("{value:?}")),
                allowed: allowed.into(),
            });
        }
    }

    pub(super) fn range<T>(&mut self, key: &str, value: T, allowed: RangeInclusive<T>)
    where
        T: PartialOrd + fmt::Display + fmt::Debug + Copy,
    {
        let (low, high) = (*allowed.start(), *allowed.end());
        self.unless(allowed.contains(&value), key, value, &format!("{low} to {high}"));
    }

    fn socket(&mut self, socket: &Socket) {
        let path = socket.path.as_os_str();
        self.unless(
            socket.path.is_absolute() && path.len() <= MAX_SOCKET_PATH_BYTES,
            "socket.path",
            path,
            &format!("an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes"),
        );
        let octal = "octal permission bits, \"0600\" to \"0777\"";
        self.unless(socket.mode_bits().is_some_and(|bits| bits >= 0o600), "socket.mode", &socket.mode, octal);
        if let Some(group) = &socket.group {
            self.unless(!group.is_empty() && group.len() <= 32, "socket.group", group, "1 to 32 bytes");
        }
        let ids = format!("at most {MAX_IDS} of them");
        self.unless(
            socket.allowed_uids.len() <= MAX_IDS,
            "socket.allowed_uids",
            socket.allowed_uids.len(),
            &ids,
        );
        self.unless(
            socket.allowed_gids.len() <= MAX_IDS,
            "socket.allowed_gids",
            socket.allowed_gids.len(),
            &ids,
        );
    }

    fn kernel(&mut self, kernel: &Kernel) {
        if let Some(object) = &kernel.object {
            self.unless(object.is_absolute(), "kernel.object", object, "an absolute path");
        }
    }

    fn limits(&mut self, limits: &Limits) {
        self.range("limits.connections", limits.connections, 1..=4096);
        self.range("limits.streams_per_connection", limits.streams_per_connection, 1..=4096);
        self.range("limits.message_bytes", limits.message_bytes, 1024..=(64 << 20));
        let buffered = u64::from(limits.message_bytes)..=(1 << 34);
        let allowed = "limits.message_bytes to 17179869184";
        self.unless(
            buffered.contains(&limits.buffered_bytes),
            "limits.buffered_bytes",
            limits.buffered_bytes,
            allowed,
        );
        self.range("limits.header_bytes", limits.header_bytes, 1024..=(1 << 20));
        self.range("limits.idle_ms", limits.idle_ms, 100..=DAY_MS);
        self.range("limits.keepalive_ms", limits.keepalive_ms, 1_000..=DAY_MS);
        self.range("limits.reservations", limits.reservations, 1..=1_000_000);
        self.range("limits.snapshot_interval_ms", limits.snapshot_interval_ms, 10..=10_000);
        self.range("limits.workers", limits.workers, 1..=64);
    }

    fn admission(&mut self, admission: &Admission) {
        self.unless(
            admission.ceiling > 0.0 && admission.ceiling <= 1.0,
            "admission.ceiling",
            admission.ceiling,
            "more than 0, at most 1",
        );
        let risks = [
            ("admission.risk_interactive", admission.risk_interactive),
            ("admission.risk_standard", admission.risk_standard),
            ("admission.risk_batch", admission.risk_batch),
        ];
        for (key, risk) in risks {
            self.unless((0.0..=0.5).contains(&risk), key, risk, "0 to 0.5");
        }
        self.range("admission.default_max_tokens", admission.default_max_tokens, 1..=MAX_COUNT);
        if let Some(limit) = admission.max_tokens_limit {
            self.range("admission.max_tokens_limit", limit, 1..=MAX_COUNT);
        }
        self.range("admission.lease_ms", admission.lease_ms, 1_000..=DAY_MS);
        self.range("admission.orphan_cap_ms", admission.orphan_cap_ms, 1_000..=DAY_MS);
        self.range("admission.delivery_grace_ms", admission.delivery_grace_ms, 1..=60_000);
        self.range("admission.device_stale_ms", admission.device_stale_ms, 100..=600_000);
        let memory = 1 << 20..=1 << 40;
        self.range("admission.co_tenant_growth_bytes", admission.co_tenant_growth_bytes, memory.clone());
        self.range("admission.device_floor_bytes", admission.device_floor_bytes, memory);
    }

    fn nvml(&mut self, nvml: &Nvml) {
        let library = nvml.library.as_os_str();
        let bare_name = nvml.library.components().count() == 1;
        self.unless(
            !library.is_empty() && (bare_name || nvml.library.is_absolute()),
            "nvml.library",
            library,
            "a library name, or an absolute path",
        );
        self.range("nvml.memory_interval_ms", nvml.memory_interval_ms, 10..=10_000);
        self.range("nvml.process_interval_ms", nvml.process_interval_ms, 100..=600_000);
        self.range("nvml.call_deadline_ms", nvml.call_deadline_ms, 10..=600_000);
    }

    fn vllm(&mut self, vllm: &Vllm) {
        let uids = vllm.discover_uids.len();
        self.unless(uids <= MAX_IDS, "vllm.discover_uids", uids, &format!("at most {MAX_IDS} of them"));
        self.range("vllm.discover_interval_ms", vllm.discover_interval_ms, 100..=60_000);
        self.unless(
            vllm.scrape_cpu_share > 0.0 && vllm.scrape_cpu_share <= 1.0,
            "vllm.scrape_cpu_share",
            vllm.scrape_cpu_share,
            "more than 0, at most 1",
        );
        self.range("vllm.scrape_interval_min_ms", vllm.scrape_interval_min_ms, 10..=60_000);
        let longest = "vllm.scrape_interval_min_ms to 60000";
        let range = vllm.scrape_interval_min_ms..=60_000;
        let max = vllm.scrape_interval_max_ms;
        self.unless(range.contains(&max), "vllm.scrape_interval_max_ms", max, longest);
        self.range("vllm.scrape_timeout_ms", vllm.scrape_timeout_ms, 100..=60_000);
    }

    fn state(&mut self, state: &State) {
        self.unless(state.path.is_absolute(), "state.path", &state.path, "an absolute path");
        self.range("state.interval_ms", state.interval_ms, 1_000..=DAY_MS);
    }

    fn records(&mut self, records: &Records) {
        self.unless(records.path.is_absolute(), "records.path", &records.path, "an absolute path");
        self.range("records.file_bytes", records.file_bytes, (1 << 16)..=(1 << 34));
        self.range("records.files", records.files, 2..=10_000);
    }

    fn engines(&mut self, engines: &[Engine]) {
        let most = format!("at most {MAX_ENGINES} entries");
        self.unless(engines.len() <= MAX_ENGINES, "engine", engines.len(), &most);
        let mut ids = BTreeSet::new();
        for (i, engine) in engines.iter().enumerate() {
            let at = |key: &str| format!("engine[{i}].{key}");
            self.name(&at("id"), &engine.id, MAX_NAME_BYTES);
            self.unless(ids.insert(&engine.id), &at("id"), &engine.id, "each id once");
            let allowed = "http://HOST:PORT or unix:/PATH";
            self.unless(Address::parse(&engine.address).is_ok(), &at("address"), &engine.address, allowed);
            let most = format!("at most {MAX_MODELS} names");
            self.unless(engine.models.len() <= MAX_MODELS, &at("models"), engine.models.len(), &most);
            for model in &engine.models {
                self.name(&at("models"), model, MAX_MODEL_BYTES);
            }
            if let Some(file) = &engine.api_key_file {
                self.unless(file.is_absolute(), &at("api_key_file"), file, "an absolute path");
            }
        }
    }

    pub(super) fn name(&mut self, key: &str, name: &str, most: usize) {
        let fine = (1..=most).contains(&name.len()) && !name.chars().any(char::is_control);
        self.unless(fine, key, name, &format!("1 to {most} bytes without control characters"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed() {
        assert_eq!(Config::default().check(), Ok(()));
    }

    #[test]
    fn a_long_value_is_cut_and_what_a_terminal_would_obey_is_escaped() {
        let mut config = Config::default();
        config.log.level = format!("=\u{1b}[2J{}", "x".repeat(5_000));
        let problem = config.check().unwrap_err().to_string();
        assert!(problem.starts_with("log.level: \"=\\u{1b}[2Jxxx"), "{problem}");
        assert!(problem.contains("xxx… is not allowed; error, warn,"), "{problem}");
        assert!(problem.chars().count() < 300, "{problem}");
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let mut config = Config::default();
        config.limits.connections = 0;
        config.admission.ceiling = f64::NAN;
        let problems = config.check().unwrap_err();
        assert_eq!(
            problems.to_string(),
            "limits.connections: 0 is not allowed; 1 to 4096\n\
             admission.ceiling: NaN is not allowed; more than 0, at most 1"
        );
    }
}
