//! A `libnvidia-ml.so.1` that answers what a file says, for tests.
//!
//! `GPUADMIT_FAKE_NVML` names the file ([`script::Script`], JSON). It is read again whenever it was replaced, so that a
//! test changes the node while a child runs. That every exported function has the type which callers expect is checked
//! when this crate is compiled, against nvml-wrapper-sys ([`abi`]).

mod abi;
mod device;
mod events;
mod out;
mod script;
mod system;
mod world;
