//! gpuadmitd.

fn main() {}
