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
    let odd = CONFIG.replace("\"num_attention_heads\":4", "\"num_attention_heads\":\"many\"");
    fs::write(folder.path().join("odd.json"), odd).unwrap();
    let new = CONFIG.replace("llama", "llama9");
    fs::write(folder.path().join("new.json"), new).unwrap();
    let memory = ["--gpu-memory", "1GiB"];
    for (path, arguments, says) in [
        (nowhere.as_path(), memory.as_slice(), "nowhere"),
        (
            &folder.path().join("odd.json"),
            &memory,
            "num_attention_heads: \"many\" is not allowed; a whole number",
        ),
        (
            &folder.path().join("new.json"),
            &memory,
            "model_type \"llama9\": this program does not know its KV cache",
        ),
        (folder.path(), &["--gpu-memory", "1 GiX"], "a size with its unit, such as 80GiB"),
        (
            folder.path(),
            &["--gpu-memory", "80"],
            "'--gpu-memory <SIZE>': it has no unit; give a size with its unit",
        ),
        (folder.path(), &["--kv-memory", "1073741824"], "it has no unit"),
        (folder.path(), &["--gpu-memory", "1GiB", "--weights", "16"], "it has no unit"),
        (folder.path(), &["--gpu-memory", "1GiB", "--other", "16"], "it has no unit"),
        (folder.path(), &["--kv-memory", "1GiB", "--kv-cache-dtype", "nvfp4"], "invalid value 'nvfp4'"),
        (folder.path(), &["--kv-memory", "1GiB", "--speculative-config", "{}"], "--speculative-config"),
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

/// What vLLM 0.32's own code made of each model of `data/plan.json` (`vllm/kv_cache.py` writes it).
#[test]
fn vllm_lays_out_the_same_cache_for_every_family() {
    let models: Vec<Value> = serde_json::from_str(&fs::read_to_string("data/plan.json").unwrap()).unwrap();
    assert!(models.len() > 50);
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for model in &models {
        fs::write(folder.path().join("config.json"), model["config"].to_string()).unwrap();
        let options: Vec<&str> =
            model["options"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
        let memory = format!("{}B", model["memory_bytes"]);
        let output = plan(folder.path(), &[&["--json", "--kv-memory", &memory], options.as_slice()].concat());
        let planned: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let keys = ["bytes_per_token", "bytes_per_block", "blocks", "tokens", "max_model_len"];
        for key in keys {
            let (planned, of_vllm) = (&planned[key], &model["vllm"][key]);
            if planned != of_vllm {
                wrong.push(format!("{} {key}: {planned} for {of_vllm}; {output:?}", model["name"]));
            }
        }
        // The weights are estimated within 3 %, or not at all. GPUs that share a KV head hold its weights twice.
        let output =
            plan(folder.path(), &[&["--json", "--gpu-memory", "100TiB"], options.as_slice()].concat());
        let estimate = serde_json::from_slice::<Value>(&output.stdout);
        let Some(estimate) = estimate.ok().and_then(|plan| plan["memory"]["weights_bytes"].as_f64()) else {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(error.contains("give it with --weights"), "{}: {error}", model["name"]);
            continue;
        };
        let ratio = estimate / model["vllm"]["weights_bytes"].as_f64().unwrap();
        if !(0.97..1.03).contains(&ratio) {
            wrong.push(format!("{}: weights {ratio:.3} of vLLM's", model["name"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_index_of_the_files_gives_the_weights_where_they_are_absent() {
    let folder = folder();
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"metadata":{"total_size":134217728},"weight_map":{}}"#).unwrap();
    let memory = ["--gpu-memory", "1GiB", "--other", "64MiB", "--json"];
    let planned = json(&plan(folder.path(), &memory));
    assert_eq!(planned["memory"]["weights_bytes"], 128 << 20);
    assert_eq!(planned["memory"]["weights_origin"], "index of the files");
    fs::write(&index, r#"{"metadata":{}}"#).unwrap();
    let error = String::from_utf8(plan(folder.path(), &memory).stderr).unwrap();
    assert!(error.contains("metadata.total_size is absent"), "{error}");
}

#[test]
fn an_automatic_window_is_the_longest_that_fits() {
    let folder = folder();
    // 1 MiB are 128 blocks of 16 tokens, one of them the null block.
    let asked = |window: &str| {
        json(&plan(folder.path(), &["--kv-memory", "1MiB", "--max-model-len", window, "--json"]))
    };
    for window in ["auto", "-1"] {
        assert_eq!((&asked(window)["max_model_len"], &asked(window)["fits"]), (&2032.into(), &true.into()));
    }
    assert_eq!(asked("2k")["max_model_len"], 2000);
    assert_eq!(
        json(&plan(folder.path(), &["--kv-memory", "1GiB", "--max-model-len", "auto", "--json"]))["max_model_len"],
        4096
    );
}

#[test]
fn eight_bit_caches_have_all_of_vllms_names() {
    let folder = folder();
    for name in ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"] {
        let planned = plan(folder.path(), &["--kv-memory", "1GiB", "--kv-cache-dtype", name, "--json"]);
        assert_eq!(json(&planned)["bytes_per_token"], 256, "{name}");
    }
}

#[test]
fn gpus_that_cannot_share_the_kv_heads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // 12 heads go on four GPUs, 3 KV heads neither on four nor four times on one.
    let config = CONFIG.replace(
        "\"num_attention_heads\":4,\"num_key_value_heads\":2",
        "\"num_attention_heads\":12,\"num_key_value_heads\":3",
    );
    fs::write(folder.path().join("config.json"), config).unwrap();
    let on = |gpus: &str| plan(folder.path(), &["--kv-memory", "1GiB", "--tensor-parallel-size", gpus]);
    let error = String::from_utf8(on("4").stderr).unwrap();
    assert!(error.contains("a divisor or a multiple of its KV heads"), "{error}");
    assert!(on("6").status.success() && on("3").status.success());
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
