//! Real `/metrics` bodies of ten vLLM builds read to the values found in them by other means, and bodies that no
//! engine should send.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, its helpers included"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use gpuadmit_core::{
    observation::{EngineReading, RankReading, ScrapeFailure, SumCount},
    units::Bytes,
};
use gpuadmitd::source::vllm::reading::{self, MAX_BODY_BYTES};
use proptest::prelude::*;

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/vllm-metrics")
}

fn capture(name: &str) -> Vec<u8> {
    fs::read(captures().join(format!("{name}.prom"))).expect(name)
}

fn read(body: &[u8]) -> EngineReading {
    reading::read(body).expect("a reading").reading
}

/// The only rank of a body.
fn rank(body: &str) -> RankReading {
    let reading = read(body.as_bytes());
    assert_eq!((reading.ranks.len(), reading.malformed), (1, 0), "{body}");
    reading.ranks[0].clone()
}

/// A row of `expected.tsv`.
struct Expected {
    capture: String,
    asleep: Option<bool>,
    process_start: Option<f64>,
    figures: RankReading,
}

impl Expected {
    fn parse(row: &str) -> Self {
        let columns: Vec<&str> = row.split('\t').collect();
        let text = |column: usize| (columns[column] != "-").then_some(columns[column]);
        let float = |column| text(column).map(|text| text.parse::<f64>().unwrap());
        let count = |column| text(column).map(|text| text.parse::<u64>().unwrap());
        let times = |column| {
            let (sum, count) = text(column)?.split_once('/')?;
            Some(SumCount { sum: sum.parse().unwrap(), count: count.parse().unwrap() })
        };
        let lengths = text(23).into_iter().flat_map(|all| all.split(' ')).map(|bucket| {
            let (bound, count) = bucket.split_once('=').unwrap();
            (bound.parse().unwrap(), count.parse().unwrap())
        });
        let figures = RankReading {
            rank: columns[1].parse().unwrap(),
            kv_usage: float(2),
            running: count(3),
            waiting: count(4),
            waiting_deferred: count(5),
            num_gpu_blocks: count(7),
            block_size: count(8),
            kv_cache_size_tokens: count(9),
            kv_cache_memory: count(10).map(Bytes),
            prompt_tokens: count(11),
            generation_tokens: count(12),
            finished: count(13),
            cut: count(24),
            preemptions: count(14),
            steps: count(15),
            prefix_queries: count(16),
            prefix_hits: count(17),
            ttft: times(18),
            inter_token: times(19),
            queue_time: times(20),
            prefill_time: times(21),
            generation_lengths: lengths.collect(),
        };
        let asleep = text(6).map(|state| state == "asleep");
        Self { capture: columns[0].into(), asleep, process_start: float(22), figures }
    }
}

#[test]
fn every_capture_reads_to_the_values_found_in_it_by_other_means() {
    let table = fs::read_to_string(captures().join("expected.tsv")).unwrap();
    let rows: Vec<Expected> = table.lines().skip(3).map(Expected::parse).collect();
    assert_eq!(rows.len(), 37, "35 captures, two of them with two ranks");
    for row in &rows {
        let reading = read(&capture(&row.capture));
        let ranks = rows.iter().filter(|other| other.capture == row.capture).count();
        assert_eq!(reading.ranks.len(), ranks, "{}", row.capture);
        let figures = reading.ranks.iter().find(|rank| rank.rank == row.figures.rank);
        assert_eq!(figures, Some(&row.figures), "{}", row.capture);
        assert_eq!(reading.asleep, row.asleep, "{}", row.capture);
        assert_eq!(reading.process_start, row.process_start, "{}", row.capture);
        assert_eq!(reading.malformed, 0, "{}", row.capture);
    }
}

#[test]
fn every_capture_is_in_the_table() {
    let table = fs::read_to_string(captures().join("expected.tsv")).unwrap();
    let mut seen = 0;
    for version in fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap()) {
        let Ok(files) = fs::read_dir(version.path()) else { continue };
        for file in files.map(|entry| entry.unwrap()) {
            let (version, file) = (version.file_name(), file.file_name());
            let file = file.to_str().unwrap().strip_suffix(".prom").unwrap();
            let row = format!("{}/{file}\t", version.display());
            assert!(table.lines().any(|line| line.starts_with(&row)), "{row}");
            seen += 1;
        }
    }
    assert_eq!(seen, 35);
}

#[test]
fn the_model_is_known_from_labels() {
    for name in ["0.8.5.post2/load", "0.32.0-data-parallel-2/load", "0.32.0-rust-frontend/idle"] {
        let models = reading::read(&capture(name)).unwrap().models;
        assert_eq!(models.iter().map(|model| &**model).collect::<Vec<_>>(), ["tiny"], "{name}");
    }
}

