//! A daemon in the test's own process, without sources, on a socket in a folder of its own.

use std::{path::PathBuf, sync::Arc, time::Duration};

use gpuadmit_client::{Connection, connect};
use gpuadmit_core::{
    observation::{
        EngineFacts, EngineProcess, EngineReading, Observation, ProcessRole, RankReading, ServedModel,
    },
    units::{Span, Tokens},
};
use gpuadmit_proto::v1::{AdmitRequest, admit_request::Prompt};
use gpuadmitd::{
    clock,
    config::Config,
    daemon::{Daemon, DaemonError},
    handle::Handle,
};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

/// A configuration without sources, so that the node knows what the test tells it and nothing else.
#[must_use]
pub fn quiet() -> Config {
    let mut config = Config::default();
    config.nvml.enabled = false;
    config.vllm.discover = false;
    config.kernel.enabled = false;
    config.host.enabled = false;
    config.state.enabled = false;
    config.prometheus.enabled = false;
    config.limits.snapshot_interval_ms = 10;
    config
}

/// The daemon.
pub struct Served {
    /// Its node, to tell it facts.
    pub handle: Handle,
    /// A connection to it.
    pub connection: Connection,
    folder: TempDir,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), DaemonError>>,
}

impl Served {
    /// Starts it; the socket of `config` is replaced.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test without its daemon has failed")]
    pub fn start(config: Config) -> Self {
        Self::start_in(config, tempfile::tempdir().expect("a temporary folder"))
    }

    /// Starts it with its socket in `folder`.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test without its daemon has failed")]
    pub fn start_in(mut config: Config, folder: TempDir) -> Self {
        let socket = folder.path().join("s");
        config.socket.path.clone_from(&socket);
        let daemon = Daemon::start(config, None).expect("the daemon starts");
        let handle = daemon.handle().clone();
        let connection = connect(&socket).expect("a short path");
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(daemon.serve(async {
            let _ = stopped.await;
        }));
        Self { handle, connection, folder, stop, serving }
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Stops it, and returns the folder of its socket when it has ended.
    ///
    /// # Panics
    /// It ended with an error.
    #[expect(clippy::expect_used, reason = "a daemon that ends badly fails the test")]
    pub async fn stop(self) -> TempDir {
        let _ = self.stop.send(());
        self.serving.await.expect("it did not panic").expect("it ended well");
        self.folder
    }
}

/// Tells `handle` of engine `e`: idle, ready, with model `m`, a window of 4,096 tokens and 100 blocks of 16 tokens.
pub fn ready_engine(handle: &Handle) {
    ready_engine_of(handle, EngineProcess { pid: 1, start_ticks: 1, role: ProcessRole::ApiServer });
}

/// The same of an engine that is this process.
pub fn ready_engine_of(handle: &Handle, process: EngineProcess) {
    let engine: Arc<str> = "e".into();
    let span = Span::at(clock::now());
    handle.observe(Observation::Engine(Box::new(EngineFacts {
        engine: Arc::clone(&engine),
        address: "http://127.0.0.1:8000".into(),
        span,
        version: Some("vllm 0.32.0".into()),
        version_known: true,
        models: vec![ServedModel { name: "m".into(), max_model_len: Some(Tokens(4096)) }],
        adapters_at_runtime: false,
        processes: vec![process],
        block_size: Some(16),
        max_num_seqs: None,
        max_num_batched_tokens: None,
        gpu_memory_utilization: None,
        data_parallel_size: 1,
        model_source: None,
        obstacle: None,
        statistics_off: false,
        metrics_filtered: None,
    })));
    let rank = RankReading {
        kv_usage: Some(0.0),
        running: Some(0),
        waiting: Some(0),
        num_gpu_blocks: Some(101),
        block_size: Some(16),
        finished: Some(0),
        steps: Some(0),
        generation_tokens: Some(0),
        prompt_tokens: Some(0),
        ..RankReading::default()
    };
    let interval = Duration::from_secs(1);
    let reading = EngineReading { span, ranks: vec![rank], interval, ..EngineReading::default() };
    handle.observe(Observation::Reading { engine, reading: Box::new(reading) });
}

/// A request for model `m` with `prompt` tokens and at most `output` more.
#[must_use]
pub fn admit(prompt: u64, output: u64) -> AdmitRequest {
    AdmitRequest {
        model: "m".into(),
        prompt: Some(Prompt::PromptTokens(prompt)),
        max_tokens: Some(output),
        ..AdmitRequest::default()
    }
}
