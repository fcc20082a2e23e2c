//! A memory cgroup with a limit, of either version.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::rig::{is_root, skipped};

pub(crate) const LIMIT_BYTES: u64 = 48 << 20;

/// Removed when dropped.
pub(crate) struct Group {
    path: PathBuf,
    name: String,
}

/// Makes one; `None`, loudly: not here.
pub(crate) fn limited() -> Option<Group> {
    if !is_root() {
        return skipped("making a cgroup takes root");
    }
    let name = format!("/gpuadmit-test-{}-{:?}", std::process::id(), std::thread::current().id());
    let name = name.replace(['(', ')'], "");
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let (root, limit, more) = if v1.join("memory.limit_in_bytes").exists() {
        (v1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    } else {
        let root = Path::new("/sys/fs/cgroup");
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        (root, "memory.max", "memory.swap.max")
    };
    let group = Group { path: root.join(&name[1..]), name };
    if fs::create_dir(&group.path).is_err()
        || fs::write(group.path.join(limit), LIMIT_BYTES.to_string()).is_err()
    {
        return skipped("there is no memory cgroup to be made");
    }
    let swap = if limit == "memory.max" { 0 } else { LIMIT_BYTES };
    let _ = fs::write(group.path.join(more), swap.to_string());
    Some(group)
}

impl Group {
    pub(crate) fn add(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// The file that takes the ids of processes that are to be in it.
    pub(crate) fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
