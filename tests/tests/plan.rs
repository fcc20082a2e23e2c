//! `gpuadmit plan` as its callers see it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
};

use gpuadmit_tests::{
    binary::binary,
    served::{Served, quiet, ready_engine},
};
use serde_json::Value;
use tempfile::TempDir;

/// Two layers with two KV heads of 32 values: 2 × 2 × 2 × 32 × 2 = 512 bytes per token, 8 KiB per block of 16.
const CONFIG: &str = r#"{"model_type":"llama","hidden_size":128,"intermediate_size":256,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"vocab_size":512,"max_position_embeddings":4096}"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    folder
}

fn plan(model: &Path, arguments: &[&str]) -> Output {
    Command::new(binary("gpuadmit")).arg("plan").arg(model).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_weights_in_the_folder_and_the_given_rest_leave_the_cache() {
    let folder = folder();
    File::create(folder.path().join("model-1.safetensors")).unwrap().set_len(100 << 20).unwrap();
    File::create(folder.path().join("model-2.safetensors")).unwrap().set_len(28 << 20).unwrap();
    let memory = ["--gpu-memory", "1GiB", "--gpu-memory-utilization", "0.5", "--other", "64MiB", "--json"];
    let output = plan(folder.path(), &memory);
    assert!(output.status.success(), "{output:?}");
    let plan = json(&output);
    // 512 − 128 − 64 MiB = 320 MiB; in blocks of 8 KiB 40,960; of 16 tokens each.
    assert_eq!(plan["kv_cache_bytes"], 320 << 20);
    assert_eq!((&plan["bytes_per_token"], &plan["blocks"]), (&512.into(), &40_960.into()));
    assert_eq!(plan["tokens"], 655_360);
    assert_eq!(plan["memory"]["weights_origin"], "size of the files");
    // 4,096 tokens are 256 blocks; the null block is in none of 159 requests.
    let longest = plan["requests"].as_array().unwrap().last().unwrap();
    assert_eq!((&longest["tokens"], &longest["at_once"]), (&4096.into(), &159.into()));
}

#[test]
fn what_does_not_fit_says_what_to_change_and_fails() {
    let folder = folder();
    let asked = ["--kv-memory", "16MiB", "--concurrency", "10"];
    let output = plan(folder.path(), &asked);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    // 2,048 blocks, 2,047 of them usable: 7 requests of 256 blocks, or 10 of 204.
    for says in
        ["does not fit: 10 requests of 4,096 tokens", "--max-model-len 3264:", "--max-num-seqs 7:", "fp8"]
    {
        assert!(text.contains(says), "{says}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let mut changed = asked.to_vec();
    changed.extend(["--max-model-len", "3264"]);
    assert!(plan(folder.path(), &changed).status.success());
}

#[test]
fn errors_name_the_file_the_key_or_the_option() {
    let folder = folder();
    let nowhere = folder.path().join("nowhere");
    fs::write(folder.path().join("odd.json"), r#"{"num_attention_heads":"many"}"#).unwrap();
    let memory = ["--gpu-memory", "1GiB"];
    for (path, arguments, says) in [
        (nowhere.as_path(), memory.as_slice(), "nowhere"),
        (
            &folder.path().join("odd.json"),
            &memory,
            "num_attention_heads: \"many\" is not allowed; a whole number",
        ),
        (folder.path(), &["--gpu-memory", "1 GiX"], "a size such as 80GiB"),
        (folder.path(), &[], "--gpu-memory"),
        (
            folder.path(),
            &["--kv-memory", "1GiB", "--tensor-parallel-size", "3"],
            "a divisor of the model's 4",
        ),
        (folder.path(), &["--kv-memory", "1GiB", "--context", "5000"], "at most the context window, 4096"),
    ] {
        let output = plan(path, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_engine_is_compared_with_the_plan() {
    let folder = folder();
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let socket = served.socket();
    let (model, unknown) = (folder.path().to_owned(), folder.path().to_owned());
    let ask = move |model: std::path::PathBuf, id: &'static str| {
        let socket = socket.clone();
        tokio::task::spawn_blocking(move || {
            let socket = socket.to_str().unwrap().to_owned();
            plan(
                &model,
                &[
                    "--kv-memory",
                    "832KiB",
                    "--context",
                    "64",
                    "--max-model-len",
                    "1024",
                    "--engine",
                    id,
                    "--json",
                    "--socket",
                    &socket,
                ],
            )
        })
    };
    let output = ask(model, "e").await.unwrap();
    // 832 KiB are 104 blocks; the engine says 101.
    let compared = &json(&output)["engine"];
    assert_eq!(compared["blocks"], 101);
    let difference = compared["difference_percent"].as_f64().unwrap();
    assert!((difference - 300.0 / 101.0).abs() < 0.01, "{difference}");
    let error = String::from_utf8(ask(unknown, "x").await.unwrap().stderr).unwrap();
    assert!(error.contains("--engine: \"x\" is not allowed; one of [\"e\"]"), "{error}");
    served.stop().await;
}
