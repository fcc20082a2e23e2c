//! Random templates, rendered by the daemon and by the Jinja of a real vLLM.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use gpuadmitd::tokens::jinja::Template;
use serde_json::{Map, Value};

use crate::engine::installed;

/// Templates.
const CASES: u32 = 10_000;
/// Most of them that are not rendered here, in a hundred of those that Jinja renders.
const MOST_REFUSED: u64 = 40;
/// Makes the templates.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vllm/jinja_cases.py");

/// What is rendered is rendered alike; `JINJA_SEED` repeats a run.
pub(crate) fn agrees() -> Result<()> {
    let seed = match std::env::var("JINJA_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    println!("JINJA_SEED={seed}");
    let mut script = Command::new(installed()?.join("venv/bin/python"))
        .args(["-W", "ignore", SCRIPT, &seed.to_string(), &CASES.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(script.stdout.take().context("no output")?).lines();
    let context: Map<String, Value> = serde_json::from_str(&lines.next().context("no context")??)?;
    let (mut alike, mut refused, mut wrong) = (0, 0, Vec::new());
    for line in lines {
        let case: Value = serde_json::from_str(&line?)?;
        let template = case["template"].as_str().context("no template")?;
        match (Template::new(template).and_then(|template| template.render(&context)), case["text"].as_str())
        {
            (Ok(text), expected) if Some(text.as_str()) == expected => alike += 1,
            (Ok(text), expected) => wrong.push(format!("{template:?}: {text:?}, in Jinja {expected:?}")),
            (Err(_), Some(_)) => refused += 1,
            (Err(_), None) => {}
        }
    }
    ensure!(script.wait()?.success(), "{SCRIPT} failed");
    println!("{alike} templates rendered alike, {refused} not rendered");
    ensure!(
        wrong.is_empty(),
        "{} rendered otherwise: {:#?}",
        wrong.len(),
        wrong.iter().take(20).collect::<Vec<_>>()
    );
    ensure!(refused * 100 <= (alike + refused) * MOST_REFUSED, "too few are rendered");
    Ok(())
}
