//! Gateways that ask a daemon over its socket, and an engine that they fill: what was promised, kept and failed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use gpuadmit_client::{Connection, connect};
use gpuadmit_proto::v1::{
    AdmitRequest, Admitted, CompleteRequest, ReservationRef, admit_request::Prompt,
    admit_response::Result as Answer, reservation_ref::Ref,
};
use tokio::{task::JoinSet, time::sleep};
use tonic::{Code, Status};

use crate::truth::{BLOCK_SIZE, TOKENS_PER_SECOND, Truth};

/// A call that is not answered in this time, however often it is tried, has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries.
const RETRY: Duration = Duration::from_millis(20);

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Calls that were answered.
    pub answered: u64,
    /// Of those, requests that were admitted.
    pub admitted: u64,
    /// Calls that had to be tried again, by the status they had met.
    pub retried: BTreeMap<String, u64>,
    /// Calls that failed for good, and denials that no load explains.
    pub failed: Vec<String>,
    /// Most blocks promised at once, in the worst case, and when it was more than there are: by how many.
    pub most_promised: u64,
    /// Longest time until an answer.
    pub slowest: Duration,
}

/// The load, running.
pub struct Load {
    shared: Arc<Shared>,
    gateways: JoinSet<()>,
}

struct Shared {
    socket: PathBuf,
    engine: Truth,
    over: AtomicBool,
    promised: AtomicU64,
    number: AtomicU64,
    outcome: Mutex<Outcome>,
}

impl Load {
    /// Starts so many gateways, each with one request at a time.
    #[must_use]
    pub fn start(socket: &Path, engine: Truth, gateways: u64) -> Self {
        let shared = Arc::new(Shared {
            socket: socket.to_owned(),
            engine,
            over: AtomicBool::new(false),
            promised: AtomicU64::new(0),
            number: AtomicU64::new(0),
            outcome: Mutex::default(),
        });
        let each = |_| Arc::clone(&shared).gateway();
        let gateways = (0..gateways).map(each).collect();
        Self { shared, gateways }
    }

    /// So far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets every gateway end its request.
    pub async fn stop(mut self) -> Outcome {
        self.shared.over.store(true, SeqCst);
        while self.gateways.join_next().await.is_some() {}
        self.outcome()
    }
}

impl Shared {
    async fn gateway(self: Arc<Self>) {
        let Ok(connection) = connect(&self.socket) else {
            self.note(|outcome| outcome.failed.push("the socket's path is too long".into()));
            return;
        };
        while !self.over.load(SeqCst) {
            let number = self.number.fetch_add(1, SeqCst);
            // Sizes that repeat without a pattern: 16 to 400 tokens of prompt, 32 to 500 of output.
            let (prompt, output) = (16 + number * 7919 % 385, 32 + number * 104_729 % 469);
            match self.ask(&connection, number, prompt, output).await {
                Some(admitted) => self.carry_out(&connection, &admitted, number, prompt, output).await,
                None => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Asks for admission; `None` where it is denied.
    async fn ask(&self, connection: &Connection, number: u64, prompt: u64, output: u64) -> Option<Admitted> {
        let request = AdmitRequest {
            model: "m".into(),
            prompt: Some(Prompt::PromptTokens(prompt)),
            max_tokens: Some(output),
            request_id: Some(format!("{}-{number}", std::process::id())),
            ..AdmitRequest::default()
        };
        let call = || async { connection.admission().admit(request.clone()).await };
        match self.insist("admit", call).await?.into_inner().result? {
            Answer::Admitted(admitted) => Some(admitted),
            Answer::Denied(denied) if denied.http_status == 429 => None,
            Answer::Denied(denied) => {
                self.note(|outcome| outcome.failed.push(format!("denied: {}", denied.message)));
                None
            }
        }
    }

    async fn carry_out(
        &self,
        connection: &Connection,
        admitted: &Admitted,
        number: u64,
        prompt: u64,
        output: u64,
    ) {
        let worst = (prompt + output).div_ceil(BLOCK_SIZE);
        let promised = self.promised.fetch_add(worst, SeqCst) + worst;
        self.note(|outcome| {
            outcome.admitted += 1;
            outcome.most_promised = outcome.most_promised.max(promised);
        });
        // As long as a gateway may take to deliver it.
        sleep(Duration::from_millis(number * 31 % 150)).await;
        let generated = output - number % 4 * output / 8;
        let there = self.engine.begin(prompt, generated);
        let small = f64::from(u32::try_from(generated).unwrap_or(u32::MAX));
        sleep(Duration::from_secs_f64(small / TOKENS_PER_SECOND)).await;
        self.engine.end(there);
        self.promised.fetch_sub(worst, SeqCst);
        let reservation = Some(ReservationRef { r#ref: Some(Ref::ReservationId(admitted.reservation_id)) });
        let completion =
            CompleteRequest { reservation, output_tokens: Some(generated), ..CompleteRequest::default() };
        self.insist("complete", || async { connection.admission().complete(completion.clone()).await }).await;
    }

    /// Calls until it is answered: a daemon that is restarted may break a connection, and the call with it.
    async fn insist<T, F: Future<Output = Result<T, Status>>>(
        &self,
        name: &str,
        call: impl Fn() -> F,
    ) -> Option<T> {
        let since = Instant::now();
        loop {
            match call().await {
                Ok(answer) => {
                    self.note(|outcome| {
                        outcome.answered += 1;
                        outcome.slowest = outcome.slowest.max(since.elapsed());
                    });
                    return Some(answer);
                }
                Err(status) if broken(&status) && since.elapsed() < PATIENCE => {
                    let met = format!("{name}: {:?}", status.code());
                    self.note(|outcome| *outcome.retried.entry(met).or_default() += 1);
                    sleep(RETRY).await;
                }
                Err(status) => {
                    self.note(|outcome| outcome.failed.push(format!("{name}: {status}")));
                    return None;
                }
            }
        }
    }

    fn note(&self, change: impl FnOnce(&mut Outcome)) {
        change(&mut self.outcome.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Whether the connection broke, or the daemon said that it stops. A client cannot know whether such a call was carried
/// out; its request id makes asking again safe.
fn broken(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        Code::Unknown | Code::Cancelled | Code::Internal => std::error::Error::source(status).is_some(),
        _ => false,
    }
}
