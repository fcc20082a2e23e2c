//! Starts the sources that the configuration asks for, on the real node or on a simulated one.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use gpuadmit_sim::Scenario;

use crate::{
    config::{self, Config, Nvml, read_bounded},
    handle::Handle,
    rpc::ReleaseGpu,
    simulate,
    source::{
        Observe,
        host::{self, Host},
        kernel::{self, Kernel},
        nvml::{self, ChildCommand, Origin, child::ChildOptions},
        vllm::{
            self, ConfiguredEngine, Options, Vllm,
            address::{Address, AddressError},
        },
    },
};

/// The driver is not opened again before the daemon has ended.
const UNTIL_THE_END: Duration = Duration::from_mins(1);
/// Largest API key file, bytes.
const MAX_KEY_BYTES: u64 = 4096;

/// Why a source cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    /// The NVML child would be this program, whose path cannot be told.
    #[error("cannot name the NVML child: {0}")]
    Child(io::Error),
    /// An engine's API key cannot be read.
    #[error("engine {engine:?}: api_key_file: cannot read {path}: {source}")]
    Key {
        /// Engine id.
        engine: String,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An engine's address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The simulated node cannot start.
    #[error(transparent)]
    Simulated(#[from] gpuadmit_sim::Error),
}

/// The running sources; they stop when this is dropped.
#[derive(Default)]
pub(crate) struct Sources {
    /// How to let go of the driver; `None`: NVML is not in use.
    pub(crate) release_gpu: Option<ReleaseGpu>,
    vllm: Option<Vllm>,
    _kernel: Option<Kernel>,
    _host: Option<Host>,
}

impl Sources {
    /// Lets go of the driver, as far as it lets go of us.
    pub(crate) async fn end(&self) {
        if let Some(release) = &self.release_gpu {
            release(UNTIL_THE_END).await;
        }
    }

    /// Returns when the engines that there are have been looked at once.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + use<> {
        let settled = self.vllm.as_ref().map(Vllm::settled);
        async move {
            if let Some(settled) = settled {
                settled.wait().await;
            }
        }
    }
}

/// Starts the sources of `config`.
///
/// # Errors
/// [`SourcesError`].
pub(crate) fn start(
    config: &Config,
    simulation: Option<Scenario>,
    handle: &Handle,
) -> Result<Sources, SourcesError> {
    if let Some(scenario) = simulation {
        return simulated(config, scenario, handle);
    }
    let options = vllm_options(config)?;
    let kernel = start_kernel(&config.kernel, handle);
    let observe =
        kernel.as_ref().map_or_else(|| handle.observer(), |kernel| kernel.listening(handle.observer()));
    let host = config.host.enabled.then(|| start_host(handle)).flatten();
    let observe =
        host.as_ref().map_or_else(|| Arc::clone(&observe), |host| host.listening(Arc::clone(&observe)));
    let wanted = options.discover || !options.engines.is_empty();
    let vllm = wanted.then(|| vllm::spawn(options, Arc::clone(&observe)));
    let release_gpu = config.nvml.enabled.then(|| start_nvml(&config.nvml, observe)).transpose()?;
    Ok(Sources { release_gpu, vllm, _kernel: kernel, _host: host })
}

/// The same is true of the host's memory.
fn start_host(handle: &Handle) -> Option<Host> {
    let spawned = host::spawn(host::Options::default(), handle.observer());
    spawned.inspect_err(|error| tracing::error!(%error, "the host's memory cannot be looked at")).ok()
}

/// What the kernel tells is never necessary: without it the daemon goes on.
fn start_kernel(kernel: &config::Kernel, handle: &Handle) -> Option<Kernel> {
    let options = kernel::Options {
        object: kernel.object.clone(),
        programs: kernel.programs,
        cuda: kernel.cuda_uprobes,
        ..kernel::Options::default()
    };
    let spawned = kernel.enabled.then(|| kernel::spawn(&options, handle.observer()));
    spawned?.inspect_err(|error| tracing::error!(%error, "the kernel cannot be listened to")).ok()
}

