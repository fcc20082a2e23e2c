//! Probes in a libcuda: what is told of allocations, over very many calls.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

use gpuadmit_core::observation::{EngineProcess, Observation, ProcessChange, ProcessRole};
use gpuadmit_fake_libcuda as _;
use gpuadmitd::source::{
    kernel::{Options, offsets::Description},
    vllm::process::Proc,
};
use nix::libc;

use crate::rig::{Ears, PATIENCE, is_root, object, skipped};

/// All calls together.
const CALLS: usize = 100_000;
const THREADS: usize = 4;
/// Every so many allocations the fake finds no memory.
const FAIL_EVERY: u64 = 1000;
/// How the process finds the calls: by their names, or by the library's own word.
const WAY: &str = "GPUADMIT_CUDA_WAY";
/// Fewer calls, where the machine is slow.
const COUNT: &str = "GPUADMIT_CUDA_CALLS";
/// The fake library, where it is not beside the test program.
pub(crate) const LIBRARY: &str = "GPUADMIT_LIBCUDA";

/// The library as cargo has built it.
pub(crate) fn built() -> PathBuf {
    let beside = || env::current_exe().unwrap().parent().unwrap().join("libgpuadmit_fake_libcuda.so");
    let built = env::var_os(LIBRARY).map_or_else(beside, PathBuf::from);
    assert!(built.exists(), "{} is missing", built.display());
    built
}

/// The library under the name by which it is known, in a folder that lives as long as the other value.
fn library() -> (PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("libcuda.so.1");
    // Copied, for the probes sit on the file.
    std::fs::copy(built(), &path).unwrap();
    (path, folder)
}

fn calls() -> usize {
    env::var(COUNT).map_or(CALLS, |calls| calls.parse().unwrap())
}

/// A process that has mapped it and calls it on command.
struct Caller {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

/// What it did, by its own account.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    allocated: u64,
    freed: u64,
    failed: u64,
    calls: u64,
}

