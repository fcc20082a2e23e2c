//! What the daemon sees: sources that fail, engines' states, and settings of engines that ask for trouble.

use std::collections::BTreeMap;

use gpuadmit_client::v1::{
    Engine, EngineSettings, EngineState, Mode, Obstacle, Source, SourceHealth, StatusResponse,
};

use super::{Case, Finding};

/// Share of device memory above which an engine leaves too little for what lies outside of PyTorch.
const MOST_UTILIZATION: f64 = 0.95;
/// Tokens of KV cache that each running sequence should find room for: less than a short chat.
const LEAST_TOKENS_PER_SEQUENCE: u64 = 256;

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let Ok(status) = &case.status else { return vec![] };
    let mut findings: Vec<Finding> =
        status.sources.iter().filter_map(|one| source(one, case.service.config.nvml.enabled)).collect();
    if status.engines.is_empty() {
        let text = "none was found";
        findings
            .push(Finding::note("engines.found", text).with("start vLLM, or name it in an [[engine]] entry"));
    }
    for engine in &status.engines {
        findings.extend(examine_one(engine));
    }
    findings.extend(shared_devices(status));
    let problems = status.devices.iter().filter(|device| !device.problem.is_empty());
    findings.extend(problems.map(|device| {
        let text = format!("device {}: {}", device.index, device.problem);
        Finding::warning("device.problem", text, "nvidia-smi -q; dmesg | grep -e NVRM -e Xid")
    }));
    findings
}

/// A source that does not deliver all that it should.
fn source(source: &Source, with_nvml: bool) -> Option<Finding> {
    let text = format!("{}: {}", source.name, source.detail);
    // Where there is no driver, driver.gpu has said so.
    match (source.name.as_str(), source.health()) {
        (_, SourceHealth::Ok | SourceHealth::Absent | SourceHealth::Unspecified) => None,
        ("nvml", _) if !with_nvml => None,
        // As the operator wanted it.
        _ if source.detail.contains("switched off") => Some(Finding::note("source.off", text)),
        (name, SourceHealth::Failed) => {
            Some(Finding::error("source.failed", text, advice(name, &source.detail)))
        }
        (name, SourceHealth::Degraded) => {
            Some(Finding::warning("source.degraded", text, advice(name, &source.detail)))
        }
    }
}

fn advice(name: &str, detail: &str) -> String {
    if let Some(engine) = name.strip_prefix("metrics/") {
        return match detail {
            _ if detail.starts_with("HTTP 401") || detail.starts_with("HTTP 403") => format!(
                "the engine wants a key: put it into a file, name that as api_key_file in an [[engine]] entry with \
                 id \"{engine}\", and restart gpuadmit"
            ),
            _ if detail.contains("no vllm series") => {
                "start vLLM without --disable-log-stats; see what answers: curl ADDRESS/metrics".into()
            }
            _ => format!("curl the /metrics of {engine}; its own log"),
        };
    }
    match name {
        "nvml" => "nvidia-smi; dmesg | grep NVRM".into(),
        "kernel" => "see kernel.rights above; gpuadmit status".into(),
        "discovery" => "name those engines in [[engine]] entries, or grant CAP_SYS_PTRACE".into(),
        _ => "journalctl -u gpuadmit -n 50".into(),
    }
}

fn examine_one(engine: &Engine) -> Vec<Finding> {
    let mut findings = vec![state(engine), version(engine)];
    findings.extend(mode(engine));
    findings.extend(pool(engine));
    findings.extend(bypass(engine));
    if let Some(settings) = &engine.settings {
        findings.extend(utilization(engine, settings));
        findings.extend(sequences(engine, settings));
        findings.extend(statistics(engine, settings));
        findings.extend(obstacle(engine, settings));
        findings.extend(unfiltered(engine, settings));
    }
    findings
}

fn state(engine: &Engine) -> Finding {
    const CHECK: &str = "engine.state";
    let word = engine.state().as_str_name().trim_start_matches("ENGINE_STATE_").to_lowercase();
    let text = format!("{} is {word}: {}", engine.id, engine.state_reason);
    let look = || format!("gpuadmit events; the log of {}", engine.id);
    match engine.state() {
        EngineState::Ready => Finding::ok(CHECK, text),
        EngineState::Starting | EngineState::Draining | EngineState::Asleep => Finding::note(CHECK, text),
        EngineState::Suspect | EngineState::Unknown | EngineState::Unspecified => {
            Finding::warning(CHECK, text, look())
        }
        EngineState::Stalled | EngineState::Down => Finding::error(CHECK, text, look()),
    }
}

fn version(engine: &Engine) -> Finding {
    const CHECK: &str = "engine.version";
    let version = engine.version.as_deref().unwrap_or("of an unknown version");
    let known = engine.settings.as_ref().is_none_or(|settings| settings.version_known);
    // An engine that has not answered yet has no version.
    if known || engine.state() != EngineState::Ready {
        return Finding::ok(CHECK, format!("{} is {version}", engine.id));
    }
    let text = format!(
        "{} is {version}, whose metrics are not known: it is only observed, nothing is denied",
        engine.id
    );
    Finding::warning(CHECK, text, "upgrade gpuadmit, or run a vLLM from 0.8 to 0.32")
}

/// Observed because the operator wants it so. For want of knowledge, others have said what is missing.
fn mode(engine: &Engine) -> Option<Finding> {
    let known = engine.settings.as_ref().is_none_or(|settings| settings.version_known) && has_pool(engine);
    (engine.mode() == Mode::Observe && engine.state() == EngineState::Ready && known).then(|| {
        let text = format!("{} is only observed: what does not fit is admitted and counted", engine.id);
        Finding::note("engine.mode", text)
            .with("mode = \"enforce\" in the configuration, once `gpuadmit report` looks right")
    })
}

