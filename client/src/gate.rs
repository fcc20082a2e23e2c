//! The question of a gateway, with an answer in bounded time whatever the daemon does.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuadmit_proto::v1::{
    AdmitRequest, Denied, admit_request::Prompt, admit_response::Result as Answer, denied::Reason,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    connect::{ConnectError, DEFAULT_SOCKET, check_path, connect},
    guard::Guard,
    session::{ORDERS, Order, Reply, not_sent, run},
};

/// Output tokens that the local budget counts for a request without max_tokens.
const UNLIMITED_OUTPUT: u64 = 1024;
/// Bytes of text that it counts as one token.
const BYTES_PER_TOKEN: u64 = 4;

/// What is answered while there is no daemon, or none that answers in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAbsent {
    /// Yes: the engine fends for itself, as it would without a gate.
    Admit,
    /// No, with status 503, and the time after which the client may come again.
    Deny {
        /// For `Retry-After`.
        retry_after: Duration,
    },
    /// Yes while the requests admitted so have at most so many tokens together, prompt and output; then no, with status
    /// 429. Text counts a token for each four bytes, output without a limit 1,024 tokens.
    Budget {
        /// Tokens in flight.
        tokens: u64,
    },
}

/// How a [`Gate`] asks.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// Longest time for an answer, beside the time that the request itself would wait for room (`wait_ms`).
    pub deadline: Duration,
    /// What is answered without a daemon.
    pub when_absent: WhenAbsent,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            deadline: Duration::from_millis(5),
            when_absent: WhenAbsent::Admit,
        }
    }
}

/// Why a request must not go in now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The daemon's reason; `None` when it is one that this version does not know, or when the daemon was not there.
    pub reason: Option<Reason>,
    /// HTTP status for the client: 400, 404, 413, 429 or 503.
    pub http_status: u16,
    /// When it may come again; `Retry-After` is this in seconds, rounded up.
    pub retry_after: Option<Duration>,
    /// One sentence. Never contains prompt text.
    pub message: String,
}

/// Asks the daemon for each request. Opens its connection when it is first asked, and again after a break; always answers
/// within its deadline. Cheap to clone: all clones share one stream, and what it admitted is adopted when it is opened
/// again.
///
/// ```no_run
/// use gpuadmit_client::{gate::{Gate, Options}, v1::{AdmitRequest, Outcome, admit_request::Prompt}};
///
/// # async fn serve(body: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
/// let gate = Gate::new(Options::default())?;
/// let asked = AdmitRequest {
///     model: "Qwen/Qwen3-8B".into(),
///     prompt: Some(Prompt::OpenaiBody(body)),
///     ..AdmitRequest::default()
/// };
/// match gate.admit(asked).await {
///     Ok(guard) => {
///         // … send the request to guard.address(), stream the answer …
///         guard.complete(Outcome::Ok, Some(120), Some(800));
///     }
///     Err(refusal) => println!("{} {refusal}", refusal.http_status),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    orders: Mutex<Option<mpsc::Sender<Order>>>,
    /// Tokens of what the local budget admitted.
    in_flight: Arc<AtomicU64>,
}

impl Gate {
    /// A gate; nothing is opened before it is asked.
    ///
    /// # Errors
    /// The socket's path is too long for a socket.
    pub fn new(options: Options) -> Result<Self, ConnectError> {
        check_path(&options.socket)?;
        let (orders, in_flight) = (Mutex::new(None), Arc::default());
        Ok(Self(Arc::new(Inner { options, orders, in_flight })))
    }

    /// Whether `request` may go in now.
    ///
    /// # Errors
    /// The daemon's denial, or, while there is none, what [`Options::when_absent`] says.
    pub async fn admit(&self, request: AdmitRequest) -> Result<Guard, Refusal> {
        let cost = cost(&request);
        match self.ask(request).await {
            Some((Reply::Decided(response), orders)) => match response.result {
                Some(Answer::Admitted(admitted)) => Ok(Guard::of_daemon(admitted, orders)),
                Some(Answer::Denied(denied)) => Err(refusal(denied)),
                None => self.without(cost),
            },
            Some((Reply::Invalid(message), _)) => {
                Err(Refusal { reason: None, http_status: 400, retry_after: None, message })
            }
            Some((Reply::Absent, _)) | None => self.without(cost),
        }
    }

    /// The daemon's answer; `None`: it did not come in time.
    async fn ask(&self, request: AdmitRequest) -> Option<(Reply, mpsc::Sender<Order>)> {
        let wait = Duration::from_millis(request.wait_ms.into());
        let orders = self.orders()?;
        let (sender, answer) = oneshot::channel();
        orders.try_send(Order::Admit(Box::new(request), sender)).ok()?;
        let mut asked = Asked { answer, orders };
        let deadline = self.0.options.deadline.saturating_add(wait);
        // The one who stops waiting may still find an answer: it came at the last moment.
        let reply =
            timeout(deadline, &mut asked.answer).await.map_or_else(|_| asked.last_moment(), Result::ok);
        Some((reply?, asked.orders.clone()))
    }

