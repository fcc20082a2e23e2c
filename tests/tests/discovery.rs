//! Engines found in process lists that are made up, one for every layout that vLLM has had, and for what else listens.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers included"
)]

use std::{
    fmt::Write, fs, net::TcpListener, os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration,
};

use gpuadmit_core::{
    node::Node,
    observation::{
        Observation, Obstacle,
        ProcessRole::{self, ApiServer, EngineCore, Helper, Worker},
    },
    request::Request,
    settings::Settings,
    snapshot::EngineState,
};
use gpuadmit_tests::node_kit::{admitted, request};
use gpuadmitd::{
    clock,
    source::vllm::{
        self, Options,
        discover::{Found, Scan, Scanner},
        process::Proc,
    },
};
use tempfile::TempDir;
use tokio::sync::mpsc;

const SERVE: &str =
    "/opt/venv/bin/python /opt/venv/bin/vllm serve /models/tiny --port 8032 --max-model-len 2048";
const TRACKER: &str = "python -B -c from_multiprocessing.resource_tracker_import_main";
const SPAWNED: &str = "python -c from_multiprocessing.spawn_import_spawn_main --multiprocessing-fork";

const FORK_SERVER: &str = "python -c from_multiprocessing.forkserver_import_main";
const COMPILER: &str = "python /site-packages/torch/_inductor/compile_worker/__main__.py --workers=2";

/// A made-up `/proc`.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(TempDir::new().unwrap());
        fs::create_dir_all(tree.path("net")).unwrap();
        tree.namespace("self", 1);
        tree.listen(&[]);
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn scanner(&self) -> Scanner {
        Scanner::new(Proc::new(self.0.path()), vec![])
    }

    fn scan(&self) -> Scan {
        self.scanner().scan()
    }

    /// Puts a process in: id, parent, name, arguments between spaces. Its start time is its id × 10.
    fn process(&self, pid: u32, parent: u32, comm: &str, args: &str) {
        fs::create_dir_all(self.path(&format!("{pid}/fd"))).unwrap();
        self.stat(pid, parent, comm, pid * 10);
        let args: String = args.split(' ').map(|word| format!("{word}\0")).collect();
        fs::write(self.path(&format!("{pid}/cmdline")), args).unwrap();
        fs::write(self.path(&format!("{pid}/environ")), "PATH=/bin\0").unwrap();
        self.namespace(&pid.to_string(), 1);
    }

    fn stat(&self, pid: u32, parent: u32, comm: &str, start_ticks: u32) {
        let before_start = "1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0";
        let stat = format!("{pid} ({comm}) S {parent} {before_start} {start_ticks} 0 0");
        // Fields 5 to 21 are 17; the ninth is the flags.
        assert_eq!(before_start.split(' ').count(), 17);
        fs::write(self.path(&format!("{pid}/stat")), stat).unwrap();
    }

    fn namespace(&self, process: &str, number: u32) {
        fs::create_dir_all(self.path(&format!("{process}/ns"))).unwrap();
        let link = self.path(&format!("{process}/ns/net"));
        let _ = fs::remove_file(&link);
        symlink(format!("net:[{number}]"), link).unwrap();
    }

    /// Listening sockets: port and inode.
    fn listen(&self, sockets: &[(u16, u64)]) {
        let mut table = String::from(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n",
        );
        for (port, inode) in sockets {
            let rest = "00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0";
            writeln!(table, "   0: 0100007F:{port:04X} {rest} {inode} 1 0000000000000000 100 0 0 10 0")
                .unwrap();
        }
        fs::write(self.path("net/tcp"), table).unwrap();
    }

    fn owns(&self, pid: u32, inode: u64) {
        symlink(format!("socket:[{inode}]"), self.path(&format!("{pid}/fd/{inode}"))).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.path(&pid.to_string())).unwrap();
    }
}

fn roles(found: &Found) -> Vec<(u32, ProcessRole)> {
    found.processes.iter().map(|process| (process.pid, process.role)).collect()
}

/// The only engine of a scan.
fn only(scan: Scan) -> Found {
    assert_eq!((scan.engines.len(), &scan.problems), (1, &vec![]), "{scan:?}");
    scan.engines.into_iter().next().unwrap()
}

