//! Plays the sequence in the model, step for step, and reports what differs.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use super::{
    load::Sent,
    scrape::{Engine, Sample},
};
use crate::{
    engine::{AisimEngine, EngineModel as _, Event, Gauges, Output, Submission},
    estimation::quantile,
    report::plot_beside,
    trace::Content,
};

/// The model after one step.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    gauges: Gauges,
    preemptions: u64,
    generated: u64,
}

pub(super) fn report(
    engine: &Engine,
    sequence: &[Sent],
    samples: &[Sample],
    (folder, stem): (&Path, &str),
) -> Result<()> {
    let arrivals = arrivals(sequence.len(), samples);
    let last = samples.iter().map(|sample| sample.steps).max().context("no sample")?;
    let modelled = play(engine, sequence, &arrivals, last)?;
    // Several scrapes may show one step: the last is sure to show all of it.
    let mut pairs: Vec<(Sample, Modelled)> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.steps > 0) {
        let Some(model) = modelled.get(sample.steps as usize - 1) else { continue };
        match pairs.last_mut() {
            Some(pair) if pair.0.steps == sample.steps => pair.0 = *sample,
            _ => pairs.push((*sample, *model)),
        }
    }
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{stem}.csv")), series(engine, &pairs))?;
    let text = summary(engine, &pairs, last, &modelled);
    print!("{text}");
    fs::write(folder.join(format!("{stem}.md")), text)?;
    let real: Vec<_> = pairs.iter().map(|(real, _)| (real.steps as f64, real.usage * 100.0)).collect();
    let share = |used: u64| used as f64 / engine.blocks as f64 * 100.0;
    let model: Vec<_> =
        pairs.iter().map(|(real, model)| (real.steps as f64, share(model.gauges.used))).collect();
    plot_beside(&folder.join(format!("{stem}.svg")), &real, &model)
}

/// Before which step each request was there: the first that shows it running, waiting or ended.
fn arrivals(count: usize, samples: &[Sample]) -> Vec<u64> {
    let shown = |sample: &Sample| (sample.running + sample.waiting + sample.finished) as usize;
    let first = |number: usize| samples.iter().find(|sample| shown(sample) > number);
    (0..count).map(|number| first(number).map_or(u64::MAX, |sample| sample.steps.max(1))).collect()
}

fn play(engine: &Engine, sequence: &[Sent], arrivals: &[u64], last: u64) -> Result<Vec<Modelled>> {
    let mut model = AisimEngine::new(&engine.setup())?;
    let mut waiting = sequence.iter().zip(arrivals).zip(0..).peekable();
    let (mut modelled, mut preemptions, mut generated) = (Vec::new(), 0, 0);
    // After the real engine's last step the model may go on to its own end.
    for step in 1.. {
        while let Some(((sent, _), id)) = waiting.next_if(|((_, arrival), _)| **arrival <= step) {
            let prompt = Content::Own.tokens(id, 0, sent.prompt);
            model.submit(Submission { id, prompt, output: Output::Length(sent.output) });
        }
        let done = model.step(0);
        if done.is_none() && step > last {
            break;
        }
        for event in done.iter().flat_map(|done| &done.events) {
            preemptions += u64::from(matches!(event, Event::Preempted { .. }));
            generated += u64::from(matches!(event, Event::Token { .. }));
        }
        modelled.push(Modelled { gauges: model.gauges(), preemptions, generated });
    }
    Ok(modelled)
}

fn series(engine: &Engine, pairs: &[(Sample, Modelled)]) -> String {
    let mut text = String::from(
        "step,blocks_real,blocks_model,running_real,running_model,waiting_real,waiting_model,\
         preemptions_real,preemptions_model,generated_real,generated_model\n",
    );
    for (real, model) in pairs {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            real.steps,
            blocks(engine, real),
            model.gauges.used,
            real.running,
            model.gauges.running,
            real.waiting,
            model.gauges.waiting,
            real.preemptions,
            model.preemptions,
            real.generated,
            model.generated,
        );
    }
    text
}

fn blocks(engine: &Engine, real: &Sample) -> i64 {
    (real.usage * engine.blocks as f64).round() as i64
}

fn summary(engine: &Engine, pairs: &[(Sample, Modelled)], last: u64, modelled: &[Modelled]) -> String {
    let differences = |of: &dyn Fn(&(Sample, Modelled)) -> i64| -> Vec<f64> {
        let mut values: Vec<_> = pairs.iter().map(|pair| of(pair).abs() as f64).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let rows = [
        ("blocks in use", differences(&|(real, model)| model.gauges.used as i64 - blocks(engine, real))),
        ("running", differences(&|(real, model)| model.gauges.running as i64 - real.running as i64)),
        ("waiting", differences(&|(real, model)| model.gauges.waiting as i64 - real.waiting as i64)),
    ];
    let mut text = format!(
        "\n### The model beside a real vLLM: {} blocks of {}, {} slots, {} of {last} steps seen\n\n\
         | | equal % | mean difference | p99 | most |\n|---|--:|--:|--:|--:|\n",
        engine.blocks,
        engine.block_size,
        engine.slots,
        pairs.len(),
    );
    for (name, values) in rows {
        let equal = values.iter().filter(|value| **value == 0.0).count() as f64;
        let count = values.len().max(1) as f64;
        let _ = writeln!(
            text,
            "| {name} | {:.1} | {:.2} | {} | {} |",
            equal / count * 100.0,
            values.iter().sum::<f64>() / count,
            quantile(&values, 0.99),
            values.last().copied().unwrap_or(0.0),
        );
    }
    let end = modelled.last();
    let _ = writeln!(
        text,
        "\n| in all | real | model |\n|---|--:|--:|\n| steps | {last} | {} |\n| preemptions | {} | {} |\n| tokens generated | {} | {} |",
        modelled.len(),
        pairs.last().map_or(0, |pair| pair.0.preemptions),
        end.map_or(0, |end| end.preemptions),
        pairs.last().map_or(0, |pair| pair.0.generated),
        end.map_or(0, |end| end.generated),
    );
    text
}
