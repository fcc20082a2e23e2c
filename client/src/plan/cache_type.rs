//! What a checkpoint's quantization says about the values in the KV cache.

use serde_json::{Map, Value};

use super::{PlanError, config::Config};

/// Bytes per value of the KV cache where vLLM takes its type from the checkpoint; `None`: the model's type (vLLM 0.32,
/// utils/torch_utils.py, `get_kv_cache_quant_algo_string`; layers/attention/attention.py).
pub(crate) fn cache_bytes(config: &Config) -> Result<Option<u64>, PlanError> {
    let Some(table) = config.quantization() else { return Ok(None) };
    let method = table.get("quant_method").and_then(Value::as_str).unwrap_or_default();
    let inner = table.get("quantization").and_then(Value::as_object);
    let of_modelopt = method.starts_with("modelopt") || table.contains_key("producer") || inner.is_some();
    let keys: &[&str] = match method {
        _ if of_modelopt => &["kv_cache_scheme", "kv_cache_quant_algo"],
        "compressed-tensors" | "compressed_tensors" => &["kv_cache_scheme"],
        _ => return Ok(None),
    };
    let tables = inner.into_iter().chain([table]);
    let mut says =
        keys.iter().flat_map(|key| tables.clone().filter_map(|table| Some((*key, table.get(*key)?))));
    let set = says.find(|(_, value)| !value.is_null());
    set.map_or(Ok(None), |(key, value)| bytes(key, value))
}

fn bytes(key: &str, value: &Value) -> Result<Option<u64>, PlanError> {
    let is_float = |table: &Map<String, Value>| table.get("type").and_then(Value::as_str) == Some("float");
    match value {
        Value::Object(table) if is_float(table) && table.get("num_bits") == Some(&Value::from(8)) => {
            Ok(Some(1))
        }
        Value::String(word) if word.eq_ignore_ascii_case("fp8") => Ok(Some(1)),
        Value::String(word) if word.is_empty() || word.eq_ignore_ascii_case("none") => Ok(None),
        _ => Err(PlanError::Unknown(format!("quantization_config.{key}: {value}"))),
    }
}
