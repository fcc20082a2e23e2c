//! Canonical JSON of any message of the API, for scripts.
//!
//! Fields carry their names from the `.proto` files and are always there, also at their default; only what is absent
//! in the message (unknown) is left out. 64-bit integers are numbers, except `fixed64`: those are reservation ids,
//! which exceed what JSON readers keep exact (2^53), and are written as the 16 hexadecimal digits that all commands
//! take.

use std::sync::LazyLock;

use gpuadmit_proto::FILE_DESCRIPTOR_SET;
use prost::{Message, Name};
use prost_reflect::{
    DescriptorError, DescriptorPool, DynamicMessage, Kind, MessageDescriptor, SerializeOptions,
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
    write_ids_in_hex(&mut value, &descriptor);
    Ok(value)
}

fn write_ids_in_hex(message: &mut Value, descriptor: &MessageDescriptor) {
    for field in descriptor.fields() {
        let Some(value) = message.get_mut(field.name()) else { continue };
        let kind = field.kind();
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| write_id_in_hex(item, &kind)),
            single => write_id_in_hex(single, &kind),
        }
    }
}

fn write_id_in_hex(value: &mut Value, kind: &Kind) {
    match kind {
        Kind::Message(inner) => write_ids_in_hex(value, inner),
        Kind::Fixed64 => {
            if let Some(id) = value.as_u64() {
                *value = Value::String(format!("{id:016x}"));
            }
        }
        _ => {}
    }
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
    fn large_integers_are_numbers_and_ids_are_hexadecimal() {
        let id = 0xff_ffff_0000_0001;
        let admitted = v1::Admitted { reservation_id: id, blocks_reserved: u64::MAX, ..Default::default() };
        let response = v1::AdmitResponse {
            result: Some(v1::admit_response::Result::Admitted(admitted)),
            ..Default::default()
        };
        let json_response = json(&response).unwrap();
        assert_eq!(json_response["admitted"]["reservation_id"], expected!("00ffffff00000001"));
        assert_eq!(json_response["admitted"]["blocks_reserved"], expected!(u64::MAX));
        let adopted = json(&v1::AdoptResponse { adopted: vec![1, 2] }).unwrap();
        assert_eq!(adopted["adopted"], expected!(["0000000000000001", "0000000000000002"]));
    }

    #[test]
    fn enums_are_their_names_and_unknown_ones_their_numbers() {
        let mut denied = v1::Denied { reason: v1::denied::Reason::KvFull.into(), ..Default::default() };
        assert_eq!(json(&denied).unwrap()["reason"], expected!("KV_FULL"));
        denied.reason = 999;
        assert_eq!(json(&denied).unwrap()["reason"], expected!(999));
    }
}
