//! Start lines made up over all that vLLM's parser takes, read by us and by that parser itself.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command as Program, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use gpuadmitd::source::vllm::{cmdline::Command, config_file, startline::StartLine};
use serde_json::{Value, json};

use crate::engine::installed;

/// How many are made up.
const LINES: usize = 4000;
/// Most that are shown of those read otherwise.
const SHOWN: usize = 20;
const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vllm/read_lines.py");

/// Options with a text, and words for it.
const TEXTS: [(&str, &[&str]); 11] = [
    ("host", &["0.0.0.0", "::", "", "None"]),
    ("uds", &["/run/a.sock", "a.sock"]),
    ("root-path", &["/x"]),
    ("tokenizer", &["org/t"]),
    ("tokenizer-mode", &["hf", "slow"]),
    ("revision", &["main", "1.10"]),
    ("tokenizer-revision", &["abc"]),
    ("download-dir", &["/d"]),
    ("chat-template", &["t.jinja", "a b"]),
    ("ssl-keyfile", &["k.pem"]),
    ("ssl-certfile", &["c.pem"]),
];
/// Options with a number.
const NUMBERS: [(&str, &[&str]); 9] = [
    ("port", &["8001", "9_000", "0", " 8080 "]),
    ("max-model-len", &["2k", "8K", "32.3k", "auto", "-1", "4096"]),
    ("max-num-batched-tokens", &["8192", "16k", "25.6k", "1M"]),
    ("max-num-seqs", &["64", "1_024"]),
    ("block-size", &["16", "32"]),
    ("gpu-memory-utilization", &["0.9", ".5", "1e-1", "1"]),
    ("data-parallel-size", &["2"]),
    ("tensor-parallel-size", &["4"]),
    ("api-server-count", &["0", "3"]),
];
const SHORT: [(&str, &str); 6] =
    [("-tp", "2"), ("-dp", "3"), ("-asc", "1"), ("-n", "2"), ("-q", "awq"), ("-O", "3")];
const SWITCHES: [&str; 7] = [
    "headless",
    "grpc",
    "disable-log-stats",
    "enable-lora",
    "enable-prefix-caching",
    "enforce-eager",
    "data-parallel-hybrid-lb",
];
const LISTS: [&str; 2] = ["served-model-name", "api-key"];
const TABLES: [&str; 2] = ["default-chat-template-kwargs", "model-loader-extra-config"];
/// Words that stand alone.
const ODD: [&str; 7] = ["-O2", "-O=1", "--", "-5", "-n2", "-ep", "--no-enable-lora"];