#[test]
fn families_that_are_not_needed_cost_no_allocation() {
    let count = |body: &[u8]| {
        let before = ALLOCATIONS.get();
        let reading = reading::read(body);
        let after = ALLOCATIONS.get();
        assert!(reading.is_ok());
        after - before
    };
    let body = capture("0.32.0/load");
    let mut longer = body.clone();
    for family in 0..1000 {
        let line = format!(
            "vllm:unneeded_{family}{{engine=\"9\",model_name=\"m{family}\"}} {family}.5\n# HELP x y\n"
        );
        longer.extend_from_slice(line.as_bytes());
    }
    let allocations = count(&body);
    assert_eq!(count(&longer), allocations);
    assert!(allocations < 16, "{allocations} allocations for one rank");
}

#[test]
fn a_sum_over_engines_is_undone_by_rows_and_by_tokens() {
    let row =
        |engine: u32, labels: &str| format!("vllm:cache_config_info{{engine=\"{engine}\",{labels}}} 1.0\n");
    let blocks = |body: &str| -> Vec<Option<u64>> {
        read(body.as_bytes()).ranks.iter().map(|rank| rank.num_gpu_blocks).collect()
    };
    let three = |labels: &str| (0..3).map(|engine| row(engine, labels)).collect::<String>();
    // Without kv_cache_size_tokens the rows tell how many engines were summed.
    assert_eq!(blocks(&three(r#"block_size="16",num_gpu_blocks="3000""#)), [Some(1000); 3]);
    // With it, it decides: this API server shows one of four engines.
    let one_of_four = r#"block_size="16",num_gpu_blocks="4000",kv_cache_size_tokens="16000""#;
    assert_eq!(blocks(&row(3, one_of_four)), [Some(1000)]);
    // A hybrid model's block size does not multiply out (4 told, 256 set) and must not decide.
    let hybrid = r#"block_size="4",num_gpu_blocks="3000",kv_cache_size_tokens="256000""#;
    assert_eq!(blocks(&three(hybrid)), [Some(1000); 3]);
}

#[test]
fn a_pool_of_unknown_size_is_unknown_and_never_zero() {
    for labels in ["", r#"num_gpu_blocks="None""#, r#"num_gpu_blocks="0""#, r#"num_gpu_blocks="""#] {
        let rank = rank(&format!("vllm:cache_config_info{{{labels}}} 1.0\n"));
        assert_eq!((rank.num_gpu_blocks, rank.block_size, rank.kv_cache_size_tokens), (None, None, None));
    }
}

#[test]
fn series_of_several_label_sets_are_one_rank() {
    let rank = rank(
        "vllm:num_requests_running{model_name=\"a\",engine=\"0\"} 2\n\
         vllm:num_requests_running{model_name=\"b\",engine=\"0\"} 3\n\
         vllm:kv_cache_usage_perc{model_name=\"a\",engine=\"0\"} 0.25\n\
         vllm:kv_cache_usage_perc{model_name=\"b\",engine=\"0\"} 0.5\n",
    );
    assert_eq!((rank.running, rank.kv_usage), (Some(5), Some(0.5)));
}

#[test]
fn the_newer_of_two_names_counts_once() {
    let both = rank("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n");
    assert_eq!(both.kv_usage, Some(0.25));
    let both = rank("vllm:gpu_prefix_cache_hits_total 7\nvllm:prefix_cache_hits_total 7\n");
    assert_eq!(both.prefix_hits, Some(7));
    let old = rank("vllm:time_per_output_token_seconds_sum 2\nvllm:time_per_output_token_seconds_count 4\n");
    assert_eq!(old.inter_token, Some(SumCount { sum: 2.0, count: 4 }));
}

#[test]
fn any_rank_asleep_is_an_engine_asleep() {
    let state = |engine: u32, awake: u32| {
        format!(
            "vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"awake\"}} {awake}\n\
             vllm:engine_sleep_state{{engine=\"{engine}\",sleep_state=\"discard_all\"}} {}\n",
            1 - awake
        )
    };
    let asleep = |body: String| read(body.as_bytes()).asleep;
    assert_eq!(asleep(state(0, 1) + &state(1, 1)), Some(false));
    assert_eq!(asleep(state(0, 1) + &state(1, 0)), Some(true));
}

#[test]
fn bad_values_are_counted_and_left_out() {
    let good = "vllm:num_requests_running{engine=\"0\"} 3\n";
    for bad in [
        "vllm:kv_cache_usage_perc NaN",
        "vllm:kv_cache_usage_perc -0.1",
        "vllm:kv_cache_usage_perc 1.5",
        "vllm:kv_cache_usage_perc +Inf",
        "vllm:num_requests_waiting -1",
        "vllm:num_requests_waiting 2.5",
        "vllm:num_requests_waiting 1e300",
        "vllm:num_requests_waiting NaN",
        "vllm:num_requests_waiting many",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting{engine=\"0\" 1",
        "vllm:num_requests_waiting{engine=\"first\"} 1",
        "vllm:num_requests_waiting{engine=\"-1\"} 1",
        "vllm:num_requests_waiting{engine=\"99999999999999999999\"} 1",
        "vllm:num_requests_waiting_by_reason{engine=\"0\"} 1",
        "vllm:engine_sleep_state{sleep_state=\"awake\"} NaN",
        "vllm:cache_config_info{num_gpu_blocks=\"-5\"} 1",
        "vllm:cache_config_info{num_gpu_blocks=\"1e9\"} 1",
        "vllm:time_to_first_token_seconds_sum -3",
        "vllm:time_to_first_token_seconds_sum Inf",
        "vllm:request_generation_tokens_bucket{le=\"x\"} 1",
        "vllm:request_generation_tokens_bucket{le=\"NaN\"} 1",
        "vllm:request_generation_tokens_bucket{le=\"5\"} 1",
        "process_start_time_seconds NaN",
        "\u{0}\u{0}\u{0}",
        "<html>",
    ] {
        let reading = read(format!("{good}{bad}\n").as_bytes());
        let only = EngineReading {
            ranks: vec![RankReading { running: Some(3), ..RankReading::default() }],
            malformed: 1,
            ..EngineReading::default()
        };
        assert_eq!(reading, only, "{bad}");
    }
}

#[test]
fn a_sum_with_a_broken_term_is_unknown() {
    let reading = read(
        b"vllm:num_requests_running 1\n\
          vllm:request_success_total{finished_reason=\"stop\"} 5\n\
          vllm:request_success_total{finished_reason=\"length\"} NaN\n",
    );
    assert_eq!((reading.ranks[0].finished, reading.ranks[0].cut, reading.malformed), (None, None, 1));
}

#[test]
fn more_ranks_than_bounded_are_left_out() {
    let body: String =
        (0..70).map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n")).collect();
    let reading = read(body.as_bytes());
    assert_eq!((reading.ranks.len(), reading.malformed), (64, 6));
}

#[test]
fn a_body_without_an_engine_in_it_says_so() {
    let failure = |body: &[u8]| reading::read(body).unwrap_err();
    for body in
        ["", "\n", "# EOF\n", "process_start_time_seconds 1\npython_info 1\n", "vllm:something_new 1\n"]
    {
        assert_eq!(failure(body.as_bytes()), ScrapeFailure::NoSeries, "{body:?}");
    }
    for body in
        ["<html><body>hello</body></html>\n", "{\"error\": 1}\n", "vllm:num_requests_running 1", "\u{0}"]
    {
        assert!(matches!(failure(body.as_bytes()), ScrapeFailure::Malformed(_)), "{body:?}");
    }
    let huge = vec![b'\n'; MAX_BODY_BYTES + 1];
    assert!(matches!(failure(&huge), ScrapeFailure::Malformed(_)));
}

/// Whether every figure of `part` is missing or the same in `whole`. A sum over series (`finished`) may lack terms
/// when the cut is between two lines; HTTP framing, not the format, finds that.
fn invents_nothing(part: &RankReading, whole: &RankReading) -> bool {
    fn holds<T: PartialEq>(part: &Option<T>, whole: &Option<T>) -> bool {
        part.is_none() || part == whole
    }
    holds(&part.kv_usage, &whole.kv_usage)
        && holds(&part.running, &whole.running)
        && holds(&part.waiting, &whole.waiting)
        && holds(&part.waiting_deferred, &whole.waiting_deferred)
        && holds(&part.num_gpu_blocks, &whole.num_gpu_blocks)
        && holds(&part.block_size, &whole.block_size)
        && holds(&part.kv_cache_size_tokens, &whole.kv_cache_size_tokens)
        && holds(&part.kv_cache_memory, &whole.kv_cache_memory)
        && holds(&part.prompt_tokens, &whole.prompt_tokens)
        && holds(&part.generation_tokens, &whole.generation_tokens)
        && part.finished <= whole.finished
        && holds(&part.preemptions, &whole.preemptions)
        && holds(&part.steps, &whole.steps)
        && holds(&part.prefix_queries, &whole.prefix_queries)
        && holds(&part.prefix_hits, &whole.prefix_hits)
        && holds(&part.ttft, &whole.ttft)
        && holds(&part.inter_token, &whole.inter_token)
        && holds(&part.queue_time, &whole.queue_time)
        && holds(&part.prefill_time, &whole.prefill_time)
        && (part.generation_lengths.is_empty() || part.generation_lengths == whole.generation_lengths)
}

#[test]
fn a_body_cut_anywhere_invents_no_value() {
    for name in ["0.32.0/load2", "0.32.0-data-parallel-2/load", "0.8.5.post2/load"] {
        let body = capture(name);
        let whole = read(&body);
        // Every 37th byte: 37 is prime to the lengths of most lines, so that all positions in a line occur.
        for cut in (0..body.len()).step_by(37) {
            let Ok(part) = reading::read(&body[..cut]) else { continue };
            for rank in &part.reading.ranks {
                let known = whole.ranks.iter().find(|known| known.rank == rank.rank);
                assert!(known.is_some_and(|known| invents_nothing(rank, known)), "{name} at {cut}: {rank:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_reading_or_an_error(body in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = reading::read(&body);
    }

    #[test]
    fn a_capture_with_any_bytes_in_it_is_a_reading_or_an_error(
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut body = capture("0.32.0/load");
        let at = at.index(body.len() - bytes.len());
        body[at..at + bytes.len()].copy_from_slice(&bytes);
        let _ = reading::read(&body);
    }
}
