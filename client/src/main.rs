//! gpuadmit.

fn main() {}
