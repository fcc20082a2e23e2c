//! One engine of the status screen.

use gpuadmit_client::v1::{
    ClassHeadroom, Demand, Engine, EngineState, Headroom, Mode, Pool, PriorityClass, Rejections,
    RejectionsReading,
};

use super::{
    canvas::Canvas,
    guard::held_back,
    names::Names,
    numbers::{UNKNOWN, age, count, counted, duration, or_unknown, percent, rate, share},
    paint::Mood,
    text::{bar, fitted},
};

const BAR_COLUMNS: usize = 16;
/// Longest id of an engine, columns: it is there in full, to be copied.
pub(super) const ID_COLUMNS: usize = 128;
/// Longest model name shown in full, columns.
const MODEL_COLUMNS: usize = 60;

/// The lines of one engine.
pub(crate) fn engine(engine: &Engine, names: &Names, canvas: Canvas) -> String {
    let mut text = headline(engine, canvas);
    text += &canvas.sentence("  ", &names.name_in(&engine.state_reason));
    text += &canvas.flow("  model     ", ", ", &models(engine));
    for pool in &engine.pools {
        text += &kv(pool, engine.pools.len() > 1, canvas);
    }
    if engine.pools.is_empty() {
        text += "  KV cache  unknown\n";
    }
    text += &canvas.flow("  requests  ", ", ", &requests(engine));
    for guard in &engine.guards {
        text += &canvas.flow("  guard     ", ", ", &held_back(guard));
    }
    text += &canvas.flow("  headroom  ", ", ", &headroom(engine.headroom.as_ref()));
    text += &told(canvas, "            ", &other_classes(&engine.headroom_by_class));
    text +=
        &told(canvas, "  demand    ", &demand(engine.demand.as_ref(), engine.rejections.as_ref(), canvas));
    text + &canvas.flow("  speed     ", ", ", &speed(engine))
}

/// The one word for a state, as written in the manual.
pub(crate) fn state_word(state: i32) -> String {
    match EngineState::try_from(state) {
        Ok(EngineState::Unspecified) => UNKNOWN.to_owned(),
        Ok(state) => state.as_str_name().trim_start_matches("ENGINE_STATE_").to_lowercase(),
        Err(_) => format!("state {state}"),
    }
}

/// That word in its colour.
pub(crate) fn painted_state(state: i32, canvas: Canvas) -> String {
    let mood = EngineState::try_from(state).map_or(Mood::Warning, Mood::from);
    canvas.text(mood, &state_word(state))
}

/// Headroom as fields of a line.
pub(crate) fn headroom(headroom: Option<&Headroom>) -> Vec<String> {
    let Some(headroom) = headroom else { return vec![UNKNOWN.to_owned()] };
    vec![
        format!("{} = {}", counted(headroom.blocks, "block"), counted(headroom.tokens, "token")),
        format!("at least {} = {}", count(headroom.blocks_lower), count(headroom.tokens_lower)),
        age(Some(headroom.age_ms)),
    ]
}

/// A line that is left out where a daemon tells nothing for it.
fn told(canvas: Canvas, label: &str, fields: &[String]) -> String {
    if fields.is_empty() { String::new() } else { canvas.flow(label, ", ", fields) }
}

/// Headroom of the classes that the line of the standard one leaves out.
fn other_classes(classes: &[ClassHeadroom]) -> Vec<String> {
    let word = |class: &ClassHeadroom| match PriorityClass::try_from(class.priority_class) {
        Ok(PriorityClass::Interactive) => Some("interactive"),
        Ok(PriorityClass::Batch) => Some("batch"),
        _ => None,
    };
    let field = |class| {
        let (word, headroom): (_, &Headroom) = (word(class)?, class.headroom.as_ref()?);
        Some(format!("{word} {}", counted(headroom.blocks, "block")))
    };
    classes.iter().filter_map(field).collect()
}

/// What is asked of it and what of that is denied; nothing from a daemon that does not tell.
fn demand(demand: Option<&Demand>, rejections: Option<&Rejections>, canvas: Canvas) -> Vec<String> {
    let Some(demand) = demand else { return Vec::new() };
    let of = |ratio: Option<f64>, what| or_unknown(ratio, |ratio| share(ratio) + what);
    let mut fields = vec![of(demand.ratio, " of what it can do")];
    if demand.ratio.is_some() {
        fields.push(format!("KV cache {}", of(demand.occupancy, "")));
        fields.push(format!("prefill {}", of(demand.prefill, "")));
    }
    if demand.scale_up {
        fields.push(canvas.text(Mood::Warning, "another engine would help"));
    }
    fields.extend(rejections.map(rejected));
    fields
}

