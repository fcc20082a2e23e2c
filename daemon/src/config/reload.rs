//! What a running daemon takes over of a new configuration: all that decides and nothing that is wired up at start.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Config, Engine, Mode, Queue};

/// A new configuration, set against the running one.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The running configuration with all that can be changed in it.
    pub config: Config,
    /// Keys that are changed by it, with their tables.
    pub applied: Vec<String>,
    /// Keys that differ and wait for a restart.
    pub waiting: Vec<String>,
}

impl Config {
    /// What changes where `new` is loaded into a daemon that runs with `self`: `mode`, `[admission]`, `[class]`, depth
    /// and time of `[queue]`, tenants, and modes of engines.
    #[must_use]
    pub fn change_to(&self, new: &Self) -> Change {
        let config = Self {
            mode: new.mode,
            admission: new.admission.clone(),
            class: new.class.clone(),
            queue: Queue { waits_per_session: self.queue.waits_per_session, ..new.queue.clone() },
            tenant_default: new.tenant_default.clone(),
            tenant: new.tenant.clone(),
            engine: with_modes(&self.engine, &new.engine),
            ..self.clone()
        };
        Change { applied: differing(self, &config), waiting: differing(&config, new), config }
    }
}

/// The engines that run, with the modes that `new` gives them.
fn with_modes(running: &[Engine], new: &[Engine]) -> Vec<Engine> {
    let modes: BTreeMap<&str, Option<Mode>> = new.iter().map(|one| (one.id.as_str(), one.mode)).collect();
    let mode = |one: &Engine| modes.get(one.id.as_str()).copied().unwrap_or(one.mode);
    running.iter().map(|one| Engine { mode: mode(one), ..one.clone() }).collect()
}

/// Keys whose values differ, ascending.
fn differing(one: &Config, other: &Config) -> Vec<String> {
    let (one, other) = (flat(one), flat(other));
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    keys.into_iter().filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
}

/// Values by key, `table.key`; lists of tables whole.
fn flat(config: &Config) -> BTreeMap<String, Value> {
    // A configuration is made of nothing that JSON has not.
    let Ok(Value::Object(tables)) = serde_json::to_value(config) else { return BTreeMap::new() };
    let mut keys = BTreeMap::new();
    for (table, value) in tables {
        match value {
            Value::Object(values) => {
                keys.extend(values.into_iter().map(|(key, value)| (format!("{table}.{key}"), value)));
            }
            value => {
                keys.insert(table, value);
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn nothing_changes_by_the_same_file() {
        let config = Config::default();
        let change = config.change_to(&config);
        assert_eq!((change.applied.len(), change.waiting.len()), (0, 0));
    }

    #[test]
    fn what_decides_is_taken_over_and_the_rest_waits() {
        let new = parsed(
            "mode = \"observe\"\n[limits]\nreservations = 10\n[admission]\nceiling = 0.5\nlease_ms = 5000\n\
             [queue]\ndepth = 1\nwaits_per_session = 2\n[nvml]\nenabled = false\n[[tenant]]\nname = \"t\"\n",
        );
        let change = Config::default().change_to(&new);
        assert_eq!(
            change.applied,
            ["admission.ceiling", "admission.lease_ms", "mode", "queue.depth", "tenant"]
        );
        assert_eq!(change.waiting, ["limits.reservations", "nvml.enabled", "queue.waits_per_session"]);
        let settings = change.config.settings();
        assert_eq!((settings.ceiling, settings.queue_depth, settings.reservations), (0.5, 1, 4096));
        assert!(settings.tenants.contains_key("t") && change.config.nvml.enabled);
    }

    #[test]
    fn an_engines_mode_is_taken_over_and_its_address_waits() {
        let with = |rest: &str| parsed(&format!("[[engine]]\nid = \"e\"\n{rest}"));
        let running = with("address = \"http://127.0.0.1:1\"\n");
        let mode = running.change_to(&with("address = \"http://127.0.0.1:1\"\nmode = \"observe\"\n"));
        assert_eq!((mode.applied, mode.waiting), (vec!["engine".into()], vec![]));
        let both = running.change_to(&with("address = \"http://127.0.0.1:2\"\nmode = \"observe\"\n"));
        assert_eq!((both.applied, both.waiting), (vec!["engine".into()], vec!["engine".into()]));
        assert_eq!(both.config.engine[0].address, "http://127.0.0.1:1");
    }

    /// Every setting of the core is either taken over or waits: none is lost between the two.
    #[test]
    fn the_settings_that_result_are_those_of_the_new_file_but_for_what_waits() {
        let mut new = Config::default();
        new.admission.default_max_tokens = 7;
        new.class.pool_share_batch = 0.1;
        new.tenant_default.blocked = true;
        new.queue.time_ms = 9;
        let change = Config::default().change_to(&new);
        assert_eq!((change.config.settings(), change.waiting.len()), (new.settings(), 0));
    }
}
