//! What a process below a vLLM server does for it.
//!
//! | version | API server | scheduler | model |
//! |---|---|---|---|
//! | 0.12 and later | `vllm serve …`, `VLLM::APIServer_N`, `vllm-rs` | `VLLM::EngineCore`, `…_DPn` | `VLLM::Worker…` |
//! | 0.11 | the same | the same | in the scheduler |
//! | 0.8 to 0.9 | `python … serve …` | a child with Python's spawn command line or its parent's | a grandchild, likewise |

use gpuadmit_core::observation::ProcessRole;

/// A process of a server's tree.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Name, cut to 15 bytes.
    pub comm: &'a str,
    /// Arguments.
    pub args: &'a [String],
    /// Steps below the server; 0 is the server itself.
    pub depth: usize,
    /// Whether its command line is its parent's: a fork of it that has not named itself.
    pub is_fork: bool,
}

/// The role of a member. `renames`: a process of the tree has named itself, so that what has no such name is a helper.
#[must_use]
pub fn role(member: Member<'_>, renames: bool) -> ProcessRole {
    if member.depth == 0 || member.comm == "vllm-rs" {
        return ProcessRole::ApiServer;
    }
    if let Some(title) = title(member) {
        // A fork of a process that has named itself, about to exec or not, does not do its work.
        return if member.is_fork { ProcessRole::Helper } else { titled(title) };
    }
    let spawned = member.is_fork || member.args.iter().any(|word| word.contains("multiprocessing.spawn"));
    match member.depth {
        _ if renames || !spawned => ProcessRole::Helper,
        1 => ProcessRole::EngineCore,
        _ => ProcessRole::Worker,
    }
}

/// The name a process gave itself, as in `VLLM::EngineCore_DP0`.
#[must_use]
pub fn title<'a>(member: Member<'a>) -> Option<&'a str> {
    let from_args = member.args.first().and_then(|word| word.strip_prefix("VLLM::"));
    from_args.or_else(|| member.comm.strip_prefix("VLLM::"))
}

fn titled(title: &str) -> ProcessRole {
    // The kernel cuts a name to 15 bytes: `VLLM::EngineCor`.
    if title.starts_with("EngineCor") {
        ProcessRole::EngineCore
    } else if title.starts_with("Worker") {
        ProcessRole::Worker
    } else if title.starts_with("APIServer") {
        ProcessRole::ApiServer
    } else {
        ProcessRole::Helper
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(comm: &str, args: &str, depth: usize, renames: bool) -> ProcessRole {
        let args: Vec<String> = args.split(' ').map(Into::into).collect();
        let is_fork = depth > 0 && args.iter().any(|word| word == "serve" || word == "FORK");
        role(Member { comm, args: &args, depth, is_fork }, renames)
    }

    #[test]
    fn processes_that_name_themselves_have_the_role_of_the_name() {
        use ProcessRole::{ApiServer, EngineCore, Helper, Worker};
        for (comm, args, depth, role) in [
            ("vllm", "/bin/python vllm serve m", 0, ApiServer),
            ("VLLM::APIServer", "VLLM::APIServer_1", 1, ApiServer),
            ("vllm-rs", "/site-packages/vllm/vllm-rs", 1, ApiServer),
            ("VLLM::EngineCor", "VLLM::EngineCore", 1, EngineCore),
            ("VLLM::EngineCor", "VLLM::EngineCore_DP1", 1, EngineCore),
            ("VLLM::EngineCor", "", 1, EngineCore),
            ("VLLM::Worker", "VLLM::Worker", 2, Worker),
            ("VLLM::Worker_TP", "VLLM::Worker_TP1", 2, Worker),
            ("VLLM::DPCoordin", "VLLM::DPCoordinator", 1, Helper),
            ("python", "python -B -c from multiprocessing.resource_tracker import main;main(32)", 1, Helper),
            ("python", "python -c from multiprocessing.spawn import spawn_main", 2, Helper),
            ("VLLM::EngineCor", "VLLM::EngineCore FORK", 2, Helper),
            ("gcc", "gcc -O3 x.c", 3, Helper),
        ] {
            assert_eq!(of(comm, args, depth, true), role, "{comm} {args}");
        }
    }

    #[test]
    fn processes_without_names_have_the_role_of_their_place() {
        use ProcessRole::{EngineCore, Helper, Worker};
        let spawned = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)";
        assert_eq!(of("python", spawned, 1, false), EngineCore);
        assert_eq!(of("python", "python vllm serve m", 1, false), EngineCore);
        assert_eq!(of("python", spawned, 2, false), Worker);
        assert_eq!(
            of("python", "python -c from multiprocessing.resource_tracker import main", 1, false),
            Helper
        );
        assert_eq!(of("python", "python torch/_inductor/compile_worker/__main__.py", 2, false), Helper);
    }
}
