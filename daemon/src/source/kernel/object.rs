//! Finds the file with the programs.

use std::path::{Path, PathBuf};

/// Its name.
const NAME: &str = "gpuadmit.bpf.o";
/// Folders above the executable that are looked into, in a build folder only.
const MAX_ABOVE: usize = 5;

/// Places where the file may be, the best first: `configured` alone, or below the prefix into which the executable
/// `program` was installed, beside it, or in the source tree in whose `target` it was built.
#[must_use]
pub fn places(configured: Option<&Path>, program: &Path) -> Vec<PathBuf> {
    if let Some(path) = configured {
        return vec![path.to_owned()];
    }
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(Path::new("/"));
    let mut places = vec![prefix.join("lib/gpuadmit").join(NAME), folder.join(NAME)];
    let above: Vec<&Path> = folder.ancestors().take(MAX_ABOVE).collect();
    if above.iter().any(|folder| folder.file_name().is_some_and(|name| name == "target")) {
        places.extend(above.iter().map(|folder| folder.join("ebpf").join(NAME)));
    }
    places
}

/// The first of these that is there.
#[must_use]
pub fn find(configured: Option<&Path>) -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    places(configured, &program).into_iter().find(|place| place.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_daemon_looks_below_its_prefix() {
        let places = places(None, Path::new("/usr/local/sbin/gpuadmitd"));
        assert_eq!(places[0], Path::new("/usr/local/lib/gpuadmit/gpuadmit.bpf.o"));
        assert_eq!(places.len(), 2);
    }

    #[test]
    fn a_daemon_that_was_just_built_finds_the_source_tree() {
        let places = places(None, Path::new("/src/gpuadmit/target/release/gpuadmitd"));
        assert!(places.contains(&PathBuf::from("/src/gpuadmit/ebpf/gpuadmit.bpf.o")));
    }

    #[test]
    fn a_configured_file_is_the_only_one() {
        assert_eq!(places(Some(Path::new("/x.o")), Path::new("/usr/sbin/gpuadmitd")), [Path::new("/x.o")]);
    }
}
