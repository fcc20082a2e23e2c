//! The task behind a [`Gate`](crate::gate::Gate): it owns one `Session` stream, opens it when it is first needed, and again,
//! less and less often, after it broke.
//!
//! ```text
//!  Down ──an order, or something to adopt or to tell──▶ opening ──▶ Up
//!   ▲  ◀──────────── failed: wait longer ──────────────────┘        │
//!   └──────────── broke: whoever waits is told ◀────────────────────┘
//! ```
//!
//! After a break it adopts the reservations whose guards live, and tells the ends that it could not tell before.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, AdoptRequest, CompleteRequest, Outcome, ProgressRequest, ReservationRef,
    SessionRequest, SessionResponse, admit_response, reservation_ref, session_request::Call,
    session_response::Answer,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Streaming};

use crate::connect::Connection;

/// Orders that wait for the task; more are as if there were no daemon.
pub(crate) const ORDERS: usize = 1024;
/// Calls on their way to the daemon, and calls that it has not answered.
const OUTGOING: usize = 1024;
const UNANSWERED: usize = 4096;
/// Ends that could not be told yet, the oldest forgotten first: the engine shows them in the end.
const OWED: usize = 4096;
/// Reservations in one adoption, as `admission.proto` says.
const ADOPTED: usize = 1024;
/// Longest time to open the stream.
const OPENING: Duration = Duration::from_secs(1);
/// Wait after the first failure; it doubles with each.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the task is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Ask, and answer there.
    Admit(Box<AdmitRequest>, oneshot::Sender<Reply>),
    /// A reservation has come so far.
    Progress(u64, u64),
    /// A reservation has ended.
    Complete(CompleteRequest),
}

/// What became of a question.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The daemon's answer.
    Decided(AdmitResponse),
    /// The question itself is wrong.
    Invalid(String),
    /// There is no daemon that answers.
    Absent,
}

impl Reply {
    /// The reservation that it promises.
    pub(crate) fn reservation(&self) -> Option<u64> {
        match self {
            Self::Decided(AdmitResponse {
                result: Some(admit_response::Result::Admitted(admitted)), ..
            }) => Some(admitted.reservation_id),
            _ => None,
        }
    }
}