/// The only problem of a scan that found nothing.
fn problem(scan: &Scan) -> &str {
    assert_eq!((scan.engines.len(), scan.problems.len()), (0, 1), "{scan:?}");
    &scan.problems[0]
}

/// A layout: its name, its processes (id, parent, name, arguments), their roles.
type Layout<'a> = (&'a str, &'a [(u32, u32, &'a str, &'a str)], &'a [(u32, ProcessRole)]);

const LAYOUTS: &[Layout<'_>] = &[
    (
        "0.32",
        &[
            (10, 1, "vllm", SERVE),
            (11, 10, "python", TRACKER),
            (12, 10, "VLLM::EngineCor", "VLLM::EngineCore"),
            (13, 12, "VLLM::Worker", "VLLM::Worker"),
            (14, 13, "cc1plus", "/usr/lib/gcc/cc1plus kernel.cpp"),
        ],
        &[(10, ApiServer), (11, Helper), (12, EngineCore), (13, Worker), (14, Helper)],
    ),
    (
        "0.32, two API servers, two data-parallel ranks",
        &[
            (10, 1, "vllm", SERVE),
            (11, 10, "VLLM::DPCoordin", "VLLM::DPCoordinator"),
            (12, 10, "VLLM::EngineCor", "VLLM::EngineCore_DP0"),
            (13, 10, "VLLM::EngineCor", "VLLM::EngineCore_DP1"),
            (14, 10, "VLLM::APIServer", "VLLM::APIServer_0"),
            (15, 10, "VLLM::APIServer", "VLLM::APIServer_1"),
            (16, 12, "VLLM::Worker_TP", "VLLM::Worker_TP0"),
        ],
        &[
            (10, ApiServer),
            (11, Helper),
            (12, EngineCore),
            (13, EngineCore),
            (14, ApiServer),
            (15, ApiServer),
            (16, Worker),
        ],
    ),
    (
        "0.32, Rust front end",
        &[
            (10, 1, "vllm", SERVE),
            (12, 10, "VLLM::EngineCor", "VLLM::EngineCore"),
            (13, 10, "vllm-rs", "/site-packages/vllm/vllm-rs frontend"),
        ],
        &[(10, ApiServer), (12, EngineCore), (13, ApiServer)],
    ),
    (
        "0.11, the scheduler runs the model",
        &[(10, 1, "python3", SERVE), (12, 10, "VLLM::EngineCor", "VLLM::EngineCore")],
        &[(10, ApiServer), (12, EngineCore)],
    ),
    (
        "0.9, forks without names",
        &[
            (10, 1, "python", SERVE),
            (11, 10, "python", TRACKER),
            (12, 10, "python", SERVE),
            (13, 12, "python", SERVE),
        ],
        &[(10, ApiServer), (11, Helper), (12, EngineCore), (13, Worker)],
    ),
    (
        "0.8, started as a module, spawns without names",
        &[
            (10, 1, "pt_main_thread", "python3 -m vllm.entrypoints.openai.api_server --model m --port=8032"),
            (11, 10, "python3", SPAWNED),
        ],
        &[(10, ApiServer), (11, EngineCore)],
    ),
    (
        "0.32, VLLM_PROCESS_NAME_PREFIX",
        &[
            (10, 1, "vllm", SERVE),
            (11, 10, "python", TRACKER),
            (12, 10, "llm-a::EngineCo", "llm-a::EngineCore_DP0"),
            (13, 12, "llm-a::Worker_T", "llm-a::Worker_TP0"),
            (14, 13, "cc1plus", "/usr/lib/gcc/cc1plus kernel.cpp"),
            (15, 12, "llm-a::EngineCo", "llm-a::EngineCore_DP0"),
        ],
        &[(10, ApiServer), (11, Helper), (12, EngineCore), (13, Worker), (14, Helper), (15, Helper)],
    ),
    (
        "0.32, a rank for each port",
        &[
            (10, 1, "vllm", SERVE),
            (12, 10, "VLLM::APIServer", "VLLM::APIServer_DP0"),
            (13, 12, "VLLM::EngineCor", "VLLM::EngineCore_DP0"),
        ],
        &[(10, ApiServer), (12, ApiServer), (13, EngineCore)],
    ),
    (
        "0.9, Python's fork server, and a compiler with forks of its own",
        &[
            (10, 1, "python", SERVE),
            (11, 10, "python", FORK_SERVER),
            (12, 11, "python", FORK_SERVER),
            (13, 12, "python", COMPILER),
            (14, 13, "python", COMPILER),
        ],
        &[(10, ApiServer), (11, Helper), (12, Worker), (13, Helper), (14, Helper)],
    ),
];

