//! What probes in libcuda cost a call: in a process that is not probed, in one that is probed by accident, for it uses the
//! same file as an engine, and in an engine.

use std::{
    env,
    ffi::{CString, c_int, c_void},
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use gpuadmit_core::observation::{EngineProcess, Observation, ProcessRole};
use gpuadmit_tests::bench::{
    smoke,
    table::{Report, time},
};
use gpuadmitd::source::{
    kernel::{self, Kernel, Options},
    vllm::process::Proc,
};
use nix::libc;

/// Where it is set this program is the one that calls, and it names the library.
const LIBRARY: &str = "GPUADMIT_BENCH_LIBCUDA";
/// Calls that allocate, and as many that free.
const PAIRS: u32 = 50_000;
const SMOKE_PAIRS: u32 = 500;
/// Longest wait for the probes.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    if let Some(library) = env::var_os(LIBRARY) {
        return call(library.as_ref());
    }
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libcuda.so.1");
    fs::copy(built()?, &library)?;
    let mut rows = vec![row("not probed", Caller::start(&library)?.measure()?)];
    let Some((kernel, said)) = listen() else {
        eprintln!("SKIPPED: probing libcuda takes root and a kernel that describes its types");
        return Ok(());
    };
    let engine = Caller::start(&library)?;
    kernel.watch(&[engine.process()?]);
    let way = wait_for(&said)?;
    rows.push(row("probed, another process than the engine", Caller::start(&library)?.measure()?));
    rows.push(row("probed, the engine", engine.measure()?));
    let mut report = Report::new("cuda");
    report.table(&["cuMemAlloc_v2 and cuMemFree_v2 of a fake libcuda", "mean per call"], &rows);
    report.paragraph(&format!("Over {} calls; {way}.", pairs() * 2));
    report.write()?;
    Ok(())
}

fn pairs() -> u32 {
    if smoke() { SMOKE_PAIRS } else { PAIRS }
}

fn row(title: &str, mean: Duration) -> Vec<String> {
    vec![title.to_owned(), time(mean)]
}

/// Cargo builds the fake library beside this bench, of which it is a dependency.
fn built() -> Result<PathBuf> {
    let bench = env::current_exe()?;
    Ok(bench.parent().context("a bench lies in a folder")?.join("libgpuadmit_fake_libcuda.so"))
}

/// The source with probes; `None`: not here.
fn listen() -> Option<(Kernel, mpsc::Receiver<String>)> {
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/gpuadmit.bpf.o");
    let options = Options { object: Some(object.into()), cuda: true, ..Options::default() };
    let (say, said) = mpsc::channel();
    let observe = Arc::new(move |observation| {
        if let Observation::Source(report) = observation {
            // Nobody listens any more at the end.
            let _ = say.send(report.detail);
        }
    });
    let kernel = kernel::spawn(&options, observe).ok()?;
    let first = said.recv_timeout(PATIENCE).ok()?;
    first.contains("libcuda probes (").then_some((kernel, said))
}

/// Waits until the engine is probed; returns by which means.
fn wait_for(said: &mpsc::Receiver<String>) -> Result<String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let detail = said.recv_timeout(PATIENCE)?;
        if detail.contains("calls of") {
            let (_, way) = detail.split_once("libcuda probes (").context("it says how")?;
            return Ok(way.split(')').next().unwrap_or_default().to_owned());
        }
    }
    bail!("the engine is not probed")
}

/// This program as a process that calls the library; killed when dropped.
struct Caller {
    child: Child,
    input: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Caller {
    fn start(library: &Path) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .env(LIBRARY, library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("it is piped")?;
        let says = BufReader::new(child.stdout.take().context("it is piped")?);
        let mut caller = Self { child, input, says };
        caller.line()?;
        Ok(caller)
    }

    fn process(&self) -> Result<EngineProcess> {
        let stat = Proc::new("/proc").stat(self.child.id()).context("it runs")?;
        let start_ticks = stat.identity.start_ticks;
        Ok(EngineProcess { pid: self.child.id(), start_ticks, role: ProcessRole::Worker })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        Ok(line)
    }

    fn measure(mut self) -> Result<Duration> {
        self.input.write_all(b"g")?;
        Ok(Duration::from_nanos(self.line()?.trim().parse()?))
    }
}

type Take = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Give = extern "C" fn(u64) -> c_int;

/// What a caller does: says that it is ready, waits for a byte, and says the mean time of a call in nanoseconds.
fn call(library: &Path) -> Result<()> {
    let path = CString::new(library.as_os_str().as_encoded_bytes())?;
    // SAFETY: a text that ends with a zero; the library has no code of its own that runs when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the library is loaded, or the handle stands for the program itself, which has no such symbol.
    let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let (take, give) = (symbol(c"cuMemAlloc_v2"), symbol(c"cuMemFree_v2"));
    if handle.is_null() || take.is_null() || give.is_null() {
        bail!("{} cannot be loaded", library.display());
    }
    // SAFETY: the function has this type.
    let take = unsafe { std::mem::transmute::<*mut c_void, Take>(take) };
    // SAFETY: the same.
    let give = unsafe { std::mem::transmute::<*mut c_void, Give>(give) };
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let start = Instant::now();
    for _ in 0..pairs() {
        let mut address = 0;
        // SAFETY: the place is there.
        let taken = unsafe { take(&raw mut address, 1 << 20) };
        if taken != 0 || give(address) != 0 {
            bail!("a call failed");
        }
    }
    println!("{}", (start.elapsed() / pairs() / 2).as_nanos());
    Ok(())
}
