//! Canonical JSON of any message of the API, for scripts.
//!
//! Fields carry their names from the `.proto` files and are always there, also at their default; only what is absent
//! in the message (unknown) is left out. 64-bit integers are numbers, except `fixed64`: those are reservation ids, which
//! exceed what JSON readers keep exact (2^53), and are strings of decimal digits. Values of enums have their names as the
//! commands' text has them: `ready` for `ENGINE_STATE_READY`, `unknown` for what is unspecified; reasons of denials, which
//! have no prefix, stay `KV_FULL`.

use std::sync::LazyLock;

use gpuadmit_proto::FILE_DESCRIPTOR_SET;
use prost::{Message, Name};
use prost_reflect::{
    DescriptorError, DescriptorPool, DynamicMessage, EnumDescriptor, Kind, MessageDescriptor,
    SerializeOptions,
};
use serde_json::Value;

static DESCRIPTORS: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET));

/// Why a message has no JSON. Each means that the program was built from parts that do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// The embedded descriptors cannot be read.
    #[error("descriptors of the API: {0}")]
    Descriptors(String),
    /// The embedded descriptors lack the message.
    #[error("the API has no message {0}")]
    UnknownMessage(String),
    /// The message does not fit its descriptor.
    #[error("message does not fit its descriptor: {0}")]
    Mismatch(#[from] prost::DecodeError),
    /// JSON could not be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// `message` as JSON.
///
/// # Errors
/// The message is not one of this API.
pub fn json<M: Message + Name>(message: &M) -> Result<Value, CanonicalError> {
    let pool = DESCRIPTORS.as_ref().map_err(|error| CanonicalError::Descriptors(error.to_string()))?;
    let name = M::full_name();
    let descriptor = pool.get_message_by_name(&name).ok_or(CanonicalError::UnknownMessage(name))?;
    let dynamic = DynamicMessage::decode(descriptor.clone(), message.encode_to_vec().as_slice())?;
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(false)
        .use_proto_field_name(true)
        .skip_default_fields(false);
    let mut value = dynamic.serialize_with_options(serde_json::value::Serializer, &options)?;
    rewrite(&mut value, &descriptor);
    Ok(value)
}

/// The word for the value `name` of `kind`.
fn word(kind: &EnumDescriptor, name: &str) -> String {
    let letters = kind.name().char_indices();
    let snake = letters.map(|(index, letter)| match letter {
        _ if index > 0 && letter.is_ascii_uppercase() => format!("_{letter}"),
        _ => letter.to_ascii_uppercase().to_string(),
    });
    match name.strip_prefix(&format!("{}_", snake.collect::<String>())) {
        Some("UNSPECIFIED") => "unknown".to_owned(),
        Some(value) => value.to_ascii_lowercase(),
        None => name.to_owned(),
    }
}

/// Writes ids and values of enums as they are read elsewhere.
fn rewrite(message: &mut Value, descriptor: &MessageDescriptor) {
    for field in descriptor.fields() {
        let Some(value) = message.get_mut(field.name()) else { continue };
        let kind = field.kind();
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| rewrite_one(item, &kind)),
            single => rewrite_one(single, &kind),
        }
    }
}

fn rewrite_one(value: &mut Value, kind: &Kind) {
    let written = match (kind, &mut *value) {
        (Kind::Message(inner), _) => return rewrite(value, inner),
        (Kind::Fixed64, Value::Number(id)) => id.to_string(),
        (Kind::Enum(kind), Value::String(name)) => word(kind, name),
        _ => return,
    };
    *value = Value::String(written);
}

#[cfg(test)]
mod tests {
    use gpuadmit_proto::v1;
    use serde_json::json as expected;

    use super::*;

    #[test]
    fn arrays_and_defaults_are_there_and_unknown_values_are_not() {
        let status = json(&v1::StatusResponse::default()).unwrap();
        assert_eq!(status["engines"], expected!([]));
        assert_eq!(status["devices"], expected!([]));
        assert_eq!(status["simulated"], expected!(false));
        let pool = json(&v1::Pool { rank: 0, running: Some(0), ..Default::default() }).unwrap();
        assert_eq!(pool, expected!({"rank": 0, "running": 0}));
    }

    #[test]
    fn large_integers_are_numbers_and_ids_are_decimal_strings() {
        let id = 0xff_ffff_0000_0001;
        let admitted = v1::Admitted { reservation_id: id, blocks_reserved: u64::MAX, ..Default::default() };
        let response = v1::AdmitResponse {
            result: Some(v1::admit_response::Result::Admitted(admitted)),
            ..Default::default()
        };
        let json_response = json(&response).unwrap();
        assert_eq!(json_response["admitted"]["reservation_id"], expected!("72057589742960641"));
        assert_eq!(json_response["admitted"]["blocks_reserved"], expected!(u64::MAX));
        let adopted = json(&v1::AdoptResponse { adopted: vec![1, 2] }).unwrap();
        assert_eq!(adopted["adopted"], expected!(["1", "2"]));
    }

    #[test]
    fn enums_are_the_words_of_the_text_and_unknown_ones_their_numbers() {
        let engine = v1::Engine {
            state: v1::EngineState::Ready.into(),
            mode: v1::Mode::Observe.into(),
            ..Default::default()
        };
        let engine = json(&engine).unwrap();
        assert_eq!((&engine["state"], &engine["mode"]), (&expected!("ready"), &expected!("observe")));
        let source = v1::Source { health: v1::SourceHealth::Degraded.into(), ..Default::default() };
        assert_eq!(json(&source).unwrap()["health"], expected!("degraded"));
        assert_eq!(json(&v1::Source::default()).unwrap()["health"], expected!("unknown"));
        let event = v1::Event { severity: v1::Severity::Critical.into(), ..Default::default() };
        assert_eq!(json(&event).unwrap()["severity"], expected!("critical"));
        let mut denied = v1::Denied { reason: v1::denied::Reason::KvFull.into(), ..Default::default() };
        assert_eq!(json(&denied).unwrap()["reason"], expected!("KV_FULL"));
        denied.reason = 999;
        assert_eq!(json(&denied).unwrap()["reason"], expected!(999));
    }
}
