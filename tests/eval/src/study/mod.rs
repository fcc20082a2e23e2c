//! Questions about gpuadmit itself: what knowing more is worth, and what each learned part is worth.

mod ablation;
mod interval;
mod paired;

pub(crate) use ablation::ablate;
pub(crate) use paired::paired;