/// Numbers that follow from a seed (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(most).expect("a small number")).expect("smaller than a usize")
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// A spelling of an option's name: whole or cut, with hyphens or underscores.
    fn spelled(&mut self, name: &str) -> String {
        let cut = if self.chance(3) { 2 + self.below(name.len() - 1) } else { name.len() };
        let name = name[..cut].to_owned();
        format!("--{}", if self.chance(3) { name.replace('-', "_") } else { name })
    }

    fn with_value(&mut self, words: &mut Vec<String>, name: &str, value: &str) {
        let option = self.spelled(name);
        if self.chance(2) {
            words.push(format!("{option}={value}"));
        } else {
            words.extend([option, value.into()]);
        }
    }

    fn option(&mut self, words: &mut Vec<String>) {
        match self.below(8) {
            0 | 1 => {
                let (name, values) = TEXTS[self.below(TEXTS.len())];
                let value = self.one(values);
                self.with_value(words, name, value);
            }
            2 | 3 => {
                let (name, values) = NUMBERS[self.below(NUMBERS.len())];
                let value = self.one(values);
                self.with_value(words, name, value);
            }
            4 => {
                let (name, value) = SHORT[self.below(SHORT.len())];
                let together = self.chance(3);
                words.extend(if together {
                    vec![format!("{name}={value}")]
                } else {
                    vec![name.into(), value.into()]
                });
            }
            5 => {
                let name = SWITCHES[self.below(SWITCHES.len())];
                let name = if self.chance(3) { format!("no-{name}") } else { name.into() };
                words.push(self.spelled(&name));
            }
            6 => {
                let name = LISTS[self.below(LISTS.len())];
                self.with_value(words, name, "a");
                words.extend(["b".to_owned(), "c".to_owned()].into_iter().take(self.below(3)));
            }
            _ => {
                let name = TABLES[self.below(TABLES.len())];
                let option = self.spelled(name);
                let key = self.one(&["a", "b_c", "a.d", "l+"]);
                let value = self.one(&["true", "1", "x", r#"{"e":[1]}"#, "2k", "p,q", "-0.5"]);
                let whole = self.chance(4);
                words.extend(if whole {
                    [option, r#"{"a":{"f":1}}"#.to_owned()]
                } else {
                    [format!("{option}.{key}"), value.to_owned()]
                });
            }
        }
        if self.chance(12) {
            words.push(self.one(&ODD).to_owned());
        }
    }

    /// A file for `--config`.
    fn config(&mut self) -> String {
        let lines = [
            "port: 9001",
            "port: 0x1F91",
            "model: org/file",
            "served_model_name: [x, 'y', 1.0]",
            "served-model-name:\n- &n x\n- *n",
            "enable-lora: yes",
            "enable_lora: false",
            "headless: on",
            "gpu_memory_utilization: .75",
            "max-model-len: 4k",
            "host: \"::\"",
            "host: ~",
            "revision: 1.10",
            "default_chat_template_kwargs: {thinking: false, level: {x: 1}}",
            "api-key: \"k\" # secret",
            "tensor-parallel-size: 02",
        ];
        (0..1 + self.below(4)).map(|_| format!("{}\n", self.one(&lines))).collect()
    }

    fn line(&mut self, folder: &Path, number: usize) -> Result<Vec<String>> {
        let module = self.chance(5);
        let start: &[&str] = if module {
            &["python3", "-m", "vllm.entrypoints.openai.api_server"]
        } else {
            &["vllm", "serve"]
        };
        let mut words: Vec<String> = start.iter().map(|word| (*word).into()).collect();
        if !self.chance(4) {
            words.push("org/m".into());
        }
        for _ in 0..self.below(6) {
            self.option(&mut words);
        }
        if self.chance(3) {
            words.extend(if self.chance(2) {
                vec!["--model=org/o".into()]
            } else {
                vec!["--model".into(), "org/o".into()]
            });
        }
        if self.chance(3) {
            let file = folder.join(format!("{number}.yaml"));
            fs::write(&file, self.config())?;
            let file = file.to_str().context("a path that is text")?.to_owned();
            words.extend(if self.chance(5) {
                vec![format!("--config={file}")]
            } else {
                vec!["--config".into(), file]
            });
        }
        for _ in 0..self.below(3) {
            self.option(&mut words);
        }
        Ok(words)
    }
}

/// Reads lines as we do and as vLLM does. Must be run in a folder of its own.
pub(crate) fn agree() -> Result<()> {
    let seed = match env::var("SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => {
            u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() & u128::from(u64::MAX))?
        }
    };
    println!("start lines: SEED={seed}");
    let (mut dice, folder) = (Dice(seed | 1), tempfile::tempdir()?);
    let plain = Ok(vec!["vllm".into(), "serve".into()]);
    let made_up = (0..LINES).map(|number| dice.line(folder.path(), number));
    let lines: Vec<Vec<String>> = std::iter::once(plain).chain(made_up).collect::<Result<_>>()?;
    let told = vllm_reads(&lines)?;
    let told_plain = told.first().cloned().unwrap_or_default();
    let (mut taken, mut unlike) = (0, vec![]);
    for (line, told) in lines.iter().zip(&told) {
        let ours = StartLine::read(line, |file| config_file::read(Path::new(file)));
        let ours = ours.with_context(|| format!("no server: {line:?}"))?;
        if told.is_null() {
            continue;
        }
        taken += 1;
        let differing = differing(line, &ours, told, &told_plain)?;
        if !differing.is_empty() {
            unlike.push(format!("{line:?}: {differing:?}"));
        }
    }
    unlike.truncate(SHOWN);
    ensure!(unlike.is_empty(), "SEED={seed}, name, ours, vLLM's: {unlike:#?}");
    println!("{taken} of {LINES} start lines are taken by vLLM, and read alike");
    ensure!(taken > LINES / 4, "vLLM takes only {taken} of {LINES}");
    Ok(())
}

