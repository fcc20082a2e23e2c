//! What is shipped for Grafana and Prometheus asks for nothing that the endpoint does not have.

use std::{collections::BTreeSet, env, ffi::OsString, fs, process::Command};

use gpuadmit_tests::{served::Served, skip::skip};
use serde_json::{Value, json};

use super::{address, exported, page::Page, scrape};

const DASHBOARD: &str = include_str!("../../../systemd/prometheus/gpuadmit.dashboard.json");
const RULES: &str = include_str!("../../../systemd/prometheus/gpuadmit.rules.yml");
/// Metrics that Prometheus itself makes.
const PROMETHEUS_OWN: [&str; 2] = ["up", "ALERTS"];

/// Values of `key` anywhere in `value`.
fn all<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    match value {
        Value::Object(map) => {
            let here = map.get(key).and_then(Value::as_str);
            here.into_iter().chain(map.values().flat_map(|inner| all(inner, key))).collect()
        }
        Value::Array(list) => list.iter().flat_map(|inner| all(inner, key)).collect(),
        _ => Vec::new(),
    }
}

/// The metrics of `text` that are ours, by their names' beginning.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    words.filter(|word| word.starts_with("gpuadmit_") || word.starts_with("process_")).collect()
}

/// Whether the page has a metric, or a histogram that it is part of.
fn has(page: &Page, name: &str) -> bool {
    let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
    page.types.contains_key(name)
        || of_histogram.into_iter().any(|base| page.types.get(base).is_some_and(|kind| kind == "histogram"))
}

async fn empty_page() -> Page {
    let served = Served::start(exported());
    let page = scrape(address(&served.connection).await).await;
    served.stop().await;
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_the_rules_name_metrics_that_are_there() {
    let page = empty_page().await;
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let asked: Vec<&str> = ["expr", "definition"].into_iter().flat_map(|key| all(&dashboard, key)).collect();
    assert!(asked.len() > 30, "{} expressions", asked.len());
    let rules =
        RULES.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    for text in asked.iter().copied().chain([rules.as_str()]) {
        let names = named(text);
        let own =
            PROMETHEUS_OWN.iter().any(|own| text.starts_with(own) || text.contains(&format!("({own}{{")));
        assert!(!names.is_empty() || own, "asks for no metric: {text}");
        for name in names {
            assert!(has(&page, name), "there is no {name}: {text}");
        }
    }
    assert!(!has(&page, "gpuadmit_nothing"), "this test can fail");
}

#[test]
fn panels_lie_side_by_side_and_have_ids_of_their_own() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "twice: {}", panel["id"]);
        let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(of("x") + of("w") <= 24, "{}", panel["title"]);
        for cell in
            (of("x")..of("x") + of("w")).flat_map(|x| (of("y")..of("y") + of("h")).map(move |y| (x, y)))
        {
            assert!(cells.insert(cell), "{} covers another panel", panel["title"]);
        }
    }
}

/// By promtool, where there is one: as the rules of a file, after Grafana's variables have got values.
#[test]
fn the_expressions_of_the_dashboard_are_promql() {
    let promtool = env::var_os("PROMTOOL").unwrap_or_else(|| OsString::from("promtool"));
    if Command::new(&promtool).arg("--version").output().is_err() {
        return skip("no promtool: `make check-prometheus` fetches one and runs this");
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let rules: Vec<Value> = all(&dashboard, "expr")
        .into_iter()
        .enumerate()
        .map(|(number, expr)| {
            let expr = expr.replace("$__rate_interval", "1m").replace(['$'], "");
            json!({ "record": format!("panel:{number}"), "expr": expr })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    // JSON is YAML.
    let file = folder.path().join("expressions.yml");
    fs::write(&file, json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string()).unwrap();
    let checked = Command::new(&promtool).args(["check", "rules"]).arg(&file).output().unwrap();
    let told =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{told}");
    assert!(told.contains(&format!("SUCCESS: {} rules found", rules.len())), "{told}");
}