fn rejected(rejections: &Rejections) -> String {
    let window = duration(rejections.window_ms);
    let said = match RejectionsReading::try_from(rejections.reading) {
        Ok(RejectionsReading::Unspecified) => return format!("no request in the last {window}"),
        Ok(RejectionsReading::Unused) => ": room to spare, or not asked",
        Ok(RejectionsReading::Fine) | Err(_) => "",
        Ok(RejectionsReading::Edge) => ": at the edge",
        Ok(RejectionsReading::Strained) => ": strained",
        Ok(RejectionsReading::LosingUsers) => ": losing users",
    };
    let share = percent(rejections.denied, rejections.decided);
    format!("{share} of {} denied in the last {window}{said}", count(rejections.decided))
}

fn headline(engine: &Engine, canvas: Canvas) -> String {
    let mode = match Mode::try_from(engine.mode) {
        Ok(Mode::Enforce) => "enforce".to_owned(),
        Ok(Mode::Observe) => "observe (denies nothing for lack of room)".to_owned(),
        Ok(Mode::Unspecified) => "mode unknown".to_owned(),
        Err(_) => format!("mode {}", engine.mode),
    };
    let state = painted_state(engine.state, canvas);
    let fields = [
        canvas.text(Mood::Strong, &fitted(&engine.id, ID_COLUMNS)),
        format!("{state} for {}", duration(engine.state_for_ms)),
        mode,
        fitted(&engine.address, 50),
        engine.version.as_deref().map_or_else(|| "version unknown".to_owned(), |version| fitted(version, 30)),
    ];
    canvas.flow("", "  ", &fields)
}

fn models(engine: &Engine) -> Vec<String> {
    let Some(first) = engine.models.first() else { return vec![UNKNOWN.to_owned()] };
    let mut fields = vec![fitted(first, MODEL_COLUMNS)];
    match engine.models.len() - 1 {
        0 => {}
        1 => fields.extend(engine.models.get(1).map(|second| fitted(second, MODEL_COLUMNS))),
        more => fields.push(format!("{more} more names")),
    }
    fields.push(format!("window {}", or_unknown(engine.max_model_len, |tokens| counted(tokens, "token"))));
    fields
}

fn kv(pool: &Pool, one_of_several: bool, canvas: Canvas) -> String {
    let label = if one_of_several { format!("  KV {:<7}", pool.rank) } else { "  KV cache  ".to_owned() };
    let drawn = pool.blocks_corrected.zip(pool.blocks_total).map_or_else(String::new, |(used, total)| {
        format!("{} {}", bar(&[('#', used)], total, BAR_COLUMNS), percent(used, total))
    });
    let band = pool
        .blocks_corrected_low
        .zip(pool.blocks_corrected_high)
        .map_or_else(String::new, |(low, high)| format!(" ({} to {})", count(low), count(high)));
    let corrected = [
        drawn,
        format!("{}{band}", or_unknown(pool.blocks_corrected, count)),
        format!("of {}", or_unknown(pool.blocks_total, |blocks| counted(blocks, "block"))),
    ];
    let others = [
        format!("raw {} ({})", or_unknown(pool.blocks_reported, count), age(pool.age_ms)),
        format!("committed {}", or_unknown(pool.blocks_committed, count)),
        format!("{} tokens per block", or_unknown(pool.block_size, count)),
    ];
    canvas.flow(&label, " ", &corrected) + &canvas.flow("            ", ", ", &others)
}

fn requests(engine: &Engine) -> [String; 4] {
    let queued = match engine.queued {
        0 => String::new(),
        queued => format!(", {} waiting for room", count(queued)),
    };
    let orphans = match engine.orphans {
        0 => String::new(),
        orphans => format!(" ({} orphaned)", count(orphans)),
    };
    [
        format!("{} running", or_unknown(sum(engine, |pool| pool.running), count)),
        format!("{} waiting", or_unknown(sum(engine, |pool| pool.waiting), count)),
        format!("{} bypassing", or_unknown(engine.bypass_requests, count)),
        format!("{} reserved{orphans}{queued}", count(engine.reservations)),
    ]
}

/// The figure of all ranks together; unknown when any rank's is.
fn sum(engine: &Engine, figure: impl Fn(&Pool) -> Option<u64>) -> Option<u64> {
    if engine.pools.is_empty() {
        return None;
    }
    engine.pools.iter().map(figure).try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)))
}

fn speed(engine: &Engine) -> [String; 2] {
    let interval = or_unknown(engine.scrape_interval_ms, |ms| format!("every {}", duration(ms)));
    let cost = or_unknown(engine.scrape_cpu_share, share);
    [
        format!("{} tokens/s per request", or_unknown(engine.tokens_per_second_per_request, rate)),
        format!("read {interval} for {cost} of a core"),
    ]
}