/// Real engines and configured ones are no part of a simulated node; all else is as configured.
fn simulated(config: &Config, scenario: Scenario, handle: &Handle) -> Result<Sources, SourcesError> {
    let options = vllm_options(config)?;
    let node = simulate::start(scenario, handle)?;
    let options = Options { discover: false, engines: node.engines, ..options };
    let vllm = vllm::spawn(options, node.observe);
    let nvml = nvml::spawn(Origin::Messages(node.devices), handle.observer());
    Ok(Sources { release_gpu: Some(release_gpu(nvml)), vllm: Some(vllm), _kernel: None, _host: None })
}

fn start_nvml(nvml: &Nvml, observe: Observe) -> Result<ReleaseGpu, SourcesError> {
    let command = ChildCommand::this_program(&child_options(nvml)).map_err(SourcesError::Child)?;
    Ok(release_gpu(nvml::spawn(Origin::Child(command), observe)))
}

fn release_gpu(nvml: nvml::Nvml) -> ReleaseGpu {
    Arc::new(move |duration| {
        let nvml = nvml.clone();
        Box::pin(async move { nvml.release(duration).await })
    })
}

fn child_options(nvml: &Nvml) -> ChildOptions {
    ChildOptions {
        library: nvml.library.clone(),
        memory_interval: Duration::from_millis(nvml.memory_interval_ms),
        processes_interval: Duration::from_millis(nvml.process_interval_ms),
        deadline: Duration::from_millis(nvml.call_deadline_ms),
    }
}

fn vllm_options(config: &Config) -> Result<Options, SourcesError> {
    let vllm = &config.vllm;
    Ok(Options {
        discover: vllm.discover,
        engines: config.engine.iter().map(engine).collect::<Result<_, _>>()?,
        discover_uids: vllm.discover_uids.clone(),
        scan_interval: Duration::from_millis(vllm.discover_interval_ms),
        cpu_share: vllm.scrape_cpu_share,
        min_interval: Duration::from_millis(vllm.scrape_interval_min_ms),
        max_interval: Duration::from_millis(vllm.scrape_interval_max_ms),
        scrape_timeout: Duration::from_millis(vllm.scrape_timeout_ms),
        ..Options::default()
    })
}

fn engine(from: &config::Engine) -> Result<ConfiguredEngine, SourcesError> {
    Ok(ConfiguredEngine {
        id: from.id.clone(),
        address: Address::parse(&from.address)?,
        models: from.models.clone(),
        api_key: api_key(from)?,
    })
}

/// The key in an engine's key file: one line of printable ASCII, as an HTTP header takes it.
fn api_key(from: &config::Engine) -> Result<Option<String>, SourcesError> {
    let Some(path) = &from.api_key_file else { return Ok(None) };
    let key = read_bounded(path, MAX_KEY_BYTES).and_then(|text| {
        let key = text.as_deref().map(str::trim).unwrap_or_default();
        let fine = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        let wrong = || io::Error::other("it is no key: one line of at most 4096 printable ASCII characters");
        fine.then(|| key.to_owned()).ok_or_else(wrong)
    });
    let failed = |source| SourcesError::Key { engine: from.id.clone(), path: path.clone(), source };
    key.map(Some).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_means_the_defaults_of_the_nvml_child() {
        assert_eq!(child_options(&Nvml::default()), ChildOptions::default());
    }

    #[test]
    fn no_file_means_the_defaults_of_the_vllm_source() {
        let times = |options: &Options| {
            [options.scan_interval, options.min_interval, options.max_interval, options.scrape_timeout]
        };
        let (ours, theirs) = (vllm_options(&Config::default()).unwrap(), Options::default());
        assert_eq!(times(&ours), times(&theirs));
        assert_eq!((ours.discover, ours.cpu_share), (theirs.discover, theirs.cpu_share));
    }

    fn with_key(content: &str) -> Result<Option<String>, SourcesError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, content).unwrap();
        let (id, address) = ("e".into(), "unix:/s".into());
        api_key(&config::Engine { id, address, models: vec![], mode: None, api_key_file: Some(file) })
    }

    #[test]
    fn a_key_is_one_printable_line() {
        assert_eq!(with_key("sk-123\n").unwrap().as_deref(), Some("sk-123"));
        for wrong in ["", "\n", "two\nlines", "caf\u{e9}", &"x".repeat(5000)] {
            let error = with_key(wrong).unwrap_err().to_string();
            assert!(error.ends_with("one line of at most 4096 printable ASCII characters"), "{error}");
        }
    }
}
