//! Starts the sources that the configuration asks for, on the real node or on a simulated one.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    config::{Config, Nvml},
    handle::Handle,
    rpc::ReleaseGpu,
    source::nvml::{self, ChildCommand, Origin, child::ChildOptions},
};

/// The simulated node to serve instead of the real one.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// Its scenario file; absent: the one built in.
    pub scenario: Option<PathBuf>,
}

/// The running sources; they stop when this is dropped.
#[derive(Default)]
pub(crate) struct Sources {
    /// How to let go of the driver; `None`: NVML is not in use.
    pub(crate) release_gpu: Option<ReleaseGpu>,
}

/// Starts the sources of `config`.
///
/// # Errors
/// The NVML child cannot be named.
pub(crate) fn start(
    config: &Config,
    simulation: Option<&Simulation>,
    handle: &Handle,
) -> io::Result<Sources> {
    if simulation.is_some() {
        return Ok(Sources::default());
    }
    let mut sources = Sources::default();
    if config.nvml.enabled {
        let command = ChildCommand::this_program(&child_options(&config.nvml))?;
        let nvml = nvml::spawn(Origin::Child(command), handle.observer());
        sources.release_gpu = Some(Arc::new(move |duration| {
            let nvml = nvml.clone();
            Box::pin(async move { nvml.release(duration).await })
        }));
    }
    Ok(sources)
}

fn child_options(nvml: &Nvml) -> ChildOptions {
    ChildOptions {
        library: nvml.library.clone(),
        memory_interval: Duration::from_millis(nvml.memory_interval_ms),
        processes_interval: Duration::from_millis(nvml.process_interval_ms),
        deadline: Duration::from_millis(nvml.call_deadline_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_means_the_defaults_of_the_nvml_child() {
        assert_eq!(child_options(&Nvml::default()), ChildOptions::default());
    }
}