#[test]
fn a_title_of_any_form_is_that_of_a_process_that_runs_the_servers_program() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    tree.process(12, 10, "chat-model", "chat-model");
    tree.process(13, 12, "chat-worker", "chat-worker");
    tree.process(14, 12, "ninja", "ninja");
    for (pid, program) in
        [(10, "/opt/python"), (12, "/opt/python"), (13, "/opt/python"), (14, "/usr/bin/ninja")]
    {
        symlink(program, tree.path(&format!("{pid}/exe"))).unwrap();
    }
    let found = only(tree.scan());
    assert_eq!(roles(&found), [(10, ApiServer), (12, EngineCore), (13, Worker), (14, Helper)]);
}

#[test]
fn every_layout_of_processes_is_one_engine() {
    for (name, processes, expected) in LAYOUTS {
        let tree = Tree::new();
        // A shell that started it and a program that only mentions it.
        tree.process(1, 0, "systemd", "/sbin/init");
        tree.process(5, 1, "bash", "bash -c vllm serve /models/tiny");
        tree.process(6, 1, "vim", "vim vllm serve");
        for (pid, parent, comm, args) in *processes {
            tree.process(*pid, *parent, comm, args);
        }
        tree.listen(&[(8032, 500), (45_123, 501), (45_124, 502)]);
        tree.owns(10, 500);
        // Workers listen on random ports of their own.
        tree.owns(12.min(processes[processes.len() - 1].0), 501);
        let found = only(tree.scan());
        assert_eq!(found.address.to_string(), "http://127.0.0.1:8032", "{name}");
        assert_eq!(roles(&found), *expected, "{name}");
        assert!(found.processes.iter().all(|process| process.start_ticks == u64::from(process.pid) * 10));
    }
}

#[test]
fn a_program_that_merely_listens_is_no_engine() {
    let tree = Tree::new();
    tree.process(10, 1, "python3", "python3 -m http.server 8000");
    tree.listen(&[(8000, 500)]);
    tree.owns(10, 500);
    assert_eq!(tree.scan().engines, []);
}

#[test]
fn only_engines_of_users_that_are_named_are_found() {
    let tree = Tree::new();
    let started_by = |pid: u32, uid: u32| {
        let status = format!("Name:\tvllm\nUid:\t{uid}\t0\t0\t0\nGid:\t{uid}\t0\t0\t0\n");
        fs::write(tree.path(&format!("{pid}/status")), status).unwrap();
    };
    for (pid, uid) in [(10, 990), (11, 1000)] {
        tree.process(pid, 1, "vllm", &SERVE.replace("8032", &format!("80{pid}")));
        started_by(pid, uid);
    }
    // Who started it cannot be told.
    tree.process(12, 1, "vllm", &SERVE.replace("8032", "8012"));
    let mut scanner = Scanner::new(Proc::new(tree.0.path()), vec![0, 990]);
    for _ in 0..3 {
        let scan = scanner.scan();
        assert_eq!(scan.engines.iter().map(|found| found.root.pid).collect::<Vec<_>>(), [10]);
        assert!(
            scan.problems[0].contains("vllm (pid 11) of uid 1000 is left out: vllm.discover_uids"),
            "{scan:?}"
        );
    }
    assert_eq!(tree.scan().engines.len(), 3, "without names all are found");
}

#[test]
fn a_port_held_by_another_program_is_not_scraped() {
    let tree = Tree::new();
    tree.process(9, 1, "nginx", "nginx: master");
    tree.process(10, 1, "vllm", SERVE);
    tree.listen(&[(8032, 500)]);
    tree.owns(9, 500);
    let mut scanner = tree.scanner();
    let scan = scanner.scan();
    assert!(problem(&scan).contains("port 8032") && problem(&scan).contains("pid 10"), "{scan:?}");
    // It gets its port in the end.
    tree.listen(&[(8032, 600)]);
    tree.owns(10, 600);
    assert_eq!(only(scanner.scan()).address.to_string(), "http://127.0.0.1:8032");
}

