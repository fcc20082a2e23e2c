//! The manual pages that are written by hand say what the programs do: every key, option and kind of event is there.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, its helpers included"
)]

use std::{fs, path::PathBuf, process::Command};

use clap::CommandFactory as _;
use gpuadmit_core::event::EventKind;
use gpuadmit_tests::skip::skip;
use gpuadmitd::{args::Args, config::Config};

const SHIPPED: &str = include_str!("../../systemd/gpuadmit.toml");
/// Values that are out of most ranges.
const PROBES: [&str; 9] =
    ["0", "4294967295", "9223372036854775807", "-1", "-1.0", "1e300", "\"\"", "\"x\"", "\"\\u0001\""];

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/man"))
}

/// A page as text: characters for their escapes.
fn page(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap().replace("\\-", "-").replace("\\(dq", "\"")
}

/// Section, name and value of each key in the shipped file; those of examples too.
fn keys() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut section = "";
    let mut keys = Vec::new();
    for line in SHIPPED.lines() {
        let bare = line.trim_start_matches('#');
        if bare.starts_with('[') && bare.ends_with(']') {
            section = bare;
        } else if let Some((key, value)) = bare.split_once(" = ").filter(|(key, _)| is_key(line, key)) {
            keys.push((section, key, value));
        }
    }
    keys
}

fn is_key(line: &str, name: &str) -> bool {
    line.starts_with('#') && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Whether the key has a default.
fn has_default(section: &str, key: &str) -> bool {
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    let table = section.trim_matches(['[', ']']);
    let table = if table.is_empty() { Some(&defaults) } else { defaults.get(table).unwrap().as_table() };
    table.is_some_and(|table| table.contains_key(key))
}

/// What the page says of the key, in one line and small letters.
fn entry(page: &str, section: &str, key: &str, value: &str) -> String {
    let head = match section {
        _ if section.starts_with("[[") => format!(".TP\n\\fB{key}\\fR\n"),
        _ if has_default(section, key) => format!(".TP\n\\fB{key}\\fR = {value}\n"),
        _ => format!(".TP\n\\fB{key}\\fR (not set)\n"),
    };
    let begin = if section.is_empty() { ".SH KEYS\n".into() } else { format!(".SS {section}\n") };
    let missing = format!("systemd/man/gpuadmit.toml.5 lacks, below {begin:?}: {head:?}");
    let (_, rest) = page.split_once(&begin).expect(&missing);
    let keys = rest.split(".SS ").next().unwrap();
    let (_, rest) = keys.split_once(&head).expect(&missing);
    let text = rest.split(".TP\n").next().unwrap();
    assert!(text.trim().len() > 5, "{section} {key} is not described");
    text.replace('\n', " ").to_lowercase()
}

/// What the daemon says is allowed of the key, where it refuses any of [`PROBES`].
fn allowed(section: &str, key: &str) -> Option<String> {
    let others = match section {
        "[[tenant]]" if key != "name" => "name = \"a\"\n",
        "[[engine]]" if key == "id" => "address = \"http://127.0.0.1:1\"\n",
        "[[engine]]" if key == "address" => "id = \"a\"\n",
        "[[engine]]" => "id = \"a\"\naddress = \"http://127.0.0.1:1\"\n",
        "[[tokenizer]]" if key == "path" => "model = \"a\"\n",
        "[[tokenizer]]" => "path = \"/a\"\n",
        _ => "",
    };
    let index = if section.starts_with("[[") { "[0]" } else { "" };
    let name = format!("{}{index}.{key}", section.trim_matches(['[', ']']));
    PROBES.iter().find_map(|probe| {
        let config: Config = toml::from_str(&format!("{section}\n{others}{key} = {probe}\n")).ok()?;
        let problems = config.check().err()?;
        problems.0.into_iter().find(|problem| problem.key == name).map(|problem| problem.allowed)
    })
}

#[test]
fn every_key_is_described_with_its_default_and_range() {
    let page = page("gpuadmit.toml.5");
    let mut ranges = 0;
    for (section, key, value) in keys() {
        let entry = entry(&page, section, key, value);
        if let Some(allowed) = allowed(section, key) {
            ranges += 1;
            assert!(
                entry.contains(&allowed.to_lowercase()),
                "{section} {key} does not say {allowed:?}: {entry}"
            );
        }
    }
    assert!(ranges >= 55, "only {ranges} keys were found to have a range");
}

#[test]
fn every_kind_of_event_has_a_section() {
    let page = page("gpuadmit-events.7");
    for kind in EventKind::ALL {
        assert!(
            page.contains(&format!(".SS {}\n", kind.as_str())),
            "{} is missing: run make man",
            kind.as_str()
        );
    }
}

#[test]
fn every_option_of_the_daemon_is_described() {
    let page = page("gpuadmitd.8");
    let command = Args::command();
    let replay = command.get_subcommands().find(|command| command.get_name() == "replay").unwrap();
    for argument in command.get_arguments().chain(replay.get_arguments()) {
        let Some(long) = argument.get_long() else { continue };
        assert!(page.contains(&format!("--{long}")), "systemd/man/gpuadmitd.8 lacks --{long}");
    }
}

/// What stands between backticks in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn what_the_threat_model_points_to_is_there() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let mut tests = 0;
    for (path, name) in quoted(&text).filter_map(|quoted| quoted.split_once(".rs ")) {
        let file = root.join(format!("{path}.rs"));
        let source = fs::read_to_string(&file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        let constant = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let wanted = if constant { format!("const {name}: ") } else { format!("fn {name}(") };
        assert!(source.contains(&wanted), "{path}.rs has no {name}");
        tests += u32::from(!constant);
    }
    assert!(tests >= 30, "only {tests} tests are named");

    let keys: Vec<String> = keys()
        .iter()
        .map(|(section, key, _)| format!("{}.{key}", section.trim_matches(['[', ']'])))
        .collect();
    let tables: Vec<&str> = keys.iter().filter_map(|key| Some(key.split_once('.')?.0)).collect();
    let mut named_keys = 0;
    for named in quoted(&text) {
        let key = named.split(' ').next().unwrap();
        if key.split_once('.').is_some_and(|(table, _)| !table.is_empty() && tables.contains(&table)) {
            assert!(keys.iter().any(|known| known == key), "there is no key {key}");
            named_keys += 1;
        }
    }
    assert!(named_keys > 0, "no key is named");
}

#[test]
fn every_page_is_well_formed() {
    let mut pages = 0;
    for file in fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        let format = ["--warnings=all", "-E", "UTF-8", "-Tutf8", "-Z", "-l"];
        let output = match Command::new("man").args(format).arg(&path).env("MANWIDTH", "78").output() {
            Ok(output) => output,
            Err(why) => {
                return skip(format!("whether manual pages are well formed: cannot start man: {why}"));
            }
        };
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", path.display());
        pages += 1;
    }
    assert!(pages > 3, "only {pages} pages were looked at");
}