impl Caller {
    fn start(library: &std::path::Path, way: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "cuda::calling_process", "--ignored", "--nocapture", "--test-threads", "1"])
            .envs([(WAY, way), ("GPUADMIT_FAKE_LIBCUDA", &format!("fail_every={FAIL_EVERY}"))])
            .env(LIBRARY, library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut caller = Self { child, says };
        caller.line("ready");
        caller
    }

    fn process(&self) -> EngineProcess {
        let start_ticks = Proc::new("/proc").stat(self.child.id()).unwrap().identity.start_ticks;
        EngineProcess { pid: self.child.id(), start_ticks, role: ProcessRole::Worker }
    }

    fn line(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it ended before it said {begin}");
            // What the harness says may be on the same line.
            if let Some(at) = line.find(begin) {
                return line[at..].to_owned();
            }
        }
    }

    /// Has it make its calls.
    fn go(&mut self) -> Account {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
        let line = self.line("account");
        let numbers: Vec<u64> = line.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect();
        let [allocated, freed, failed, calls] = numbers[..] else { panic!("{line}") };
        Account { allocated, freed, failed, calls }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options() -> Options {
    Options { object: Some(object()), cuda: true, ..Options::default() }
}

/// With probes; `None`, loudly: this machine cannot run them.
fn ears() -> Option<Ears> {
    if !is_root() {
        return skipped("probing libcuda takes root");
    }
    if !PathBuf::from("/sys/kernel/btf/vmlinux").exists() {
        return skipped("this kernel does not describe its types");
    }
    let ears = Ears::new(&options());
    let report = ears.report(|_| true);
    if report.detail.contains("no libcuda probes") {
        return skipped(&report.detail);
    }
    Some(ears)
}

/// What is told of a process until it amounts to `account`.
fn told(ears: &Ears, pid: u32, account: &Account) -> (Account, u64, u64) {
    let (mut sum, mut failures, mut retried, start) = (Account::default(), 0, 0, Instant::now());
    while (sum.allocated, sum.freed, sum.failed, failures)
        != (account.allocated, account.freed, account.failed, account.failed)
    {
        assert!(start.elapsed() < PATIENCE, "told {sum:?} and {failures} failures of {account:?}");
        let (_, Observation::Process(event)) = ears.next() else { continue };
        // Victims of the OOM killer are told of whoever they are: another test's.
        if !event.watched {
            continue;
        }
        assert_eq!(event.pid, pid, "{event:?}");
        match event.what {
            ProcessChange::Allocated { allocated, freed, failed } => {
                sum.allocated += allocated.0;
                sum.freed += freed.0;
                sum.failed += failed;
            }
            ProcessChange::AllocationFailed { requested, call } => {
                assert!(requested.is_some_and(|bytes| bytes.0 > 0) && call.starts_with("cuMem"), "{call}");
                failures += 1;
            }
            ProcessChange::AllocationRetried { .. } => retried += 1,
            other => panic!("{other:?}"),
        }
        assert!(sum.allocated <= account.allocated && sum.freed <= account.freed, "{sum:?} of {account:?}");
    }
    (sum, failures, retried)
}

pub(crate) fn all_is_counted(ears: &Ears, way: &str) {
    let (library, _folder) = library();
    let (mut watched, mut twin) = (Caller::start(&library, way), Caller::start(&library, way));
    let process = watched.process();
    ears.kernel.watch(&[process]);
    let report = ears.report(|report| report.detail.contains("calls of"));
    // Those of libcuda's names that are probed, and this process alone.
    assert!(
        report.detail.contains("9 calls of ") && report.detail.contains(" in 1 processes"),
        "{}",
        report.detail
    );
    twin.go();
    let account = watched.go();
    assert_eq!(account.calls, u64::try_from(calls()).unwrap());
    // Half of the calls allocate.
    assert!(account.failed >= account.calls / FAIL_EVERY / 3, "{account:?}");
    let (sum, failures, retried) = told(ears, process.pid, &account);
    assert_eq!(failures, account.failed);
    assert!(retried > 0 && retried <= failures, "{retried} of {failures}");
    let report = ears.report(|report| report.detail.contains(&format!(" {} calls seen", account.calls)));
    assert!(!report.detail.contains("lost"), "{}", report.detail);
    println!("{way}: {account:?}, told {sum:?}, {retried} retried; {}", report.detail);
}

/// Where the library cannot be probed: what is said of it.
pub(crate) fn refused(ears: &Ears) -> String {
    let (library, _folder) = library();
    let caller = Caller::start(&library, "name");
    ears.kernel.watch(&[caller.process()]);
    let report = ears
        .report(|report| report.detail.contains("none of ") || report.detail.contains("no libcuda probes"));
    report.detail
}

#[test]
fn bytes_and_failures_are_exact_over_many_calls_by_name() {
    let Some(ears) = ears() else { return };
    all_is_counted(&ears, "name");
}

#[test]
fn bytes_and_failures_are_exact_over_many_calls_by_pointer() {
    let Some(ears) = ears() else { return };
    all_is_counted(&ears, "pointer");
}

#[test]
fn probes_are_gone_when_nothing_has_the_library_mapped() {
    let Some(ears) = ears() else { return };
    let (library, _folder) = library();
    let caller = Caller::start(&library, "name");
    ears.kernel.watch(&[caller.process()]);
    ears.report(|report| report.detail.contains("calls of"));
    drop(caller);
    ears.report(|report| report.detail.contains("mapped by no watched process yet"));
}

#[test]
fn a_kernel_that_would_kill_engines_for_it_is_refused() {
    if !is_root() {
        return skipped("loading programs into the kernel takes root").unwrap_or(());
    }
    let release = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(release.path(), "6.12.9-amd64\n").unwrap();
    let description = Description { release: release.path().to_owned(), ..Description::default() };
    let ears = Ears::new(&Options { description, ..options() });
    let report = ears.report(|_| true);
    let why = "no libcuda probes: Linux 6.12.9-amd64 kills processes with a seccomp filter";
    assert!(report.detail.contains(why), "{}", report.detail);
}

/// Not a test: what a caller runs.
#[test]
#[ignore = "what a caller runs"]
fn calling_process() {
    let Ok(way) = env::var(WAY) else { return };
    let library = Library::open(&env::var(LIBRARY).unwrap());
    let cuda = Cuda::of(&library, way == "pointer");
    println!("\nready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let calls = calls();
    let accounts: Vec<Account> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|seed| scope.spawn(move || cuda.work(seed, calls / THREADS))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |part: fn(&Account) -> u64| accounts.iter().map(part).sum::<u64>();
    let [allocated, freed] = [sum(|one| one.allocated), sum(|one| one.freed)];
    println!("\naccount {allocated} {freed} {} {}", sum(|one| one.failed), sum(|one| one.calls));
    let _ = std::io::stdin().read_exact(&mut [0]);
}

/// A loaded library, for the life of the process.
struct Library(*mut c_void);

impl Library {
    fn open(path: &str) -> Self {
        let path = CString::new(path).unwrap();
        // SAFETY: a text that ends with a zero; the library has no code of its own that runs when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Self(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded, and the name ends with a zero.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is missing");
        symbol
    }

    /// By `cuGetProcAddress`, whose names have no version.
    fn pointer(&self, name: &CStr) -> *mut c_void {
        type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
        // SAFETY: the function has that type.
        let get: Get = unsafe { std::mem::transmute(self.symbol(c"cuGetProcAddress_v2")) };
        let short = CString::new(name.to_str().unwrap().trim_end_matches("_v2")).unwrap();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are to what the call wants.
        let code = unsafe { get(short.as_ptr(), &raw mut found, 12_000, 0, std::ptr::null_mut()) };
        assert_eq!(code, 0, "{name:?}");
        found
    }
}

type Take = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Pitch = unsafe extern "C" fn(*mut u64, *mut usize, usize, usize, u32) -> c_int;
type Give = extern "C" fn(u64) -> c_int;

/// The library's calls. Those with more arguments than these types show do not look at them.
#[derive(Clone, Copy)]
struct Cuda {
    takes: [Take; 5],
    pitch: Pitch,
    gives: [Give; 3],
}

impl Cuda {
    fn of(library: &Library, by_pointer: bool) -> Self {
        let find = |name: &CStr| if by_pointer { library.pointer(name) } else { library.symbol(name) };
        // SAFETY: the functions have these types but for arguments that they do not look at.
        let take = |name| unsafe { std::mem::transmute::<*mut c_void, Take>(find(name)) };
        // SAFETY: the same.
        let give = |name| unsafe { std::mem::transmute::<*mut c_void, Give>(find(name)) };
        let takes = [
            c"cuMemAlloc_v2",
            c"cuMemAllocManaged",
            c"cuMemAllocAsync",
            c"cuMemAllocFromPoolAsync",
            c"cuMemCreate",
        ];
        let gives = [c"cuMemFree_v2", c"cuMemFreeAsync", c"cuMemRelease"];
        // SAFETY: the same.
        let pitch = unsafe { std::mem::transmute::<*mut c_void, Pitch>(find(c"cuMemAllocPitch_v2")) };
        Self { takes: takes.map(take), pitch, gives: gives.map(give) }
    }

    /// Makes `calls` calls of all kinds, and adds up what they are to have done.
    fn work(self, seed: usize, calls: usize) -> Account {
        let (mut account, mut held, mut random) = (Account::default(), vec![], seed as u64 + 1);
        for number in 0..calls {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = usize::try_from(random >> 40).unwrap() + 1;
            account.calls += 1;
            if number % 101 == 100 {
                // Of nothing that was allocated.
                assert_eq!(self.gives[number % 3](0xdead_0000), 1);
            } else if number % 2 == 0 || held.is_empty() {
                let (taken, give) = self.take(number / 2 % 6, bytes);
                match taken {
                    Ok((address, bytes)) => {
                        account.allocated += bytes;
                        held.push((address, bytes, give));
                    }
                    Err(code) => {
                        assert_eq!(code, 2);
                        account.failed += 1;
                    }
                }
            } else {
                let (address, bytes, give) = held.swap_remove(bytes % held.len());
                assert_eq!(self.gives[give](address), 0);
                account.freed += bytes;
            }
        }
        account
    }

    /// Address and size, or a code; and which call frees it.
    fn take(&self, kind: usize, bytes: usize) -> (Result<(u64, u64), c_int>, usize) {
        let mut address = 0;
        if kind == 5 {
            let mut row = 0;
            // SAFETY: both places are there.
            let code = unsafe { (self.pitch)(&raw mut address, &raw mut row, bytes, 3, 4) };
            let size = u64::try_from(row * 3).unwrap();
            return (if code == 0 { Ok((address, size)) } else { Err(code) }, 0);
        }
        // SAFETY: the place is there.
        let code = unsafe { self.takes[kind](&raw mut address, bytes) };
        let give = [0, 0, 1, 1, 2][kind];
        (if code == 0 { Ok((address, u64::try_from(bytes).unwrap())) } else { Err(code) }, give)
    }
}
