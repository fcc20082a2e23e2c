//! The thread that listens.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuadmit_core::{
    observation::{DeviceEvent, Observation, ProcessChange, ProcessEvent},
    units::{Mono, Span},
};
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    eventfd::{EfdFlags, EventFd},
};

use super::{
    Options,
    cuda::tally::Tally,
    exit,
    kmsg::{Line, Log, Part},
    locked, object,
    pci::Address,
    programs::{self, Lost, Programs, Wanted},
    record::{self, Told},
    report::{Coverage, Reporter},
    shared::{Shared, between, oom_score_adj},
    trim,
    watch::WatchSet,
    xid::{Way, Xids},
};
use crate::{
    clock,
    source::{Observe, vllm::process::Proc},
};

/// Time between two looks at what is not told, and between two reports.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MS: u16 = 1000;
/// Most records taken at one turn, so that other things get theirs.
const MAX_RECORDS: usize = 4096;
/// Most events of one wait.
const MAX_EVENTS: usize = 64;

const STOP: u64 = 0;
const RECORDS: u64 = 1;
const LOG: u64 = 2;
/// Tokens of processes are their ids above this.
const PROCESS: u64 = 1 << 32;

/// Token of a process's file.
pub(super) fn process_token(pid: u32) -> u64 {
    PROCESS | u64::from(pid)
}

/// Everything listened to.
pub(super) struct Reader {
    shared: Arc<Shared>,
    programs: Option<Programs>,
    log: Option<Log>,
    page: u64,
    reporter: Reporter,
    /// What was lost up to the last look.
    lost: Lost,
    /// When all was last looked at.
    looked: Mono,
    /// All that happened before this has been read.
    heard: Mono,
}

impl Reader {
    /// Opens all that can be opened.
    pub(super) fn new(options: &Options, observe: Observe) -> io::Result<(Arc<Shared>, Self)> {
        let mut coverage = Coverage::default();
        let (mut programs, in_kernel) = match load(options) {
            Ok((programs, watched)) => (Some(programs), Some(Mutex::new(watched))),
            Err(why) => {
                coverage.without_programs = Some(why);
                (None, None)
            }
        };
        let totals = programs.as_mut().and_then(Programs::take_totals);
        let tally = totals.map(|totals| Mutex::new(Tally::new(totals, clock::now())));
        coverage.without_cuda = options.cuda && programs.is_none();
        let log = options.log.as_ref().and_then(|path| {
            Log::open(path).inspect_err(|error| coverage.without_log = Some(error.to_string())).ok()
        });
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(&stop, readable(STOP))?;
        if let Some(programs) = &programs {
            epoll.add(&programs.records, readable(RECORDS))?;
            coverage.served.clone_from(&programs.served);
            coverage.failed.clone_from(&programs.failed);
        }
        if let Some(log) = &log {
            epoll.add(log, readable(LOG))?;
        }
        coverage.log = log.is_some();
        let shared = Arc::new(Shared {
            observe: Arc::clone(&observe),
            proc: Proc::new("/proc"),
            set: Mutex::new(WatchSet::default()),
            xids: Mutex::new(Xids::default()),
            in_kernel,
            files: Mutex::default(),
            tally,
            epoll,
            stop,
        });
        let reader = Self {
            shared: Arc::clone(&shared),
            programs,
            log,
            page: page_bytes(),
            reporter: Reporter::new(observe, coverage),
            lost: Lost::default(),
            looked: clock::now(),
            heard: clock::now(),
        };
        Ok((shared, reader))
    }

    /// Until it is told to stop.
    pub(super) fn run(mut self) {
        self.report();
        let mut events = [EpollEvent::empty(); MAX_EVENTS];
        loop {
            let asked = clock::now();
            let count = self.shared.epoll.wait(&mut events, EpollTimeout::from(INTERVAL_MS)).unwrap_or(0);
            for event in events.iter().take(count) {
                match event.data() {
                    STOP => return,
                    RECORDS => self.take_records(),
                    LOG => self.take_lines(),
                    token => self.process_ended(u32::try_from(token ^ PROCESS).unwrap_or(0)),
                }
            }
            if count < MAX_EVENTS {
                self.heard = asked;
            }
            if clock::now().since(self.looked) >= INTERVAL {
                self.look();
            }
        }
    }

