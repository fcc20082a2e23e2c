//! Kernels on which probes on a function's return would end the engines themselves, or miss some.

/// A kernel's version: the first three numbers of its release.
pub type Version = (u32, u32, u32);

/// From Linux 6.11 on a return is caught by a system call of its own, uretprobe(2). It was let through seccomp filters,
/// which every container has, only later: until then, a probed process with a filter is killed. Ranges, both ends included,
/// a patch release wider than those that were reported.
const DEADLY: [(Version, Version); 3] =
    [((6, 11, 0), (6, 11, u32::MAX)), ((6, 12, 0), (6, 12, 13)), ((6, 13, 0), (6, 13, 2))];

/// The newest kernel on which every call was counted, in tests. On 7.3 some returns go unseen, and bytes are wrong.
const NEWEST_EXACT: (u32, u32) = (6, 18);

/// The version in a release such as `6.12.9-amd64`; `None`: it is none.
#[must_use]
pub fn parse(release: &str) -> Option<Version> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let (first, second) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    // `6.13-rc1` has no third one.
    let third = release.split('.').nth(2).map_or(Some(0), |_| numbers.next()?.ok());
    Some((first, second, third?))
}

/// Why libcuda is not to be probed on a kernel of this release; `None`: it may be.
#[must_use]
pub fn refusal(release: &str) -> Option<String> {
    let Some(version) = parse(release) else {
        return Some(format!("the kernel's release {release:?} has no version that is understood"));
    };
    if (version.0, version.1) > NEWEST_EXACT {
        let (major, minor) = NEWEST_EXACT;
        return Some(format!("on Linux {release} they miss calls; up to {major}.{minor} they do not"));
    }
    let deadly = DEADLY.iter().any(|(first, last)| (*first..=*last).contains(&version));
    deadly.then(|| {
        format!(
            "Linux {release} kills processes with a seccomp filter for them; 6.12.14, 6.13.3 and 6.14 do not"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_kill_probed_containers_are_refused() {
        for release in [
            "6.11.0-29-generic",
            "6.11.11",
            "6.12.0",
            "6.12.9-amd64",
            "6.12.12",
            "6.13.1-arch1-1",
            "6.13-rc4",
        ] {
            assert!(refusal(release).is_some_and(|why| why.contains(release)), "{release}");
        }
        for release in [
            "5.10.0-32-cloud-amd64",
            "6.1.0-41-amd64",
            "6.8.0-60-generic",
            "6.12.57+deb13-amd64",
            "6.14.0",
            "6.18.44",
            "6.16.2",
        ] {
            assert_eq!(refusal(release), None, "{release}");
        }
    }

    #[test]
    fn kernels_that_miss_calls_are_refused() {
        for release in ["6.19.0", "7.3.4+deb13-cloud-amd64"] {
            assert!(refusal(release).is_some_and(|why| why.contains("miss calls")), "{release}");
        }
    }

    #[test]
    fn a_release_without_a_version_is_refused() {
        for release in ["", "linux", "6", "6.x.1", "6.12.x"] {
            assert!(refusal(release).is_some(), "{release}");
        }
    }
}
