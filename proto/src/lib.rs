//! The `gpuadmit.v1` API: generated messages, clients and servers, and the layout of the shared page. Nothing else lives
//! here; the meaning, unit and range of every field is in the `.proto` files.

pub mod page;

/// Package `gpuadmit.v1`.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]

    tonic::include_proto!("gpuadmit.v1");
}

/// Encoded `FileDescriptorSet` of the package, for gRPC reflection and for canonical JSON.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpuadmit.v1.bin"));