#[test]
fn an_engine_that_does_not_listen_yet_is_found() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    assert_eq!(only(tree.scan()).address.to_string(), "http://127.0.0.1:8032");
}

#[test]
fn a_port_from_a_configuration_file_is_the_one_it_listens_on() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", "vllm serve --config /etc/vllm.yaml");
    tree.listen(&[(8000, 499), (9001, 500)]);
    tree.owns(10, 500);
    assert_eq!(only(tree.scan()).address.to_string(), "http://127.0.0.1:9001");
}

#[test]
fn the_file_of_config_is_read_from_where_the_engine_is() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", "vllm serve --config etc/vllm.yaml --max-num-se 8");
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("etc")).unwrap();
    let options = "model: org/m\nport: 8032\nmax_num_seqs: 4\nserved-model-name: [a, b]\n";
    fs::write(folder.path().join("etc/vllm.yaml"), options).unwrap();
    symlink(folder.path(), tree.path("10/cwd")).unwrap();
    let found = only(tree.scan());
    assert_eq!(found.address.to_string(), "http://127.0.0.1:8032");
    assert_eq!((found.command.names(), found.command.max_num_seqs), (vec!["a", "b"], Some(8)));
}

#[test]
fn a_file_of_config_that_cannot_be_read_is_named() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", "vllm serve m --config /nowhere/vllm.yaml");
    let scan = tree.scan();
    assert_eq!(scan.engines.len(), 1);
    let expected = "the --config of vllm (pid 10) is not read: /nowhere/vllm.yaml: No such file";
    assert!(scan.problems[0].starts_with(expected), "{scan:?}");
}

#[test]
fn what_cannot_be_asked_is_found_with_the_cause() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", "vllm serve m --port 8032 --ssl-certf c.pem --ssl-keyf k.pem");
    tree.process(20, 1, "vllm", "vllm serve m --headless --data-parallel-start-rank 2");
    tree.process(30, 1, "vllm", "vllm serve m --uds vllm.sock");
    tree.process(40, 1, "vllm", "vllm serve m --uds vllm.sock");
    symlink("/srv", tree.path("40/cwd")).unwrap();
    let scan = tree.scan();
    let found = |found: &Found| (found.root.pid, found.address.to_string(), found.obstacle);
    assert_eq!(
        scan.engines.iter().map(found).collect::<Vec<_>>(),
        [
            (10, "http://127.0.0.1:8032".into(), Some(Obstacle::Tls)),
            (20, "none (headless, rank 2)".into(), Some(Obstacle::Headless)),
            (30, "unix:vllm.sock".into(), Some(Obstacle::RelativeSocket)),
            (40, "unix:/srv/vllm.sock".into(), None),
        ]
    );
    assert_eq!(scan.problems, [""; 0]);
}

#[test]
fn a_server_at_any_free_port_is_found_when_it_listens() {
    let tree = Tree::new();
    tree.process(9, 1, "other", "other");
    tree.process(10, 1, "vllm", "vllm serve m --port 0");
    tree.listen(&[(8000, 499)]);
    tree.owns(9, 499);
    let mut scanner = tree.scanner();
    let scan = scanner.scan();
    assert!(problem(&scan).contains("pid 10") && problem(&scan).contains("--port 0"), "{scan:?}");
    tree.listen(&[(8000, 499), (40_123, 500)]);
    tree.owns(10, 500);
    assert_eq!(only(scanner.scan()).address.to_string(), "http://127.0.0.1:40123");
}

#[test]
fn without_the_right_to_see_files_the_command_line_is_believed() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    fs::remove_dir_all(tree.path("10/fd")).unwrap();
    fs::remove_dir_all(tree.path("10/ns")).unwrap();
    tree.listen(&[(8032, 500)]);
    assert_eq!(only(tree.scan()).address.to_string(), "http://127.0.0.1:8032");
}

