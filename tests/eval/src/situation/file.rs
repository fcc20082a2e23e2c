//! Situations as JSON: what is drawn or chosen here can be run elsewhere.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::Situation;

/// Writes `situations` to the file at `path`.
pub(crate) fn write(path: &Path, situations: &[Situation]) -> Result<()> {
    let text = serde_json::to_string_pretty(situations)?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

/// Reads what [`write`] wrote.
pub(crate) fn read(path: &Path) -> Result<Vec<Situation>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