    fn take_records(&mut self) {
        let Some(programs) = &mut self.programs else { return };
        for _ in 0..MAX_RECORDS {
            let Some(record) = programs.records.next() else { return };
            let told = record::decode(&record, self.page);
            drop(record);
            match told {
                Some(Told::Process { event, tid }) => self.shared.told(event, tid),
                Some(Told::Xid { span, device, code }) => {
                    self.shared.xid(span, Way::Tracepoint, (device, None), code);
                }
                None => tracing::debug!("a record that is not understood"),
            }
        }
    }

    fn take_lines(&mut self) {
        let Some(log) = &mut self.log else { return };
        for line in log.read() {
            let span = between(self.heard, clock::now());
            match line {
                Line::Xid { device, part, code } => self.shared.xid(span, Way::Log, (device, part), code),
                Line::OomKill { pid, comm, scope } => {
                    let known = locked(&self.shared.set).known(pid).map(|process| process.start_ticks);
                    let what = ProcessChange::OomVictim { rss: None, scope: Some(scope) };
                    let (comm, watched) = (record::printable(&comm), known.is_some());
                    self.shared.tell(ProcessEvent { span, pid, start_ticks: known, comm, watched, what });
                }
            }
        }
    }

    /// Without programs: a process's file became readable.
    fn process_ended(&self, pid: u32) {
        let status = locked(&self.shared.files).remove(&pid).and_then(|file| file.status());
        let what = status.map_or(exit::UNKNOWN, exit::Status::change);
        let span = Span::at(clock::now());
        let known = locked(&self.shared.set).get(pid).map(|process| process.start_ticks);
        let Some(start) = known else { return };
        if matches!(what, ProcessChange::Exit { signal: Some(libc::SIGKILL) | None, code: None }) {
            self.shared.blame_oom_killer(pid, span);
        }
        self.shared.ended(pid, start, span, what);
    }

    /// Looks at all that nobody told.
    fn look(&mut self) {
        let (since, now) = (self.looked, clock::now());
        self.looked = now;
        let lost = self.programs.as_ref().map_or(Lost::default(), Programs::lost);
        if self.programs.is_none() || lost != self.lost {
            // First what is still in the ring: what was told is not looked for.
            self.take_records();
            self.shared.look_for_all(between(since, now));
        }
        self.lost = lost;
        if let Some(programs) = &mut self.programs {
            let watched = locked(&self.shared.set).all();
            programs.probe(now, &watched);
        }
        self.shared.tell_allocations();
        self.report();
    }

    fn report(&mut self) {
        let watched = locked(&self.shared.set).len();
        let mut cuda = self.programs.as_ref().and_then(Programs::cuda_coverage);
        if let (Some((_, sentence)), Some(tally)) = (&mut cuda, &self.shared.tally) {
            let (calls, unknown) = locked(tally).calls();
            sentence.push_str(&format!(", {calls} calls seen"));
            if unknown > 0 {
                sentence.push_str(&format!(", {unknown} frees of unknown size"));
            }
        }
        self.reporter.report(self.heard, self.lost, watched, cuda);
    }
}

fn load(options: &Options) -> Result<(Programs, programs::Watched), String> {
    if !options.programs {
        return Err("switched off".into());
    }
    let Some(object) = object::find(options.object.as_deref()) else {
        return Err(options.object.as_ref().map_or_else(
            || "gpuadmit.bpf.o is not installed".into(),
            |path| format!("there is no file {}", path.display()),
        ));
    };
    let wanted = Wanted { cuda: options.cuda };
    let started = programs::start(&object, &options.description, wanted).map_err(|error| error.to_string());
    // The kernel's types were read for it, twice over: some ten megabytes that are needed no more.
    trim::give_back();
    started
}

fn page_bytes() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096)
}

impl Shared {
    /// Takes in what a program told of a process.
    fn told(&self, mut event: ProcessEvent, tid: u32) {
        let start = event.start_ticks.unwrap_or(0);
        match &mut event.what {
            ProcessChange::Exit { .. } => {
                let what = event.what;
                return self.ended(event.pid, start, event.span, what);
            }
            ProcessChange::Forked { child, child_start_ticks } => {
                self.add(*child, child_start_ticks.unwrap_or(0));
            }
            ProcessChange::Exec => {
                if let Some(process) = locked(&self.set).get_mut(event.pid) {
                    process.comm.clone_from(&event.comm);
                }
            }
            ProcessChange::OomScoreAdjusted { from, to } => {
                if let Some(process) = locked(&self.set).get_mut(event.pid) {
                    *from = process.oom_score_adj.replace(*to);
                }
            }
            ProcessChange::AllocationFailed { .. } => self.tell_allocations(),
            ProcessChange::OomVictim { .. } if event.pid == 0 => self.name_victim(&mut event, tid),
            _ => {}
        }
        self.tell(event);
    }

