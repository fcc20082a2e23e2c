//! OOM kills as a memory cgroup counts them, for when nothing better tells of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Most bytes read of a file.
const MAX_BYTES: u64 = 1 << 20;

/// Where a cgroup counts its OOM kills, and how many it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kills {
    file: PathBuf,
    count: u64,
}

impl Kills {
    /// Of the cgroup that process `pid` is in; `None` where that cannot be told.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let membership = text(format!("/proc/{pid}/cgroup").as_ref())?;
        let mounts = text("/proc/self/mounts".as_ref())?;
        let file = counter(&membership, &mounts)?;
        Some(Self { count: count(&text(&file)?)?, file })
    }

    /// Whether there was one since the last look; `None`: the cgroup is gone.
    pub fn rose(&mut self) -> Option<bool> {
        let now = count(&text(&self.file)?)?;
        let rose = now > self.count;
        self.count = now;
        Some(rose)
    }
}

fn text(path: &Path) -> Option<String> {
    super::offsets::read(path, MAX_BYTES).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A process is in `N:memory:/PATH` of a v1 hierarchy and in `0::/PATH` of the v2 one (cgroups(7)); the memory controller
/// belongs to one of them.
fn counter(membership: &str, mounts: &str) -> Option<PathBuf> {
    let v1 = membership.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "memory").then_some(path)
    });
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, its_kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = its_kind == kind && (option.is_empty() || options.split(',').any(|one| one == option));
            fits.then(|| PathBuf::from(place))
        })
    };
    let inside = |mount: PathBuf, path: &str, file| mount.join(path.trim_start_matches('/')).join(file);
    if let Some(path) = v1 {
        return Some(inside(mount("cgroup", "memory")?, path, "memory.oom_control"));
    }
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(inside(mount("cgroup2", "")?, path, "memory.events"))
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Whether a cgroup's file can be read at all.
#[must_use]
pub fn is_there() -> bool {
    fs::metadata("/proc/self/cgroup").is_ok() && Kills::of(std::process::id()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n\
                          cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,memory 0 0\n";

    #[test]
    fn the_memory_controller_is_found_in_either_hierarchy() {
        let v1 = counter("5:memory:/vllm\n0::/other\n", MOUNTS).unwrap();
        assert_eq!(v1, PathBuf::from("/sys/fs/cgroup/memory/vllm/memory.oom_control"));
        let v2 = counter("0::/vllm.slice\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").unwrap();
        assert_eq!(v2, PathBuf::from("/sys/fs/cgroup/vllm.slice/memory.events"));
    }

    #[test]
    fn kills_are_counted_in_both_files() {
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(count("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
    }
}