/// Names a reservation.
pub(crate) const fn by_id(id: u64) -> Option<ReservationRef> {
    Some(ReservationRef { r#ref: Some(reservation_ref::Ref::ReservationId(id)) })
}

/// The end of a reservation that was never used.
pub(crate) fn not_sent(id: u64) -> CompleteRequest {
    let outcome = Outcome::NotSent.into();
    CompleteRequest { reservation: by_id(id), outcome, output_tokens: None, prompt_tokens: None }
}

/// Runs until nobody can give orders any more.
pub(crate) async fn run(connection: Connection, mut orders: mpsc::Receiver<Order>) {
    let mut books = Books::default();
    let mut pause = Pause::default();
    while let Some(first) = down(&mut orders, &mut books, pause.until).await {
        match Up::open(&connection).await {
            None => {
                pause.longer();
                if let Some(order) = first {
                    books.refuse(order);
                }
            }
            Some(mut up) => {
                let opened = Instant::now();
                up.greet(&mut books);
                if let Some(order) = first {
                    up.take(order, &mut books);
                }
                if up.serve(&mut orders, &mut books).await {
                    return up.finish().await;
                }
                // A stream that breaks at once is no better than none.
                if opened.elapsed() > LONGEST_PAUSE {
                    pause = Pause::default();
                }
                pause.longer();
            }
        }
    }
}

/// Waits until there is something to open a stream for: an order, or `Some(None)` for what the books hold. Until `until`
/// orders are refused at once. `None`: nobody can give orders any more.
async fn down(
    orders: &mut mpsc::Receiver<Order>,
    books: &mut Books,
    until: Option<Instant>,
) -> Option<Option<Order>> {
    loop {
        let paused = until.is_some_and(|until| Instant::now() < until);
        if !paused && !books.is_empty() {
            return Some(None);
        }
        let over = async {
            match until.filter(|_| paused) {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => match order? {
                order if paused => books.refuse(order),
                Order::Complete(request) => books.owe(request),
                order => return Some(Some(order)),
            },
            () = over => {}
        }
    }
}

/// How long to wait before the next try.
#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn longer(&mut self) {
        self.length = (self.length * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.until = Some(Instant::now() + self.length);
    }
}

/// What outlives a stream.
#[derive(Debug, Default)]
struct Books {
    /// Reservations whose guards live.
    held: BTreeSet<u64>,
    /// Ends not told yet.
    owed: VecDeque<CompleteRequest>,
}

impl Books {
    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.owed.is_empty()
    }

    fn owe(&mut self, request: CompleteRequest) {
        if let Some(reservation_ref::Ref::ReservationId(id)) =
            request.reservation.as_ref().and_then(|reservation| reservation.r#ref.as_ref())
        {
            self.held.remove(id);
        }
        if self.owed.len() >= OWED {
            self.owed.pop_front();
        }
        self.owed.push_back(request);
    }

    /// Answers an order without a daemon.
    fn refuse(&mut self, order: Order) {
        match order {
            Order::Admit(_, reply) => drop(reply.send(Reply::Absent)),
            Order::Progress(..) => {}
            Order::Complete(request) => self.owe(request),
        }
    }
}

/// An open stream.
struct Up {
    calls: mpsc::Sender<SessionRequest>,
    answers: Streaming<SessionResponse>,
    unanswered: BTreeMap<u64, oneshot::Sender<Reply>>,
    next: u64,
}

impl Up {
    async fn open(connection: &Connection) -> Option<Self> {
        let (calls, sent) = mpsc::channel(OUTGOING);
        let mut admission = connection.admission();
        let opening = timeout(OPENING, admission.session(ReceiverStream::new(sent))).await;
        let answers = opening.ok()?.ok()?.into_inner();
        Some(Self { calls, answers, unanswered: BTreeMap::new(), next: 0 })
    }

    /// Sends a call; `None` when the daemon does not take them as fast as they come.
    fn send(&mut self, call: Call) -> Option<u64> {
        self.next = self.next.wrapping_add(1);
        let request = SessionRequest { correlation_id: self.next, call: Some(call) };
        self.calls.try_send(request).ok().map(|()| self.next)
    }

    /// Takes up what outlived the stream before.
    fn greet(&mut self, books: &mut Books) {
        let held: Vec<u64> = books.held.iter().copied().collect();
        for ids in held.chunks(ADOPTED) {
            self.send(Call::Adopt(AdoptRequest { reservation_ids: ids.to_vec() }));
        }
        self.pay(books);
    }

    /// Does what is ordered until the stream breaks; returns whether nobody can give orders any more.
    async fn serve(&mut self, orders: &mut mpsc::Receiver<Order>, books: &mut Books) -> bool {
        let over = loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.take(order, books),
                    None => break true,
                },
                answer = self.answers.next() => match answer {
                    Some(Ok(response)) => self.answered(response, books),
                    Some(Err(_)) | None => break false,
                },
            }
        };
        for reply in std::mem::take(&mut self.unanswered).into_values() {
            let _ = reply.send(Reply::Absent);
        }
        over
    }

    /// Ends the stream once the daemon has read all calls.
    async fn finish(self) {
        let Self { calls, mut answers, .. } = self;
        drop(calls);
        let _ = timeout(OPENING, async { while let Some(Ok(_)) = answers.next().await {} }).await;
    }

    fn take(&mut self, order: Order, books: &mut Books) {
        match order {
            Order::Admit(_, reply) if reply.is_closed() => {}
            Order::Admit(request, reply) => {
                let full = self.unanswered.len() >= UNANSWERED;
                match (!full).then(|| self.send(Call::Admit(*request))).flatten() {
                    Some(id) => drop(self.unanswered.insert(id, reply)),
                    None => drop(reply.send(Reply::Absent)),
                }
            }
            Order::Progress(id, generated_tokens) => {
                let request = ProgressRequest { reservation: by_id(id), generated_tokens };
                // The next one tells more.
                let _ = self.send(Call::Progress(request));
            }
            Order::Complete(request) => {
                books.owe(request);
                self.pay(books);
            }
        }
    }

    /// Tells the ends that are owed.
    fn pay(&mut self, books: &mut Books) {
        while let Some(request) = books.owed.pop_front() {
            if self.send(Call::Complete(request.clone())).is_none() {
                books.owed.push_front(request);
                return;
            }
        }
    }

    fn answered(&mut self, response: SessionResponse, books: &mut Books) {
        let Some(reply) = self.unanswered.remove(&response.correlation_id) else {
            // Of a completion, an adoption, or progress: nobody waits for it, but there is room again.
            return self.pay(books);
        };
        let answer = match response.answer {
            Some(Answer::Admit(response)) => Reply::Decided(response),
            Some(Answer::Error(error)) if error.code == i32::from(Code::InvalidArgument) => {
                Reply::Invalid(error.message)
            }
            _ => Reply::Absent,
        };
        let reservation = answer.reservation();
        let taken = reply.send(answer).is_ok();
        match reservation {
            Some(id) if taken => drop(books.held.insert(id)),
            // It came too late: the caller has decided without it.
            Some(id) => self.take(Order::Complete(not_sent(id)), books),
            None => {}
        }
    }
}