/// What vLLM's parser makes of them.
fn vllm_reads(lines: &[Vec<String>]) -> Result<Vec<Value>> {
    let mut child = Program::new(installed()?.join("venv/bin/python"))
        .arg(READER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (mut input, output) =
        (child.stdin.take().context("no input")?, child.stdout.take().context("no output")?);
    let text: String = lines.iter().map(|line| format!("{}\n", json!(line))).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let told = BufReader::new(output).lines().map(|line| Ok(serde_json::from_str(&line?)?));
    let told: Vec<Value> = told.collect::<Result<_>>()?;
    writer.join().expect("a thread that writes")?;
    ensure!(child.wait()?.success() && told.len() == lines.len(), "{READER} fails");
    Ok(told)
}

/// Options of which the two do not say the same: name, ours, vLLM's.
fn differing(
    line: &[String],
    ours: &StartLine,
    told: &Value,
    plain: &Value,
) -> Result<Vec<(String, Value, Value)>> {
    let command = Command::parse(line, |file| config_file::read(Path::new(file))).context("no server")?;
    let theirs = |name: &str| told.get(name.replace('-', "_")).cloned().unwrap_or_default();
    // What was not given has its default.
    let given = |name: &str| {
        let value = theirs(name);
        if plain.get(name.replace('-', "_")) == Some(&value) { Value::Null } else { value }
    };
    let mut pairs: Vec<(&str, Value, Value)> = vec![("model", json!(ours.model()), given("model"))];
    for (name, _) in TEXTS {
        pairs.push((name, json!(ours.text(name)), given(name)));
    }
    for name in SWITCHES {
        pairs.push((name, json!(ours.is_on(name)), json!(theirs(name) == json!(true))));
    }
    for name in LISTS {
        let list = theirs(name);
        pairs.push((name, json!(ours.values(name)), if list.is_null() { json!([]) } else { list }));
    }
    for name in TABLES {
        let table = ours.text(name).map(serde_json::from_str::<Value>).transpose()?;
        pairs.push((name, json!(table), given(name)));
    }
    let count = |name: &str| theirs(name).as_i64().filter(|count| *count > 0);
    let counts = [
        ("max-model-len", command.max_model_len),
        ("max-num-batched-tokens", command.max_num_batched_tokens),
        ("max-num-seqs", command.max_num_seqs),
        ("block-size", command.block_size),
    ];
    pairs.extend(counts.map(|(name, ours)| (name, json!(ours), json!(count(name)))));
    pairs.push(("port", json!(command.port.unwrap_or(8000)), theirs("port")));
    let share = json!(command.gpu_memory_utilization);
    let default = plain.get("gpu_memory_utilization").cloned().unwrap_or_default();
    pairs.push((
        "gpu-memory-utilization",
        if share.is_null() { default } else { share },
        theirs("gpu-memory-utilization"),
    ));
    Ok(pairs
        .into_iter()
        .filter(|(_, ours, theirs)| ours != theirs && !same_table(ours, theirs))
        .map(|(name, ours, theirs)| (name.to_owned(), ours, theirs))
        .collect())
}

/// Whether both are texts of one JSON table: Python puts a space behind a comma.
fn same_table(one: &Value, other: &Value) -> bool {
    let table = |value: &Value| serde_json::from_str::<Value>(value.as_str()?).ok();
    table(one).is_some_and(|value| value.is_object() && Some(value) == table(other))
}
