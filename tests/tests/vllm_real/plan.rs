//! `gpuadmit plan` against the size of the KV cache that a real vLLM reports.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::{
    daemon,
    engine::{Vllm, model_folder},
};

/// What the script leaves vLLM for its KV cache, and its context window.
const SERVED: [&str; 4] = ["--kv-memory", "1GiB", "--max-model-len", "2048"];

/// The plan for the model `size` says what `vllm`, started without a number of blocks, says of itself.
pub(crate) async fn agrees(vllm: &Vllm, size: &str) -> Result<()> {
    let block_size = vllm.cache_config("block_size").await?;
    let reported =
        (vllm.cache_config("num_gpu_blocks").await?, vllm.cache_config("kv_cache_size_tokens").await?);
    // Its own block size where layers of several kinds share blocks is none that it was given.
    let given = if size == "latent" { 16 } else { 32 };
    let output = Command::new(daemon::command()?)
        .arg("plan")
        .arg(model_folder(size)?)
        .args(SERVED)
        .args(["--block-size", &given.to_string(), "--json"])
        .output()
        .await?;
    let plan: Value = serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
    let number = |key: &str| plan[key].as_u64().with_context(|| format!("no {key} in {plan}"));
    let planned = (number("blocks")?, number("tokens")?);
    println!(
        "plan {size}: {} blocks, {} tokens; vLLM: {reported:?}, {block_size} a block",
        planned.0, planned.1
    );
    ensure!(planned == reported, "{size}: planned {planned:?} blocks and tokens, vLLM has {reported:?}");
    Ok(())
}