#[test]
fn an_engine_in_a_container_is_told_of_and_not_scraped_at_a_wrong_port() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    tree.namespace("10", 2);
    tree.listen(&[(8032, 500)]);
    let scan = tree.scan();
    assert!(problem(&scan).contains("network namespace") && problem(&scan).contains("pid 10"), "{scan:?}");
}

#[test]
fn a_unix_socket_is_an_address() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", "vllm serve m --uds /run/vllm/a.sock");
    assert_eq!(only(tree.scan()).address.to_string(), "unix:/run/vllm/a.sock");
}

#[test]
fn a_shell_that_becomes_an_engine_is_found() {
    let tree = Tree::new();
    tree.process(10, 1, "sh", "sh -c prepare && exec vllm serve m");
    let mut scanner = tree.scanner();
    for _ in 0..3 {
        assert_eq!(scanner.scan().engines, []);
    }
    tree.process(10, 1, "vllm", SERVE);
    assert_eq!(scanner.scan().engines.len(), 1, "a young process is looked into in every scan");
    // An old one, now and then.
    tree.process(200, 1, "sh", "sh start.sh");
    for _ in 0..30 {
        scanner.scan();
    }
    tree.process(200, 1, "vllm", "vllm serve m --port 9000");
    let found = (0..16).any(|_| scanner.scan().engines.len() == 2);
    assert!(found, "an old process is looked into once in 16 scans");
}

#[test]
fn an_engine_lives_as_long_as_a_process_of_its_own() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    tree.process(12, 10, "python", SPAWNED);
    let mut scanner = tree.scanner();
    assert_eq!(roles(&only(scanner.scan())), [(10, ApiServer), (12, EngineCore)]);
    tree.process(12, 10, "VLLM::EngineCor", "VLLM::EngineCore");
    tree.process(14, 12, "gcc", "gcc -O3 kernel.c");
    assert_eq!(roles(&only(scanner.scan())), [(10, ApiServer), (12, EngineCore), (14, Helper)]);
    // A helper's end is a helper's end.
    tree.end(14);
    assert_eq!(roles(&only(scanner.scan())), [(10, ApiServer), (12, EngineCore)]);
    // The server dies; its child gets another parent and is still its child.
    tree.end(10);
    tree.stat(12, 1, "VLLM::EngineCor", 120);
    let found = only(scanner.scan());
    assert_eq!((roles(&found), found.has_api_server()), (vec![(12, EngineCore)], false));
    tree.end(12);
    assert_eq!(scanner.scan().engines, []);
}

#[test]
fn a_process_id_used_again_is_another_process() {
    let tree = Tree::new();
    tree.process(10, 1, "vllm", SERVE);
    let mut scanner = tree.scanner();
    let first = only(scanner.scan()).root;
    tree.stat(10, 1, "vllm", 99_999);
    let second = only(scanner.scan()).root;
    assert_eq!((first.pid, second.pid), (10, 10));
    assert_eq!((first.start_ticks, second.start_ticks), (100, 99_999));
}

#[test]
fn a_process_list_that_cannot_be_read_is_a_problem() {
    let tree = Tree::new();
    let scan = Scanner::new(Proc::new(tree.path("nowhere")), vec![]).scan();
    assert!(problem(&scan).contains("process list cannot be read"), "{scan:?}");
}

/// Waits for what is wanted of what a source observes.
async fn first<T>(
    observed: &mut mpsc::UnboundedReceiver<Observation>,
    wanted: impl Fn(Observation) -> Option<T>,
) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(observed.recv().await.unwrap()) {
                return found;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.unwrap()
}

