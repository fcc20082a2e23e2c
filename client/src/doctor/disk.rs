//! Where the daemon keeps what it learned, and its records.

use std::{io, path::Path};

use super::{Case, Finding, machine::Want};

/// Room that the state wants: the old file and the new one, each at most 8 MiB, and as much again.
const STATE_BYTES: u64 = 32 << 20;

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let config = &case.service.config;
    let mut findings = vec![];
    if config.state.enabled {
        findings.push(folder(
            case,
            "state.folder",
            &config.state.path,
            "what is learned is lost with each restart",
        ));
        findings.extend(room(case, "state.disk", &config.state.path, STATE_BYTES));
    }
    let records = &config.records;
    if records.enabled {
        findings.push(folder(case, "records.folder", &records.path, "no decision is recorded"));
        let most = records.file_bytes.saturating_mul(records.files);
        let left = most.saturating_sub(case.machine.bytes_in(&records.path));
        findings.extend(room(case, "records.disk", &records.path, left));
    }
    findings
}

fn folder(case: &Case, check: &'static str, path: &Path, lost: &str) -> Finding {
    let shown = path.display();
    let make = format!("install -d -o gpuadmit -g gpuadmit -m 0750 {shown} && systemctl restart gpuadmit");
    match case.machine.access(path) {
        Ok(folder) if !folder.is_folder => {
            Finding::error(check, format!("{shown} is no folder: {lost}"), format!("rm {shown} && {make}"))
        }
        Ok(folder) => match case.service.identity() {
            Some(who) if !folder.allows(who, Want::Fill) => {
                Finding::error(check, format!("the daemon's user may not write into {shown}: {lost}"), make)
            }
            _ => Finding::ok(check, shown.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::note(check, format!("{shown} is not for this user's eyes"))
                .with("run gpuadmit doctor as root")
        }
        Err(_) if case.service.unit().is_none() => Finding::note(check, format!("no {shown}: {lost}")),
        Err(_) => Finding::warning(check, format!("no {shown}: {lost}"), make),
    }
}

fn room(case: &Case, check: &'static str, path: &Path, wanted: u64) -> Option<Finding> {
    let space = case.machine.space(path)?;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let text = format!("{} MiB free at {}, {} MiB wanted", mib(space.free), path.display(), mib(wanted));
    if space.free < wanted {
        let text = format!("{text}: writing will fail, and what is written goes lost");
        return Some(Finding::warning(check, text, format!("df -h {0}; du -xsh {0}", path.display())));
    }
    // A twentieth is what ext4 keeps for root: others soon fail there, and the journal with them.
    if space.free < space.total / 100 {
        let text = format!("{text}: less than 1 % of that file system");
        return Some(Finding::warning(check, text, format!("df -h {}", path.display())));
    }
    Some(Finding::ok(check, text))
}