    /// Where the task takes its orders; it is started when there is none. `None` outside of a tokio runtime.
    fn orders(&self) -> Option<mpsc::Sender<Order>> {
        let mut orders = self.0.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(orders) = orders.as_ref().filter(|orders| !orders.is_closed()) {
            return Some(orders.clone());
        }
        let runtime = Handle::try_current().ok()?;
        let connection = connect(&self.0.options.socket).ok()?;
        let (sender, receiver) = mpsc::channel(ORDERS);
        runtime.spawn(run(connection, receiver));
        *orders = Some(sender.clone());
        Some(sender)
    }

    /// The answer without a daemon.
    fn without(&self, cost: u64) -> Result<Guard, Refusal> {
        let refuse = |http_status, retry_after, message: &str| {
            Err(Refusal { reason: None, http_status, retry_after, message: message.into() })
        };
        match self.0.options.when_absent {
            WhenAbsent::Admit => Ok(Guard::of_nobody()),
            WhenAbsent::Deny { retry_after } => {
                refuse(503, Some(retry_after), "the admission daemon does not answer")
            }
            WhenAbsent::Budget { tokens } => {
                let in_flight = &self.0.in_flight;
                let more = |sum: u64| sum.checked_add(cost).filter(|sum| *sum <= tokens);
                if in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
                    return Ok(Guard::of_budget(cost, Arc::clone(in_flight)));
                }
                let message = "the admission daemon does not answer, and the budget without it is used up";
                refuse(429, Some(Duration::from_secs(1)), message)
            }
        }
    }
}

/// A question on its way. Whoever drops it gives back what was granted meanwhile.
struct Asked {
    answer: oneshot::Receiver<Reply>,
    orders: mpsc::Sender<Order>,
}

impl Asked {
    /// Ends the wait; an answer that has just come is not lost.
    fn last_moment(&mut self) -> Option<Reply> {
        self.answer.close();
        self.answer.try_recv().ok()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(id) = self.last_moment().and_then(|reply| reply.reservation()) {
            let _ = self.orders.try_send(Order::Complete(not_sent(id)));
        }
    }
}

fn refusal(denied: Denied) -> Refusal {
    let reason = Reason::try_from(denied.reason).ok().filter(|reason| *reason != Reason::Unspecified);
    Refusal {
        reason,
        http_status: u16::try_from(denied.http_status).unwrap_or(503),
        retry_after: denied.retry_after_ms.map(Duration::from_millis),
        message: denied.message,
    }
}

/// Tokens that the local budget counts for `request`.
fn cost(request: &AdmitRequest) -> u64 {
    let text = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(BYTES_PER_TOKEN);
    let prompt = match &request.prompt {
        Some(Prompt::PromptTokens(tokens)) => *tokens,
        Some(Prompt::PromptBytes(bytes)) => bytes.div_ceil(BYTES_PER_TOKEN),
        Some(Prompt::OpenaiBody(body)) => text(body.len()),
        Some(Prompt::Text(words)) => text(words.len()),
        None => 0,
    };
    let output = request.max_tokens.unwrap_or(UNLIMITED_OUTPUT);
    prompt.saturating_add(output.saturating_mul(request.n.unwrap_or(1).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt_tokens: u64, max_tokens: u64) -> AdmitRequest {
        AdmitRequest {
            model: "m".into(),
            prompt: Some(Prompt::PromptTokens(prompt_tokens)),
            max_tokens: Some(max_tokens),
            ..AdmitRequest::default()
        }
    }

    fn gate(when_absent: WhenAbsent) -> Gate {
        let socket = "/nonexistent/gpuadmit.sock".into();
        Gate::new(Options { socket, when_absent, ..Options::default() }).unwrap()
    }

    #[tokio::test]
    async fn without_a_daemon_the_answer_is_the_configured_one() {
        assert!(gate(WhenAbsent::Admit).admit(request(1, 1)).await.unwrap().admitted().is_none());
        let deny = WhenAbsent::Deny { retry_after: Duration::from_secs(7) };
        let refusal = gate(deny).admit(request(1, 1)).await.unwrap_err();
        assert_eq!((refusal.http_status, refusal.retry_after), (503, Some(Duration::from_secs(7))));
    }

    #[tokio::test]
    async fn the_budget_bounds_what_is_admitted_without_a_daemon_and_comes_back() {
        let gate = gate(WhenAbsent::Budget { tokens: 1000 });
        let first = gate.admit(request(500, 300)).await.unwrap();
        assert_eq!(gate.admit(request(100, 101)).await.unwrap_err().http_status, 429);
        let _second = gate.admit(request(100, 100)).await.unwrap();
        drop(first);
        let _third = gate.admit(request(500, 300)).await.unwrap();
    }

    #[test]
    fn costs_count_prompt_and_all_output() {
        assert_eq!(cost(&request(100, 50)), 150);
        let text = AdmitRequest { prompt: Some(Prompt::Text("abcde".into())), n: Some(3), ..request(0, 10) };
        assert_eq!(cost(&text), 2 + 30);
        let absurd = AdmitRequest { n: Some(u32::MAX), max_tokens: Some(u64::MAX), ..request(u64::MAX, 1) };
        assert_eq!(cost(&absurd), u64::MAX);
    }

    #[test]
    fn outside_of_a_runtime_the_answer_is_that_without_a_daemon() {
        assert!(gate(WhenAbsent::Admit).orders().is_none());
    }
}