    /// An old kernel told only a thread's id: its process is looked up.
    fn name_victim(&self, event: &mut ProcessEvent, tid: u32) {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let pid = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        event.pid = pid.unwrap_or(tid);
        let set = locked(&self.set);
        let known = set.known(event.pid);
        event.watched = known.is_some();
        event.start_ticks = known.map(|process| process.start_ticks);
        event.comm = known.map(|process| process.comm.clone()).unwrap_or_default();
    }

    fn xid(&self, span: Span, way: Way, (device, part): (Address, Option<Part>), code: u64) {
        let uuids = {
            let mut xids = locked(&self.xids);
            let Some(gpu) = xids.uuid(device) else {
                tracing::warn!(?device, code, ?way, "an Xid of a GPU that NVML has not named");
                return;
            };
            // By GPU: the other ways do not name the instance.
            if !xids.is_new(clock::now(), way, &gpu, code) {
                return;
            }
            xids.parts(device, part, &gpu)
        };
        for uuid in uuids {
            tracing::info!(%uuid, ?part, code, ?way, "Xid");
            (self.observe)(Observation::DeviceEvent { uuid, span, event: DeviceEvent::Xid { code } });
        }
    }

    /// Looks at every watched process: at those of which the kernel's word may have been lost, and at what nothing tells
    /// where no programs run.
    fn look_for_all(&self, span: Span) {
        self.adopt_lost_children();
        let all = locked(&self.set).all();
        for (pid, start) in all {
            if !self.lives(pid, start) {
                // Without programs its file tells more than "gone", if it has one.
                if !locked(&self.files).contains_key(&pid) {
                    self.ended(pid, start, span, exit::UNKNOWN);
                }
                continue;
            }
            self.look_at(pid, start, span);
        }
    }

    /// Children whose fork was not told are in the kernel's watch set.
    fn adopt_lost_children(&self) {
        let Some(in_kernel) = &self.in_kernel else { return };
        let entries: Vec<(u32, u64)> = locked(in_kernel).iter().filter_map(Result::ok).collect();
        for (pid, start) in entries {
            if !locked(&self.set).contains(pid, start) {
                self.add(pid, start);
            }
        }
    }

    fn look_at(&self, pid: u32, start_ticks: u64, span: Span) {
        let comm = self.proc.stat(pid).map(|stat| record::printable(&stat.comm)).unwrap_or_default();
        let adjusted = oom_score_adj(pid);
        let mut changes = vec![];
        if let Some(process) = locked(&self.set).get_mut(pid) {
            if process.comm != comm && !comm.is_empty() {
                process.comm.clone_from(&comm);
                changes.push(ProcessChange::Exec);
            }
            if let (Some(to), from) = (adjusted, process.oom_score_adj)
                && from != adjusted
            {
                process.oom_score_adj = adjusted;
                changes.push(ProcessChange::OomScoreAdjusted { from, to });
            }
            if let Some(kills) = &mut process.kills {
                kills.rose();
            }
        }
        for what in changes {
            let (start_ticks, comm) = (Some(start_ticks), comm.clone());
            self.tell(ProcessEvent { span, pid, start_ticks, comm, watched: true, what });
        }
    }

    /// Without programs: a process was killed; if its cgroup counts one more OOM kill, that was the OOM killer.
    fn blame_oom_killer(&self, pid: u32, span: Span) {
        let event = {
            let mut set = locked(&self.set);
            let Some(process) = set.get_mut(pid) else { return };
            let rose = process.kills.as_mut().and_then(super::cgroup::Kills::rose).unwrap_or(false);
            let what = ProcessChange::OomVictim { rss: None, scope: None };
            let (start_ticks, comm) = (Some(process.start_ticks), process.comm.clone());
            rose.then_some(ProcessEvent { span, pid, start_ticks, comm, watched: true, what })
        };
        if let Some(event) = event {
            self.tell(event);
        }
    }
}
