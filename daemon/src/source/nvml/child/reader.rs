//! The thread of one GPU: reads its memory, load, instances and processes.

use std::{
    sync::{Arc, mpsc::SyncSender},
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper::{Device, Nvml, error::NvmlError};

use super::{
    super::wire::{Event, Identity, Message, Processes, Reading, Reason, Span, What},
    calls,
    gpu::{Gpu, MemoryForm, Part},
    shared::{Shared, Station},
};

/// Time between two readings of the load.
const UTILISATION_INTERVAL: Duration = Duration::from_secs(1);

/// Longest problem told, characters.
const PROBLEM_CHARS: usize = 256;

/// A device that the event thread is to watch.
pub(super) struct Opened {
    pub(super) device: Device<'static>,
    pub(super) identity: Identity,
}

/// Reads one GPU.
pub(super) struct Reader {
    pub(super) nvml: &'static Nvml,
    pub(super) index: u32,
    pub(super) shared: Arc<Shared>,
    pub(super) station: Arc<Station>,
    pub(super) opened: SyncSender<Opened>,
}

/// When what is due.
struct Schedule {
    utilisation: Instant,
    processes: Instant,
    hints: u32,
}

impl Reader {
    /// Reads until the child stops.
    pub(super) fn run(&self) {
        let Some(mut gpu) = self.open() else { return };
        let mut schedule = Schedule { utilisation: Instant::now(), processes: Instant::now(), hints: 0 };
        let mut lost = false;
        while !self.shared.stopping() {
            let started = Instant::now();
            let answer = self.read(&mut gpu, &mut schedule);
            lost = self.judge(&gpu.whole, answer.err(), lost);
            let options = &self.shared.options;
            let interval = if lost { options.processes_interval } else { options.memory_interval };
            thread::sleep(interval.saturating_sub(started.elapsed()));
        }
    }

    /// Opens the GPU, however often it takes; `None` when the child stops.
    fn open(&self) -> Option<Gpu> {
        while !self.shared.stopping() {
            let (answer, _) = self.station.pulse.call(|| Gpu::open(self.nvml, self.index));
            match answer {
                Ok((gpu, device)) => {
                    let identity = gpu.whole.identity.clone();
                    self.station.set(|state| {
                        state.device = Some(identity.clone());
                        state.failure.clear();
                    });
                    let _full = self.opened.try_send(Opened { device, identity });
                    return Some(gpu);
                }
                Err(error) => self.fail(&error),
            }
            thread::sleep(self.shared.options.processes_interval);
        }
        None
    }

    /// Reads what is due. An error is the whole device's.
    fn read(&self, gpu: &mut Gpu, schedule: &mut Schedule) -> Result<(), NvmlError> {
        let now = Instant::now();
        let hints = self.shared.hints();
        let listing = now >= schedule.processes || hints != schedule.hints;
        if listing {
            (schedule.processes, schedule.hints) = (now + self.shared.options.processes_interval, hints);
            self.station.pulse.call(|| gpu.find_instances(self.nvml)).0?;
        }
        if now >= schedule.utilisation {
            schedule.utilisation = now + UTILISATION_INTERVAL;
            gpu.whole.utilisation_percent = self.utilisation(&gpu.whole)?;
        }
        for part in gpu.parts() {
            self.memory(part)?;
            if listing {
                self.processes(part)?;
            }
        }
        Ok(())
    }

    fn utilisation(&self, part: &Part) -> Result<Option<u32>, NvmlError> {
        match self.station.pulse.call(|| part.device.utilization_rates()).0 {
            Ok(rates) => Ok(Some(rates.gpu)),
            Err(error) if of_whole_device(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn memory(&self, part: &mut Part) -> Result<(), NvmlError> {
        let (answer, span) = self.station.pulse.call(|| {
            let v2 = match part.form {
                MemoryForm::V1 => Err(NvmlError::NotSupported),
                MemoryForm::V2 => calls::memory_v2(&part.device),
            };
            match v2 {
                Err(error) if lacks_v2(&error) => {
                    let v1 = calls::memory_v1(self.nvml, &part.device);
                    part.form = if v1.is_ok() { MemoryForm::V1 } else { MemoryForm::V2 };
                    v1
                }
                told => told,
            }
        });
        let (memory, problem) = match answer {
            Ok(memory) => (Some(memory), String::new()),
            Err(error) if of_whole_device(&error) => return Err(error),
            Err(NvmlError::NotSupported) => (
                None,
                "has no memory of its own (integrated GPU): the host's memory is the figure".to_owned(),
            ),
            Err(error) => (None, format!("memory cannot be read: {error}")),
        };
        self.shared.send(&Message::Reading(Reading {
            device: part.identity.clone(),
            span,
            name: part.name.clone(),
            index: part.index,
            parent: part.parent.clone(),
            instance: part.instance,
            memory,
            utilisation_percent: part.utilisation_percent,
            problem: problem.chars().take(PROBLEM_CHARS).collect(),
        }));
        Ok(())
    }

    fn processes(&self, part: &Part) -> Result<(), NvmlError> {
        let (answer, span) = self.station.pulse.call(|| calls::processes(self.nvml, &part.device));
        match answer {
            Ok(processes) => {
                let device = part.identity.clone();
                self.shared.send(&Message::Processes(Processes { device, span, processes }));
                self.station.set(|state| state.note.clear());
            }
            Err(error) if of_whole_device(&error) => return Err(error),
            Err(error) => self.station.set(|state| state.note = format!("no process list: {error}")),
        }
        Ok(())
    }

    /// Tells what became of the device; true when it is lost.
    fn judge(&self, whole: &Part, error: Option<NvmlError>, was_lost: bool) -> bool {
        match error {
            None => {
                self.station.set(|state| state.failure.clear());
                if was_lost {
                    self.tell(whole, What::Recovered);
                }
                false
            }
            Some(error) => {
                self.fail(&error);
                let lost = matches!(error, NvmlError::GpuLost) || was_lost;
                if lost && !was_lost {
                    self.tell(whole, What::Lost);
                }
                lost
            }
        }
    }

    fn tell(&self, whole: &Part, what: What) {
        let now_ns = crate::clock::now().0;
        let span = Span { not_before_ns: now_ns, not_after_ns: now_ns };
        self.shared.send(&Message::Event(Event { device: whole.identity.clone(), span, what }));
    }

    fn fail(&self, error: &NvmlError) {
        self.station.set(|state| state.failure = error.to_string());
        if matches!(
            error,
            NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch
        ) {
            self.shared.end(Reason::Failed, format!("the driver has to be opened anew: {error}"));
        }
    }
}

/// Errors after which nothing else of the device can be read.
fn of_whole_device(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::ResetRequired
    )
}

/// Answers of a driver or device that may know `nvmlDeviceGetMemoryInfo` only: no such symbol, no such function, or
/// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, which nvml-wrapper has no name for.
fn lacks_v2(error: &NvmlError) -> bool {
    const VERSION_MISMATCH: u32 =
        nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    matches!(
        error,
        NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NotSupported
            | NvmlError::InvalidArg
            | NvmlError::UnexpectedVariant(VERSION_MISMATCH)
    )
}
