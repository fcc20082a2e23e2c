//! A real vLLM on the CPU with the daemon beside it. Run by `make test-vllm`, those named `eval_…` by `make eval-vllm`.
//!
//! What is true is taken from outside the daemon: from what was streamed to the clients and from what vLLM says itself.

mod accuracy;
mod admission;
mod bodies;
mod daemon;
mod death;
mod engine;
mod failures;
mod gate;
mod http;
mod jinja;
mod load;
mod plan;
mod plot;
mod protocol;
mod record;
mod start_lines;
mod tokens;

use std::{
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::time::timeout;

use crate::{
    admission::Bout,
    daemon::{Daemon, engine_when},
    engine::Vllm,
    gate::Gate,
    load::Load,
    record::Record,
};

/// A whole test, loading included.
const TEST_TIMEOUT: Duration = Duration::from_mins(25);
/// The smaller pool, and several times the load that it can take.
const SMALL: Bout =
    Bout { pool: 127, load: Load { apart: Duration::from_millis(300), offered: Duration::from_secs(45) } };
/// The larger one likewise.
const LARGE: Bout =
    Bout { pool: 511, load: Load { apart: Duration::from_millis(75), offered: Duration::from_secs(30) } };
/// Share of the pool of the model tiny that makes it as small as [`SMALL`]: it has 65,535 blocks.
const TINY_SHARE: f64 = 127.0 / 65_535.0;
/// The programs for the kernel, as this checkout has them.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/gpuadmit.bpf.o");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn a_real_engine_is_found_kept_from_overflowing_and_its_freeze_and_death_are_noticed() {
    judge(async {
        let folder = output_folder()?;
        let mut vllm = Vllm::start(&folder, "mid", Some(SMALL.pool + 1), &[])?;
        vllm.ready().await?;
        let id = vllm.id();
        let open = admission::compared(&folder, &vllm, &id, SMALL).await?;
        let daemon = Daemon::start(&folder).await?;
        let gate = Gate::new(daemon.channel(), vllm.port, &vllm.model);
        let record = Record::begin(daemon.channel(), gate.clone(), id.clone(), vllm.port);
        let outcome = async {
            admission::found(&daemon, &id, &vllm, SMALL.pool).await?;
            admission::loaded(&gate, &vllm, &record, &open, SMALL).await?;
            failures::empty_again(&daemon, &id, SMALL.pool).await?;
            failures::frozen(&daemon, &id, &gate, &vllm).await?;
            failures::empty_again(&daemon, &id, SMALL.pool).await?;
            failures::killed(&daemon, &id, &gate, &vllm).await
        }
        .await;
        keep(&folder, "admission", &record, SMALL.pool)?;
        println!("gpuadmitd resident: {} KiB", daemon.resident_kib()?);
        outcome?;
        daemon.stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn prompts_and_pools_are_reckoned_as_a_real_engine_does_and_its_death_closes_admission() {
    judge(async {
        let folder = output_folder()?;
        let mut vllm = Vllm::start(&folder, "tiny", None, &[])?;
        vllm.ready().await?;
        plan::agrees(&vllm, "tiny").await?;
        let config = format!(
            "[admission]\nceiling = {TINY_SHARE}\n[tokens]\ndeadline_ms = 10000\n[kernel]\nobject = {PROGRAMS:?}\n\
             [state]\nenabled = false\n"
        );
        let daemon = Daemon::configured(&folder, "tiny", &config).await?;
        let within = Duration::from_secs(20);
        engine_when(&daemon.channel(), &vllm.id(), within, "ready", admission::ready).await?;
        tokens::agree(&vllm, "tiny", daemon.channel()).await?;
        death::closes(daemon.channel(), &vllm).await?;
        daemon.stop().await
    })
    .await;
}

/// Another seed each time, unless `GPUADMIT_SEED` is set.
#[tokio::test]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn request_bodies_are_read_as_vllms_own_classes_read_them() {
    judge(protocol::agrees()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn templates_are_rendered_as_a_real_engine_renders_them_or_not_at_all() {
    judge(async { jinja::agrees() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make eval-vllm"]
async fn eval_a_larger_pool_is_kept_from_overflowing() {
    judge(async {
        let folder = output_folder()?;
        let mut vllm = Vllm::start(&folder, "mid", Some(LARGE.pool + 1), &[])?;
        vllm.ready().await?;
        let id = vllm.id();
        let open = admission::compared(&folder, &vllm, &id, LARGE).await?;
        for scraped_ms in [200, 1000, 5000] {
            println!("scraped every {scraped_ms} ms");
            let config = format!(
                "[vllm]\nscrape_interval_min_ms = {scraped_ms}\nscrape_interval_max_ms = {scraped_ms}\n\
                 [state]\nenabled = false\n"
            );
            let daemon = Daemon::configured(&folder, "larger", &config).await?;
            let gate = Gate::new(daemon.channel(), vllm.port, &vllm.model);
            let record = Record::begin(daemon.channel(), gate.clone(), id.clone(), vllm.port);
            let outcome = async {
                admission::found(&daemon, &id, &vllm, LARGE.pool).await?;
                admission::loaded(&gate, &vllm, &record, &open, LARGE).await
            }
            .await;
            keep(&folder, &format!("larger-{scraped_ms}"), &record, LARGE.pool)?;
            outcome?;
            daemon.stop().await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make eval-vllm"]
async fn eval_plans_are_what_real_engines_report() {
    judge(async {
        let folder = output_folder()?;
        // On the CPU latent attention takes blocks of 16 tokens only.
        let latent: &[&str] = &["--block-size", "16"];
        for (size, options) in [("mid", &[][..]), ("mha", &[]), ("window", &[]), ("latent", latent)] {
            let mut vllm = Vllm::start(&folder, size, None, options)?;
            vllm.ready().await?;
            plan::agrees(&vllm, size).await?;
        }
        Ok(())
    })
    .await;
}

#[test]
#[ignore = "needs a real vLLM: make test-vllm"]
fn start_lines_are_read_as_vllm_reads_them() {
    start_lines::agree().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Fails the test with what went wrong.
async fn judge(run: impl Future<Output = Result<()>>) {
    let outcome =
        timeout(TEST_TIMEOUT, run).await.context("the test took too long").and_then(|outcome| outcome);
    if let Err(error) = outcome {
        panic!("{error:#}");
    }
}

/// Writes the time series and its plot.
fn keep(folder: &Path, name: &str, record: &Record, pool: u32) -> Result<()> {
    let samples = record.samples();
    std::fs::write(folder.join(name).with_extension("csv"), record::csv(&samples))?;
    std::fs::write(folder.join(name).with_extension("svg"), plot::svg(&samples, pool))?;
    println!("time series and plot: {}", folder.display());
    Ok(())
}

/// `target/vllm`, emptied of an earlier run's files by overwriting them.
fn output_folder() -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let folder = target.join("vllm");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
