//! Memory cgroups of processes: version 2 (Documentation/admin-guide/cgroup-v2.rst) and version 1 (cgroup-v1/memory.rst).

use std::path::{Path, PathBuf};

use gpuadmit_core::units::Bytes;

use super::{keyed, read};

/// Deepest cgroup looked at.
const MAX_DEPTH: usize = 16;
/// Version 1 says "no limit" with the largest number of pages.
const UNLIMITED_V1: u64 = 1 << 62;

/// Where the hierarchies of the memory controller are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// Version 2.
    pub unified: Option<PathBuf>,
    /// Version 1.
    pub legacy: Option<PathBuf>,
}

/// Figures of a memory cgroup with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Its path within the hierarchy.
    pub path: String,
    /// Its limit.
    pub limit: Bytes,
    /// What it holds beside file caches, which the kernel drops before it kills.
    pub in_use: Bytes,
    /// Times that the limit could not be kept.
    pub oom: Option<u64>,
    /// Processes killed.
    pub oom_kills: Option<u64>,
    /// Its pressure file, where the kernel has one.
    pub pressure: Option<String>,
}

impl Mounts {
    /// From the text of `/proc/self/mountinfo`.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let Some(point) = before.split_ascii_whitespace().nth(4).map(PathBuf::from) else { continue };
            let mut fields = after.split_ascii_whitespace();
            let (kind, options) = (fields.next(), fields.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") => drop(mounts.unified.get_or_insert(point)),
                Some("cgroup") if options.split(',').any(|option| option == "memory") => {
                    mounts.legacy.get_or_insert(point);
                }
                _ => {}
            }
        }
        mounts
    }

    /// The cgroups with a limit that the process is in, from its own upwards. `of` is the text of `/proc/PID/cgroup`.
    #[must_use]
    pub fn limited(&self, of: &str) -> Vec<Figures> {
        let legacy = self.legacy.as_ref().and_then(|root| Some((root, path_of(of, Some("memory"))?)));
        if let Some((root, path)) = legacy {
            return upwards(path).filter_map(|path| legacy_figures(root, path)).collect();
        }
        let unified = self.unified.as_ref().and_then(|root| Some((root, path_of(of, None)?)));
        let Some((root, path)) = unified else { return Vec::new() };
        upwards(path).filter_map(|path| unified_figures(root, path)).collect()
    }
}

/// Path in the hierarchy of `controller` (version 1), or in the unified one.
fn path_of<'a>(of: &'a str, controller: Option<&str>) -> Option<&'a str> {
    of.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match controller {
            None => number == "0" && controllers.is_empty(),
            Some(controller) => controllers.split(',').any(|one| one == controller),
        };
        // Outside of our cgroup namespace: not to be found below the mount.
        (found && !path.contains("..")).then_some(path)
    })
}

/// `/a/b`, `/a`; never the root, which has no limit.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    let mut next = Some(path.trim_end_matches('/'));
    std::iter::from_fn(move || {
        let here = next.filter(|here| !here.is_empty())?;
        next = here.rsplit_once('/').map(|(above, _)| above);
        Some(here)
    })
    .take(MAX_DEPTH)
}

fn number(path: &Path) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn unified_figures(root: &Path, path: &str) -> Option<Figures> {
    let folder = root.join(path.trim_start_matches('/'));
    // "max" is no number: no limit.
    let limit = number(&folder.join("memory.max"))?;
    let current = number(&folder.join("memory.current"))?;
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let cached =
        keyed(&stat, "inactive_file").unwrap_or(0).saturating_add(keyed(&stat, "active_file").unwrap_or(0));
    let events = read(&folder.join("memory.events")).unwrap_or_default();
    Some(Figures {
        path: path.into(),
        limit: Bytes(limit),
        in_use: Bytes(current.saturating_sub(cached)),
        oom: keyed(&events, "oom"),
        oom_kills: keyed(&events, "oom_kill"),
        pressure: read(&folder.join("memory.pressure")),
    })
}

fn legacy_figures(root: &Path, path: &str) -> Option<Figures> {
    let folder = root.join(path.trim_start_matches('/'));
    let limit = number(&folder.join("memory.limit_in_bytes")).filter(|limit| *limit < UNLIMITED_V1)?;
    let current = number(&folder.join("memory.usage_in_bytes"))?;
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let cached = |key| keyed(&stat, key).unwrap_or(0);
    let cached = cached("total_inactive_file").saturating_add(cached("total_active_file"));
    let control = read(&folder.join("memory.oom_control")).unwrap_or_default();
    Some(Figures {
        path: path.into(),
        limit: Bytes(limit),
        in_use: Bytes(current.saturating_sub(cached)),
        oom: None,
        oom_kills: keyed(&control, "oom_kill"),
        pressure: None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, path: &str, files: &[(&str, &str)]) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn mounts_of_both_versions_are_found() {
        let text = "14:35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                    20:41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
                    11:32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\nbroken\n";
        let mounts = Mounts::parse(text);
        assert_eq!(mounts.legacy.as_deref(), Some(Path::new("/sys/fs/cgroup/memory")));
        assert_eq!(mounts.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn version_2_counts_what_cannot_be_dropped_against_every_limit_above() {
        let root = tempfile::tempdir().unwrap();
        let slice = [("memory.max", "4000\n"), ("memory.current", "3500\n"), ("memory.stat", "anon 1\n")];
        write(root.path(), "a.slice", &slice);
        write(
            root.path(),
            "a.slice/vllm.service",
            &[
                ("memory.max", "3000\n"),
                ("memory.current", "2900\n"),
                ("memory.stat", "anon 1500\ninactive_file 300\nactive_file 200\nshmem 900\n"),
                ("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n"),
            ],
        );
        write(
            root.path(),
            "a.slice/vllm.service/leaf",
            &[("memory.max", "max\n"), ("memory.current", "9\n")],
        );
        let mounts = Mounts { unified: Some(root.path().into()), legacy: None };
        let found = mounts.limited("0::/a.slice/vllm.service/leaf\n");
        let figures: Vec<_> =
            found.iter().map(|one| (one.path.as_str(), one.limit.0, one.in_use.0)).collect();
        assert_eq!(figures, [("/a.slice/vllm.service", 3000, 2400), ("/a.slice", 4000, 3500)]);
        assert_eq!((found[0].oom, found[0].oom_kills), (Some(2), Some(1)));
    }

    #[test]
    fn version_1_has_no_limit_where_it_names_the_largest_number() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "5000\n"),
            ("memory.usage_in_bytes", "4000\n"),
            ("memory.stat", "cache 9\ntotal_inactive_file 100\ntotal_active_file 50\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ];
        write(root.path(), "p", &files);
        write(
            root.path(),
            "p/q",
            &[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "1\n")],
        );
        let mounts = Mounts { unified: None, legacy: Some(root.path().into()) };
        let found = mounts.limited("4:memory:/p/q\n0::/elsewhere\n");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].in_use, found[0].oom_kills), (Bytes(3850), Some(3)));
    }

    #[test]
    fn a_cgroup_outside_of_our_namespace_is_left_out() {
        let mounts = Mounts { unified: Some("/".into()), legacy: None };
        assert_eq!(mounts.limited("0::/../other\n"), []);
        assert_eq!(mounts.limited(""), []);
    }
}
