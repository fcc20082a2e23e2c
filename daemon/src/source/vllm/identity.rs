//! Who an engine says it is: `/version` and `/v1/models`.

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    observation::{ScrapeFailure, ServedModel},
    units::Tokens,
};
use serde::Deserialize;

use super::http::Client;

/// Largest answer read.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Most models kept, adapters included.
pub const MAX_MODELS: usize = 256;
/// Longest model name kept.
const MAX_NAME_BYTES: usize = 256;
/// Longest version kept.
const MAX_VERSION_BYTES: usize = 64;
/// Minor versions of vLLM 0.x whose metrics were read and compared: captures of 0.8, 0.10, 0.11, 0.12, 0.16, 0.20,
/// 0.28 and 0.32. Between two that agree, what lies between is trusted; beyond them, nothing is.
const KNOWN_MINORS: std::ops::RangeInclusive<u32> = 8..=32;

/// Models as the engine lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// At most [`MAX_MODELS`].
    pub models: Vec<ServedModel>,
    /// Whether an adapter is among them.
    pub has_adapters: bool,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    max_model_len: Option<u64>,
    /// The base model, of an adapter.
    #[serde(default)]
    parent: Option<String>,
}

/// Asks for the version, such as `0.32.0`; `None` when it does not tell.
///
/// # Errors
/// The connection's failure, or an answer that is no version.
pub async fn version(client: &mut Client, deadline: Duration) -> Result<Option<String>, ScrapeFailure> {
    let Some(body) = get(client, "/version", deadline).await? else { return Ok(None) };
    let Version { version } = decode("/version", &body)?;
    let fits = version.len() <= MAX_VERSION_BYTES && !version.contains(char::is_control);
    Ok(fits.then_some(version))
}

/// Asks for the models; `None` when it does not tell (401: it wants a key, and is alive).
///
/// # Errors
/// The connection's failure, or an answer that is no list of models.
pub async fn models(client: &mut Client, deadline: Duration) -> Result<Option<Listing>, ScrapeFailure> {
    let Some(body) = get(client, "/v1/models", deadline).await? else { return Ok(None) };
    decode("/v1/models", &body).map(|models| Some(listing(&models)))
}

/// Whether this version's metrics are known to be understood.
#[must_use]
pub fn version_known(version: &str) -> bool {
    let mut parts = version.split('.');
    let mut part = || parts.next()?.parse::<u32>().ok();
    part() == Some(0) && part().is_some_and(|minor| KNOWN_MINORS.contains(&minor))
}

async fn get(client: &mut Client, path: &str, deadline: Duration) -> Result<Option<Vec<u8>>, ScrapeFailure> {
    let mut body = vec![];
    let answer = client.get(path, &mut body, MAX_BODY_BYTES, deadline).await?;
    Ok((answer.status == 200).then_some(body))
}

fn decode<'a, T: Deserialize<'a>>(path: &str, body: &'a [u8]) -> Result<T, ScrapeFailure> {
    serde_json::from_slice(body).map_err(|error| ScrapeFailure::Malformed(format!("{path}: {error}")))
}

fn listing(models: &Models) -> Listing {
    let fits = |model: &&Model| !model.id.is_empty() && model.id.len() <= MAX_NAME_BYTES;
    // An adapter has its base model's window and may not tell it.
    let base_window = models.data.iter().find_map(|model| model.max_model_len);
    let served = models.data.iter().filter(fits).take(MAX_MODELS).map(|model| ServedModel {
        name: Arc::from(model.id.as_str()),
        max_model_len: model.max_model_len.or(base_window).filter(|length| *length > 0).map(Tokens),
    });
    Listing { models: served.collect(), has_adapters: models.data.iter().any(|model| model.parent.is_some()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_captures_at_both_ends_are_known() {
        for version in ["0.8.5.post2", "0.10.2.post2", "0.19.0", "0.32.0", "0.32.0+cpu", "0.32.1.dev3+g1"] {
            assert!(version_known(version), "{version}");
        }
        for version in ["0.7.3", "0.33.0", "1.0.0", "0.x", "dev", "", "0"] {
            assert!(!version_known(version), "{version}");
        }
    }

    #[test]
    fn an_adapter_has_the_window_of_its_base() {
        let body = br#"{"data":[{"id":"base","max_model_len":2048,"parent":null,"created":1},
                                {"id":"lora","parent":"base"},{"id":""}]}"#;
        let listing = listing(&decode("", body).unwrap());
        let names: Vec<_> = listing.models.iter().map(|model| (&*model.name, model.max_model_len)).collect();
        assert_eq!(names, [("base", Some(Tokens(2048))), ("lora", Some(Tokens(2048)))]);
        assert!(listing.has_adapters);
    }

    #[test]
    fn an_answer_that_lists_nothing_is_an_error() {
        for body in ["", "[]", "{\"data\":1}", "{\"data\":[{\"id\":7}]}", "<html>"] {
            assert!(decode::<Models>("/v1/models", body.as_bytes()).is_err(), "{body}");
        }
    }
}
