//! What a process below a vLLM server does for it: by the name it gave itself, else by its place and its arguments.
//!
//! | version | API server | scheduler | model |
//! |---|---|---|---|
//! | 0.12 and later | `vllm serve …`, `VLLM::APIServer_N`, `vllm-rs` | `VLLM::EngineCore`, `…_DPn` | `VLLM::Worker…` |
//! | 0.11 | the same | the same | in the scheduler |
//! | 0.8 to 0.9 | `python … serve …` | a child with Python's spawn command line or its parent's | a grandchild, likewise |
//!
//! `VLLM_PROCESS_NAME_PREFIX` puts any text in place of `VLLM`.

use gpuadmit_core::observation::ProcessRole;

/// What vLLM's names have behind the prefix (vLLM 0.32: v1/engine/core.py, v1/executor/multiproc_executor.py, v1/utils.py,
/// v1/engine/coordinator.py), and what they do.
const NAMES: [(&str, ProcessRole); 4] = [
    ("EngineCore", ProcessRole::EngineCore),
    ("Worker", ProcessRole::Worker),
    ("APIServer", ProcessRole::ApiServer),
    ("DPCoordinator", ProcessRole::Helper),
];
/// Longest name of a process in the kernel, bytes (`TASK_COMM_LEN` of linux/sched.h, less its end).
const MAX_COMM_BYTES: usize = 15;

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
    /// Whether it runs its parent's program.
    pub same_program: bool,
}

/// The role of a member, with its parent and the parent's role. `named`: some process of the tree has a name of vLLM's, so
/// that what has none is a helper.
#[must_use]
pub fn role(member: Member<'_>, parent: Option<(ProcessRole, Member<'_>)>, named: bool) -> ProcessRole {
    if member.depth == 0 || member.comm == "vllm-rs" {
        return ProcessRole::ApiServer;
    }
    if let Some(role) = title(member) {
        // A fork of a process that has named itself, about to exec or not, does not do its work.
        return if member.is_fork { ProcessRole::Helper } else { role };
    }
    // What a helper starts helps it, but for Python's fork server, which starts what its parent asked for.
    let of_helper = parent.is_some_and(|(role, parent)| {
        role == ProcessRole::Helper && !mentions(parent, "multiprocessing.forkserver")
    });
    if named || of_helper || !is_own(member) {
        return ProcessRole::Helper;
    }
    if member.depth == 1 { ProcessRole::EngineCore } else { ProcessRole::Worker }
}

/// The role that a process's name tells, as in `VLLM::EngineCore_DP0`.
#[must_use]
pub fn title(member: Member<'_>) -> Option<ProcessRole> {
    let whole = match member.args {
        [title] => named(title, false),
        _ => None,
    };
    // The kernel cuts the name that `ps` shows: `VLLM::EngineCor`.
    whole.or_else(|| named(member.comm, member.comm.len() == MAX_COMM_BYTES))
}

/// The role of a name. Where it was cut, its beginning tells.
fn named(title: &str, is_cut: bool) -> Option<ProcessRole> {
    let (_, name) = title.rsplit_once("::")?;
    let fits = |known: &str| {
        let behind = name.strip_prefix(known);
        behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            || (is_cut && !name.is_empty() && known.starts_with(name))
    };
    NAMES.iter().find(|(known, _)| fits(known)).map(|(_, role)| *role)
}

/// Whether a process without a name of vLLM's is one that Python's multiprocessing started to do the parent's work.
fn is_own(member: Member<'_>) -> bool {
    member.is_fork || mentions(member, "multiprocessing.spawn") || is_retitled(member)
}

fn mentions(member: Member<'_>, module: &str) -> bool {
    member.args.iter().any(|word| word.contains(module))
}

