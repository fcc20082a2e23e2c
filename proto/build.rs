//! Compiles the `.proto` files with protox (pure Rust, no protoc) into types, services and a descriptor set.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 3] =
    ["gpuadmit/v1/headroom.proto", "gpuadmit/v1/admission.proto", "gpuadmit/v1/node.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is set by cargo")?);
    fs::write(out.join("gpuadmit.v1.bin"), descriptors.encode_to_vec())?;
    // Every message knows its full name, so that one function can turn any of them into canonical JSON.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure().compile_fds_with_config(descriptors, config)?;
    Ok(())
}
