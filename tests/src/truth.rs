//! An engine that knows the truth about itself: what its requests really hold, told over HTTP as vLLM 0.32 tells it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Tokens per block.
pub const BLOCK_SIZE: u64 = 16;
/// Output tokens per second of each request.
pub const TOKENS_PER_SECOND: f64 = 200.0;
/// Longest head of an HTTP request.
const MAX_HEAD: usize = 16 << 10;

/// The engine. Cheap to clone.
#[derive(Clone)]
pub struct Truth(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    blocks: u64,
    running: BTreeMap<u64, Request>,
    next: u64,
    finished: u64,
    prompt_tokens: u64,
    generated: u64,
    most_used: u64,
}

struct Request {
    prompt: u64,
    output: u64,
    since: Instant,
}

impl Request {
    fn generated(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test lasts seconds")]
        let generated = (self.since.elapsed().as_secs_f64() * TOKENS_PER_SECOND) as u64;
        generated.min(self.output)
    }
}

impl Truth {
    /// One with a KV cache of `blocks` blocks and model `m`, that answers on `listener` until the runtime ends.
    #[must_use]
    pub fn serve(blocks: u64, listener: TcpListener) -> Self {
        let engine = Self(Arc::new(Mutex::new(State { blocks, ..State::default() })));
        let serving = engine.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let engine = serving.clone();
                tokio::spawn(async move { engine.converse(stream).await });
            }
        });
        engine
    }

    /// [`Self::serve`] on a free port of the loopback.
    ///
    /// # Errors
    /// There is none.
    pub async fn start(blocks: u64) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok((Self::serve(blocks, listener), address))
    }

    /// A request arrives, which will generate `output` tokens. Returns its number.
    #[must_use]
    pub fn begin(&self, prompt: u64, output: u64) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        state.prompt_tokens += prompt;
        let number = state.next;
        state.running.insert(number, Request { prompt, output, since: Instant::now() });
        state.used();
        number
    }

    /// It ends.
    pub fn end(&self, number: u64) {
        let mut state = self.lock();
        state.used();
        if let Some(request) = state.running.remove(&number) {
            state.finished += 1;
            state.generated += request.generated();
        }
    }

    /// Most blocks that were ever in use, of how many.
    #[must_use]
    pub fn most_used(&self) -> (u64, u64) {
        let state = self.lock();
        (state.most_used, state.blocks)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn converse(self, mut stream: TcpStream) {
        let mut head = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            head.push(byte);
            if head.len() > MAX_HEAD {
                return;
            }
            if head.ends_with(b"\r\n\r\n") {
                let answer = self.answer(&String::from_utf8_lossy(&head));
                head.clear();
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    fn answer(&self, head: &str) -> String {
        let (status, body) = match head.split(' ').nth(1) {
            Some("/metrics") => ("200 OK", self.lock().exposition()),
            Some("/version") => ("200 OK", r#"{"version":"0.32.0"}"#.into()),
            Some("/v1/models") => ("200 OK", r#"{"data":[{"id":"m","max_model_len":4096}]}"#.into()),
            _ => ("404 Not Found", String::new()),
        };
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }
}

impl State {
    /// Blocks in use now.
    fn used(&mut self) -> u64 {
        let running = self.running.values();
        let used = running.map(|one| (one.prompt + one.generated()).div_ceil(BLOCK_SIZE)).sum();
        self.most_used = self.most_used.max(used);
        used
    }

    fn exposition(&mut self) -> String {
        let small = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let usage = small(self.used()) / small(self.blocks);
        let generated = self.generated + self.running.values().map(Request::generated).sum::<u64>();
        let labels = r#"{engine="0",model_name="m"}"#;
        let mut text = String::new();
        let mut series = |kind: &str, name: &str, sample: &str, value: String| {
            let _ = write!(text, "# TYPE vllm:{name} {kind}\nvllm:{sample} {value}\n");
        };
        let running = self.running.len();
        let of = |name: &str| format!("{name}{labels}");
        series("gauge", "num_requests_running", &of("num_requests_running"), running.to_string());
        series("gauge", "num_requests_waiting", &of("num_requests_waiting"), "0".into());
        series("gauge", "kv_cache_usage_perc", &of("kv_cache_usage_perc"), usage.to_string());
        let config = format!(
            r#"cache_config_info{{block_size="{BLOCK_SIZE}",engine="0",num_gpu_blocks="{}"}}"#,
            self.blocks + 1
        );
        series("gauge", "cache_config_info", &config, "1.0".into());
        series("counter", "num_preemptions", &of("num_preemptions_total"), "0".into());
        series("counter", "prompt_tokens", &of("prompt_tokens_total"), self.prompt_tokens.to_string());
        series("counter", "generation_tokens", &of("generation_tokens_total"), generated.to_string());
        let finished = r#"request_success_total{engine="0",finished_reason="stop",model_name="m"}"#;
        series("counter", "request_success", finished, self.finished.to_string());
        text
    }
}