/// A pool of unknown size denies nothing.
fn pool(engine: &Engine) -> Option<Finding> {
    (engine.state() == EngineState::Ready && !has_pool(engine)).then(|| {
        let text =
            format!("the size of {}'s KV cache is unknown: it cannot deny for want of room", engine.id);
        Finding::warning("engine.pool", text, "curl ADDRESS/metrics | grep cache_config_info")
    })
}

fn has_pool(engine: &Engine) -> bool {
    engine.pools.iter().any(|pool| pool.blocks_total.is_some())
}

fn bypass(engine: &Engine) -> Option<Finding> {
    let number = engine.bypass_requests.filter(|number| *number > 0)?;
    let text = format!("{number} requests at {} did not ask for admission: room is kept for such", engine.id);
    Some(Finding::note("engine.bypass", text).with("send them through the gateway"))
}

fn utilization(engine: &Engine, settings: &EngineSettings) -> Option<Finding> {
    let share = settings.gpu_memory_utilization.filter(|share| *share > MOST_UTILIZATION)?;
    let text = format!(
        "{} takes {share} of its GPU's memory: what CUDA graphs, NCCL and other processes need beside it may end it by \
         CUDA out of memory",
        engine.id
    );
    Some(Finding::warning("engine.utilization", text, "start vLLM with --gpu-memory-utilization 0.92"))
}

fn sequences(engine: &Engine, settings: &EngineSettings) -> Option<Finding> {
    let most = settings.max_num_seqs.filter(|most| *most > 0)?;
    let tokens =
        engine.pools.iter().filter_map(|pool| pool.blocks_total?.checked_mul(pool.block_size?)).min()?;
    let each = tokens / most;
    (each < LEAST_TOKENS_PER_SEQUENCE).then(|| {
        let text = format!(
            "{} may run {most} sequences in a KV cache of {tokens} tokens, {each} for each: without admission they \
             preempt one another",
            engine.id
        );
        let fits = (tokens / LEAST_TOKENS_PER_SEQUENCE).max(1);
        Finding::warning("engine.sequences", text, format!("start vLLM with --max-num-seqs {fits} or less, or with a larger KV cache"))
    })
}

fn statistics(engine: &Engine, settings: &EngineSettings) -> Option<Finding> {
    settings.statistics_off.then(|| {
        let text = format!(
            "{} runs with --disable-log-stats: its KV cache is not seen, and only the ledger decides",
            engine.id
        );
        Finding::error("engine.statistics", text, "start vLLM without --disable-log-stats")
    })
}

/// What its start line puts in the way of asking it.
fn obstacle(engine: &Engine, settings: &EngineSettings) -> Option<Finding> {
    let (cause, remedy) = match settings.obstacle() {
        Obstacle::Unspecified => return None,
        Obstacle::Tls => (
            "serves TLS (--ssl-certfile, --ssl-keyfile), which gpuadmit does not speak",
            "start vLLM without TLS on 127.0.0.1 or --uds, and put a TLS proxy in front of it",
        ),
        Obstacle::Grpc => ("serves gRPC (--grpc), which has no /metrics", "start vLLM without --grpc"),
        Obstacle::Headless => (
            "has no API server (--headless): that of another node answers for it",
            "ask the gpuadmit of the node that serves the API",
        ),
        Obstacle::RelativeSocket => (
            "has a relative --uds, and its working directory cannot be seen",
            "give --uds an absolute path, or grant gpuadmitd CAP_SYS_PTRACE",
        ),
    };
    let text = format!("{} {cause}: its figures are not seen, and it is only observed", engine.id);
    Some(Finding::warning("engine.obstacle", text, remedy))
}

fn unfiltered(engine: &Engine, settings: &EngineSettings) -> Option<Finding> {
    (settings.metrics_filtered == Some(false)).then(|| {
        let every =
            engine.scrape_interval_ms.map_or_else(|| "seldom".to_owned(), |ms| format!("every {ms} ms"));
        let text = format!(
            "{} answers for all of /metrics only, which costs it five times as much: it is read {every}",
            engine.id
        );
        Finding::note("engine.metrics", text)
            .with("one API server (--api-server-count 1) and no data parallelism filter it")
    })
}

/// Engines that share a device size their KV caches as if each were alone.
fn shared_devices(status: &StatusResponse) -> Vec<Finding> {
    let mut by_device: BTreeMap<&str, Vec<&Engine>> = BTreeMap::new();
    for engine in status.engines.iter().filter(|engine| engine.state() != EngineState::Down) {
        for device in &engine.devices {
            by_device.entry(device).or_default().push(engine);
        }
    }
    let shared = by_device.into_iter().filter(|(_, engines)| engines.len() > 1);
    shared
        .map(|(device, engines)| {
            let names: Vec<&str> = engines.iter().map(|engine| engine.id.as_str()).collect();
            let shares = engines.iter().map(|engine| engine.settings.as_ref()?.gpu_memory_utilization);
            let sum: Option<f64> = shares.sum();
            let told = match sum {
                Some(sum) => format!("they may take {sum:.2} of it together"),
                None => "what each may take is not known".to_owned(),
            };
            let text = format!("{} are both on {device}: {told}, and one that grows can end the other", names.join(" and "));
            let remedy = "give each a device (CUDA_VISIBLE_DEVICES), or shares of --gpu-memory-utilization that add up to \
                          0.9";
            match sum {
                Some(sum) if sum > 1.0 => Finding::error("engines.shared", text, remedy),
                _ => Finding::warning("engines.shared", text, remedy),
            }
        })
        .collect()
}