/// Whether it runs its parent's program and has put a title in the place of its arguments.
fn is_retitled(member: Member<'_>) -> bool {
    let is_program = |word: &str| word.contains('/') || word.starts_with("python");
    member.same_program && matches!(member.args, [title] if !is_program(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(comm: &str, args: &[&str], depth: usize, named: bool) -> ProcessRole {
        let args: Vec<String> = args.iter().map(|word| (*word).into()).collect();
        let is_fork = args.iter().any(|word| word == "serve");
        role(Member { comm, args: &args, depth, is_fork, same_program: false }, None, named)
    }

    /// The role of the last of a chain of processes below a server, each by its arguments and whether it is a fork.
    fn last(chain: &[(&[&str], bool)]) -> ProcessRole {
        let server = ["vllm".to_owned(), "serve".to_owned()];
        let mut lines = vec![server.to_vec()];
        lines.extend(chain.iter().map(|(args, _)| args.iter().map(|word| (*word).to_owned()).collect()));
        let member = |depth: usize| Member {
            comm: "python3",
            args: &lines[depth],
            depth,
            is_fork: depth > 0 && chain[depth - 1].1,
            same_program: true,
        };
        let named = (0..lines.len()).any(|depth| title(member(depth)).is_some());
        let mut parent = None;
        for depth in 0..lines.len() {
            parent = Some((role(member(depth), parent, named), member(depth)));
        }
        parent.unwrap().0
    }

    #[test]
    fn processes_that_name_themselves_have_the_role_of_the_name() {
        use ProcessRole::{ApiServer, EngineCore, Helper, Worker};
        for (comm, args, depth, role) in [
            ("vllm", &["/bin/python", "vllm", "serve", "m"][..], 0, ApiServer),
            ("VLLM::APIServer", &["VLLM::APIServer_1"], 1, ApiServer),
            ("VLLM::APIServer", &["VLLM::APIServer_DP1"], 1, ApiServer),
            ("vllm-rs", &["/site-packages/vllm/vllm-rs"], 1, ApiServer),
            ("VLLM::EngineCor", &["VLLM::EngineCore"], 1, EngineCore),
            ("VLLM::EngineCor", &["VLLM::EngineCore_DP1"], 1, EngineCore),
            ("VLLM::EngineCor", &[], 1, EngineCore),
            ("VLLM::Worker", &["VLLM::Worker"], 2, Worker),
            ("VLLM::Worker_TP", &["VLLM::Worker_TP1"], 2, Worker),
            ("VLLM::Worker_PP", &[], 2, Worker),
            ("VLLM::DPCoordin", &["VLLM::DPCoordinator"], 1, Helper),
            // VLLM_PROCESS_NAME_PREFIX.
            ("llm::EngineCore", &["llm::EngineCore"], 1, EngineCore),
            ("a::b::EngineCor", &["a::b::EngineCore_DP0"], 1, EngineCore),
            ("::Worker", &["::Worker"], 2, Worker),
            ("the chat model ", &["the chat model of team A::EngineCore"], 1, EngineCore),
            ("production::Eng", &[], 1, EngineCore),
            ("production::APIS", &[], 1, Helper),
            ("x::Worker", &[], 2, Worker),
            (
                "python",
                &["python", "-c", "from multiprocessing.resource_tracker import main;main(32)"],
                1,
                Helper,
            ),
            ("python", &["python", "-c", "from multiprocessing.spawn import spawn_main"], 2, Helper),
            ("Foo::WorkerPool", &["Foo::WorkerPool"], 1, Helper),
            ("gcc", &["gcc", "-DA=x::Worker", "x.c"], 3, Helper),
        ] {
            assert_eq!(of(comm, args, depth, true), role, "{comm} {args:?}");
        }
    }

    #[test]
    fn a_fork_of_a_named_process_is_a_helper() {
        use ProcessRole::{EngineCore, Helper, Worker};
        let core: (&[&str], bool) = (&["llm::EngineCore"], false);
        assert_eq!(last(&[core]), EngineCore);
        assert_eq!(last(&[core, (&["llm::EngineCore"], true)]), Helper);
        assert_eq!(last(&[core, (&["llm::Worker"], false)]), Worker);
        assert_eq!(last(&[core, (&["/usr/bin/cc1plus", "x.cpp"], false)]), Helper);
    }

    #[test]
    fn processes_without_names_have_the_role_of_their_place() {
        use ProcessRole::{EngineCore, Helper, Worker};
        let spawned: (&[&str], bool) =
            (&["python", "-c", "from multiprocessing.spawn import spawn_main"], false);
        let fork: (&[&str], bool) = (&["vllm", "serve"], true);
        let server: (&[&str], bool) =
            (&["python", "-c", "from multiprocessing.forkserver import main"], false);
        let served: (&[&str], bool) =
            (&["python", "-c", "from multiprocessing.forkserver import main"], true);
        let compiler: (&[&str], bool) = (&["python", "torch/_inductor/compile_worker/__main__.py"], false);
        assert_eq!(last(&[spawned]), EngineCore);
        assert_eq!(last(&[fork]), EngineCore);
        assert_eq!(last(&[spawned, spawned]), Worker);
        assert_eq!(last(&[(&["my engine"], false)]), EngineCore);
        assert_eq!(last(&[(&["my engine"], false), (&["my worker"], false)]), Worker);
        assert_eq!(last(&[server]), Helper);
        assert_eq!(last(&[server, served]), Worker, "one below the fork server");
        assert_eq!(
            last(&[(&["python", "-c", "from multiprocessing.resource_tracker import main"], false)]),
            Helper
        );
        assert_eq!(last(&[spawned, compiler]), Helper);
        // Its pool is forked from it.
        assert_eq!(last(&[spawned, compiler, (compiler.0, true)]), Helper);
        assert_eq!(last(&[spawned, (&["python"], false)]), Helper);
    }
}
