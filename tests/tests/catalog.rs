//! `systemd/gpuadmit.catalog`: what `journalctl -x` says of each kind of event.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    process::{Command, Stdio},
};

use gpuadmit_core::event::{EventKind, Severity};
use gpuadmit_tests::skip::skip;
use gpuadmitd::log::message_id;

const CATALOG: &str = include_str!("../../systemd/gpuadmit.catalog");
/// What the text of an entry says, in this order; the first paragraph is what it means.
const PARAGRAPHS: [&str; 4] = ["", "Evidence: ", "What to do: ", "How it ends: "];
/// Fields that an entry has whenever its kind is about an engine, or a device.
const FIELDS: [&str; 3] = ["@ENGINE@", "@DEVICE_UUID@", "@LEFT_OUT@"];

/// Name with severity, id, and text of each entry, in their order.
fn entries() -> Vec<(&'static str, &'static str, &'static str)> {
    let parts = CATALOG.split("\n\n# ").skip(1);
    let read = |part: &'static str| {
        let (name, rest) = part.split_once("\n-- ").unwrap();
        let (id, text) = rest.split_once('\n').unwrap();
        (name, id, text.trim_end())
    };
    parts.map(read).collect()
}

const fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

#[test]
fn every_kind_of_event_has_an_entry_with_its_id() {
    let found: Vec<_> = entries().iter().map(|(name, id, _)| ((*name).to_owned(), *id)).collect();
    let named = |kind: &EventKind| format!("{}, {}", kind.as_str(), severity(kind.severity()));
    let kinds = EventKind::ALL.iter().map(|kind| (named(kind), message_id::of(*kind)));
    let wanted: Vec<_> = kinds.chain([("LEFT_OUT, warning".into(), message_id::LEFT_OUT)]).collect();
    assert_eq!(found, wanted);
}

#[test]
fn every_entry_says_what_it_means_what_to_do_and_how_it_ends() {
    for (name, _, text) in entries() {
        let (headers, body) = text.split_once("\n\n").unwrap();
        let names: Vec<_> = headers.lines().map(|line| line.split_once(": ").unwrap().0).collect();
        assert_eq!(names, ["Subject", "Defined-By", "Support", "Documentation"], "{name}");
        let paragraphs: Vec<_> = body.split("\n\n").collect();
        assert_eq!(paragraphs.len(), PARAGRAPHS.len(), "{name}: {paragraphs:#?}");
        for (paragraph, begin) in paragraphs.iter().zip(PARAGRAPHS) {
            assert!(paragraph.starts_with(begin) && paragraph.len() > begin.len() + 3, "{name}: {paragraph}");
        }
        assert!(text.lines().all(|line| line.len() <= 80), "{name} fits a terminal");
        let known = FIELDS.iter().fold(text.to_owned(), |text, field| text.replace(field, ""));
        assert!(!known.contains('@'), "{name} names a field that an entry may lack");
    }
}

#[test]
fn journalctl_takes_it() {
    let root = tempfile::tempdir().unwrap();
    let (from, into) =
        (root.path().join("usr/lib/systemd/catalog"), root.path().join("var/lib/systemd/catalog"));
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(into).unwrap();
    fs::write(from.join("gpuadmit.catalog"), CATALOG).unwrap();
    let journalctl = |argument| {
        let mut command = Command::new("journalctl");
        command.arg(argument).arg("--root").arg(root.path()).stdin(Stdio::null()).output()
    };
    match journalctl("--update-catalog") {
        Ok(made) => assert!(made.status.success() && made.stderr.is_empty(), "{made:?}"),
        Err(why) => return skip(format!("whether journalctl takes the catalog: cannot start it: {why}")),
    }
    let listed = String::from_utf8(journalctl("--list-catalog").unwrap().stdout).unwrap();
    for (name, id, text) in entries() {
        let subject = text.lines().next().unwrap().trim_start_matches("Subject: ");
        assert!(listed.contains(&format!("{id} gpuadmit: {subject}\n")), "{name} is not in:\n{listed}");
    }
    assert_eq!(listed.lines().count(), EventKind::ALL.len() + 1);
}