#[tokio::test]
async fn an_engine_without_its_api_server_is_gone_when_its_port_refuses_and_is_found_again() {
    // A port that nothing listens on.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let serve = format!("vllm serve tiny --port {port}");
    let tree = Tree::new();
    tree.process(10, 1, "vllm", &serve);
    tree.process(12, 10, "VLLM::EngineCor", "VLLM::EngineCore");
    let (sender, mut observed) = mpsc::unbounded_channel();
    let options = Options {
        proc_root: tree.0.path().into(),
        scan_interval: Duration::from_millis(100),
        ..Options::default()
    };
    let source = vllm::spawn(options, Arc::new(move |observation| drop(sender.send(observation))));
    let found = |observation| match observation {
        Observation::Engine(facts) => Some(facts),
        _ => None,
    };
    let facts = first(&mut observed, found).await;
    assert_eq!((&*facts.engine, facts.processes.len()), (format!("vllm-{port}").as_str(), 2));
    assert_eq!(&*facts.models[0].name, "tiny");

    tree.stat(12, 1, "VLLM::EngineCor", 120);
    tree.end(10);
    let gone = |observation| match observation {
        Observation::EngineGone { engine, evidence, .. } => Some((engine, evidence)),
        _ => None,
    };
    let (engine, evidence) = first(&mut observed, gone).await;
    assert_eq!(engine, facts.engine);
    assert!(evidence.contains("API server is gone"), "{evidence}");

    tree.process(20, 1, "vllm", &serve);
    assert_eq!(first(&mut observed, found).await.processes[0].pid, 20);
    tree.end(20);
    let (_, evidence) = first(&mut observed, gone).await;
    assert!(evidence.contains("none of its own processes is left"), "{evidence}");
    source.stop().await;
}

/// The states that a node has an engine in over the time of a test, by what the source observes.
struct Watched {
    node: Node,
    observed: mpsc::UnboundedReceiver<Observation>,
}

impl Watched {
    /// Takes in what comes until something fits, or panics; readings of the clock are those of the observations, `late` later.
    async fn until(&mut self, late: Duration, what: &str, fits: impl Fn(&mut Node) -> bool) {
        let search = async {
            loop {
                let observation = self.observed.recv().await.unwrap();
                self.node.observe(clock::now() + late, observation);
                if fits(&mut self.node) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), search).await.unwrap_or_else(|_| panic!("not {what}"));
    }
}

#[tokio::test]
async fn an_engine_that_cannot_be_asked_names_the_cause_at_once_and_is_only_observed_in_the_end() {
    // It accepts connections, as one that speaks TLS does.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let tree = Tree::new();
    let tls = format!("vllm-{port}");
    for (pid, options) in [
        (10, format!("--port {port} --ssl-keyfile k --ssl-certfile c")),
        (20, "--headless".into()),
        (30, "--uds a.sock".into()),
    ] {
        tree.process(pid, 1, "vllm", &format!("vllm serve m{pid} {options}"));
    }
    let (sender, observed) = mpsc::unbounded_channel();
    let options = Options { proc_root: tree.0.path().into(), ..Options::default() };
    let source = vllm::spawn(options, Arc::new(move |observation| drop(sender.send(observation))));
    let mut watched = Watched { node: Node::new(Settings::default(), 1), observed };
    let engines = [
        (tls.as_str(), "m10", Obstacle::Tls),
        ("vllm-headless-0", "m20", Obstacle::Headless),
        ("vllm-a", "m30", Obstacle::RelativeSocket),
    ];
    let all = |node: &mut Node, state: EngineState| {
        let snapshot = node.snapshot(clock::now());
        engines.iter().all(|(id, _, obstacle)| {
            let engine = snapshot.engines.iter().find(|engine| &*engine.engine == *id);
            engine.is_some_and(|engine| {
                engine.state == state
                    && engine.state_reason.contains(obstacle.as_str())
                    && engine.settings.obstacle == Some(*obstacle)
            })
        })
    };
    watched.until(Duration::ZERO, "starting", |node| all(node, EngineState::Starting)).await;
    let events = watched.node.history().after(0, usize::MAX).0;
    for (id, _, obstacle) in engines {
        let told = events
            .iter()
            .any(|event| event.message.contains(id) && event.message.contains(obstacle.as_str()));
        assert!(told, "{id}: {events:?}");
    }
    // They are asked a second time, and then as if a minute had passed.
    for _ in 0..20 {
        let observation = watched.observed.recv().await.unwrap();
        watched.node.observe(clock::now(), observation);
    }
    let late = Duration::from_secs(60);
    watched.until(late, "observed", |node| all(node, EngineState::Unknown)).await;
    for (id, model, _) in engines {
        let request = Request { model, ..request(100_000, Some(10)) };
        let _ = admitted(&watched.node.admit(clock::now() + late, &request).unwrap());
        println!("{id} denies nothing");
    }
    source.stop().await;
}
