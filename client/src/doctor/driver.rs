//! GPUs, their driver, and its library.

use gpuadmit_client::v1::{Source, SourceHealth};

use super::{Case, Finding, groups::grants_more, machine::Want};

/// NVIDIA in the list of PCI vendors.
const VENDOR: &str = "0x10de";
/// PCI classes of GPUs: VGA and 3D controllers.
const CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// What the driver says of itself.
const VERSION: &str = "/proc/driver/nvidia/version";
/// One folder for each GPU that the driver drives.
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Folders in which the dynamic linker of the usual distributions looks.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];
const LIBRARY: &str = "libnvidia-ml.so.1";

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let present = gpus(case);
    if present == 0 && !case.machine.has(VERSION) {
        let text = "no NVIDIA GPU in this machine: device memory is not watched, all else works";
        return vec![Finding::note("driver.gpu", text)];
    }
    let mut findings = vec![Finding::ok("driver.gpu", format!("{present} in the PCI list"))];
    findings.push(module(case, present));
    if case.machine.has(VERSION) {
        findings.extend(nodes(case));
        findings.push(library(case));
    }
    findings
}

fn gpus(case: &Case) -> usize {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let attribute = |device: &str, name: &str| case.machine.line(format!("{DEVICES}/{device}/{name}"));
    let is_gpu = |device: &String| {
        attribute(device, "vendor").is_some_and(|vendor| vendor == VENDOR)
            && attribute(device, "class")
                .is_some_and(|class| CLASSES.iter().any(|gpu| class.starts_with(gpu)))
    };
    case.machine.list(DEVICES).iter().filter(|device| is_gpu(device)).count()
}

fn module(case: &Case, present: usize) -> Finding {
    const CHECK: &str = "driver.module";
    let Some(text) = case.machine.read(VERSION) else {
        if case.machine.has("/sys/module/nouveau") {
            let text = "nouveau drives the GPUs: neither vLLM nor NVML can use them";
            let remedy = "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf && update-initramfs -u && reboot, \
                          with NVIDIA's driver installed";
            return Finding::error(CHECK, text, remedy);
        }
        let text = "the nvidia module is not loaded: no engine can use a GPU, and no memory is watched";
        return Finding::error(
            CHECK,
            text,
            "modprobe nvidia (`dmesg | grep -i nvrm` says why if that fails)",
        );
    };
    let version = module_version(&text).unwrap_or("of an unknown version").to_owned();
    let driven = case.machine.list(GPUS).len();
    if driven < present {
        let text =
            format!("{driven} of {present} GPUs are driven: the others failed (Xid 79 when one is lost)");
        return Finding::error(
            CHECK,
            text,
            "dmesg | grep -e NVRM -e Xid; nvidia-smi; a lost GPU needs a reboot",
        );
    }
    Finding::ok(CHECK, format!("nvidia {version} drives {driven}"))
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue …`: the first word of digits and dots.
fn module_version(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| {
        word.contains('.') && word.chars().all(|character| character.is_ascii_digit() || character == '.')
    })
}

fn nodes(case: &Case) -> Option<Finding> {
    const CHECK: &str = "driver.nodes";
    let count = case.machine.list(GPUS).len();
    // Minor numbers need not begin at 0, so those that are there are counted.
    let numbered = |name: &String| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut nodes: Vec<String> = case.machine.list("/dev").into_iter().filter(numbered).collect();
    if nodes.len() < count || !case.machine.has("/dev/nvidiactl") {
        let text = format!("/dev has nodes for {} of {count} GPUs: NVML cannot reach the rest", nodes.len());
        return Some(Finding::error(CHECK, text, "nvidia-modprobe -c 0 -u (or start nvidia-persistenced)"));
    }
    nodes.push("nvidiactl".into());
    let who = case.service.identity()?;
    let closed = nodes.iter().find(|node| {
        case.machine.access(format!("/dev/{node}")).is_ok_and(|file| !file.allows(who, Want::ReadWrite))
    });
    Some(match closed {
        None => Finding::ok(CHECK, format!("{} in /dev, open to the daemon", nodes.len())),
        Some(node) => {
            let text = format!("the daemon's user may not use /dev/{node}: NVML fails for it");
            let file = case.machine.access(format!("/dev/{node}")).ok();
            let group = file.filter(|file| file.mode & 0o060 == 0o060).and_then(|file| {
                let name = case.service.group_name(file.gid)?;
                // The two are made for this.
                (matches!(name, "video" | "render") || !grants_more(name, file.gid)).then_some(name)
            });
            let remedy = match group {
                Some(group) => format!("usermod -aG {group} gpuadmit && systemctl restart gpuadmit"),
                None => {
                    "set NVreg_DeviceFileMode=0666 for the nvidia module in /etc/modprobe.d, and load it anew"
                        .into()
                }
            };
            Finding::error(CHECK, text, remedy)
        }
    })
}

fn library(case: &Case) -> Finding {
    const CHECK: &str = "driver.nvml";
    let told = case.status.as_ref().ok().and_then(|status| {
        status.sources.iter().find(|source| source.name == "nvml" && source.health() == SourceHealth::Ok)
    });
    let found =
        LIBRARY_FOLDERS.iter().find_map(|folder| case.machine.link_target(format!("{folder}/{LIBRARY}")));
    let module = case.machine.read(VERSION).unwrap_or_default();
    let module = module_version(&module);
    match (found, told) {
        (Some(file), _) => {
            let library = file.strip_prefix("libnvidia-ml.so.").filter(|version| version.contains('.'));
            match (library, module) {
                (Some(library), Some(module)) if library != module => {
                    let text = format!(
                        "the library is {library} and the loaded module {module}: after an upgrade of the driver \
                         every new NVML call fails"
                    );
                    Finding::error(
                        CHECK,
                        text,
                        "reboot (or stop all users of the GPUs, then rmmod and modprobe nvidia)",
                    )
                }
                _ => Finding::ok(CHECK, file),
            }
        }
        (None, Some(Source { detail, .. })) => Finding::ok(CHECK, format!("found by the daemon: {detail}")),
        (None, None) => {
            let text =
                format!("{LIBRARY} is in no folder of the dynamic linker: device memory is not watched");
            Finding::error(
                CHECK,
                text,
                "apt-get install libnvidia-ml1, in the version of the driver (RHEL: nvidia-driver-NVML)",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_version_is_found_in_both_wordings() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)";
        assert_eq!(module_version(closed), Some("550.54.15"));
        assert_eq!(module_version(open), Some("580.95.05"));
    }
}
