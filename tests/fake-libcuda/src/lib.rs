//! A `libcuda.so.1` that allocates addresses and no memory, for tests of the probes on it.
//!
//! Exported are the calls for device memory with the types of cuda.h, and `cuGetProcAddress_v2`, by which programs that
//! are linked with no libcuda find them. `GPUADMIT_FAKE_LIBCUDA` holds a script of words: `fail_every=N`, every Nth
//! allocation finds no memory; `memory=BYTES`, no more than that is there. Freed addresses are given out again.

pub mod calls;
mod memory;
