//! Clocks: the daemon reads one for each decision, and sets the kernel's times against its own. Time of day is only shown.

use super::{Case, Finding};

const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
/// Sources that are read without a call into the kernel, or fast in it.
const FAST: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"];

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let mut findings = vec![source(case), boot(case)];
    findings.extend(namespace(case));
    findings.extend(uptime(case));
    findings
}

fn source(case: &Case) -> Finding {
    const CHECK: &str = "clock.source";
    let Some(name) = case.machine.line(CURRENT) else {
        return Finding::note(CHECK, "unknown: the kernel does not tell its clock source");
    };
    if FAST.contains(&name.as_str()) {
        return Finding::ok(CHECK, name);
    }
    let text = format!("{name} is slow: reading it takes a microsecond or more, several times per decision");
    let available = case.machine.line(AVAILABLE).unwrap_or_default();
    let faster = FAST.iter().find(|fast| available.split_whitespace().any(|one| one == **fast));
    match faster {
        Some(fast) => Finding::warning(CHECK, text, format!("echo {fast} > {CURRENT}")),
        None => Finding::warning(
            CHECK,
            text,
            "dmesg | grep -i -e tsc -e clocksource says why no faster one is used",
        ),
    }
}

fn boot(case: &Case) -> Finding {
    const CHECK: &str = "clock.boot";
    match case.machine.line("/proc/sys/kernel/random/boot_id") {
        Some(id) if id.len() == 36 => Finding::ok(CHECK, format!("boot {id}")),
        _ => {
            let text =
                "no boot id: times that were kept are not told from those before a reboot, and are dropped";
            Finding::warning(CHECK, text, "mount -t proc proc /proc")
        }
    }
}

/// In a time namespace with an offset the kernel's times of deaths are not the daemon's (time_namespaces(7)).
fn namespace(case: &Case) -> Option<Finding> {
    let pid = case.service.process()?.pid;
    let offsets = case.machine.read(format!("/proc/{pid}/timens_offsets"))?;
    let shifted = offsets.lines().find(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("monotonic" | "boottime" | "1" | "7")) && words.any(|word| word != "0")
    })?;
    let text = format!(
        "the daemon runs in a time namespace with an offset ({}): what the kernel tells of deaths bears other times",
        shifted.split_whitespace().collect::<Vec<_>>().join(" ")
    );
    Some(Finding::warning("clock.namespace", text, "run gpuadmitd in the machine's own time namespace"))
}

fn uptime(case: &Case) -> Option<Finding> {
    const CHECK: &str = "clock.uptime";
    let daemon = case.status.as_ref().ok()?.uptime_ms;
    let seconds = case.machine.line("/proc/uptime")?.split('.').next()?.parse::<u64>().ok()?;
    // A second for the time between the two readings and for the fraction cut off.
    let machine = seconds.saturating_add(2).saturating_mul(1_000);
    (daemon > machine).then(|| {
        let text = "the daemon says that it has run for longer than this machine: it answers from elsewhere, or its \
                    clock is wrong";
        Finding::error(CHECK, text, "check --socket; systemctl restart gpuadmit")
    })
}
