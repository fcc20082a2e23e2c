//! Conversations with a served daemon that succeed or fail the test.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers included")]

use std::time::Duration;

use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, Admitted, SessionRequest, SessionResponse, admit_response,
    session_request::Call, session_response::Answer,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::Streaming;

use crate::served::{Served, admit};

/// Longest wait for an answer.
const SOON: Duration = Duration::from_secs(10);

/// The promise in an answer.
///
/// # Panics
/// It is a denial.
#[must_use]
pub fn admitted(response: AdmitResponse) -> Admitted {
    match response.result {
        Some(admit_response::Result::Admitted(admitted)) => admitted,
        other => panic!("not admitted: {other:?}"),
    }
}

/// Has a request of 100 + 50 tokens admitted.
///
/// # Panics
/// It is denied.
pub async fn admitted_one(served: &Served) -> Admitted {
    admitted(served.connection.admission().admit(admit(100, 50)).await.unwrap().into_inner())
}

/// A session: send calls, take answers.
pub struct Talk {
    /// What it is asked.
    pub calls: mpsc::Sender<SessionRequest>,
    /// What it is answered.
    pub answers: Streaming<SessionResponse>,
}

impl Talk {
    /// Opens one.
    ///
    /// # Panics
    /// The daemon refuses it.
    pub async fn open(served: &Served) -> Self {
        let (calls, sent) = mpsc::channel(8);
        let answers = served.connection.admission().session(ReceiverStream::new(sent)).await.unwrap();
        Self { calls, answers: answers.into_inner() }
    }

    /// The answer to a call.
    ///
    /// # Panics
    /// There is none, or it is another call's.
    pub async fn ask(&mut self, correlation_id: u64, call: Call) -> Answer {
        self.calls.send(SessionRequest { correlation_id, call: Some(call) }).await.unwrap();
        let response = timeout(SOON, self.answers.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(response.correlation_id, correlation_id);
        response.answer.unwrap()
    }

    /// Has a request admitted.
    ///
    /// # Panics
    /// It is denied.
    pub async fn admit(&mut self, correlation_id: u64, request: AdmitRequest) -> Admitted {
        match self.ask(correlation_id, Call::Admit(request)).await {
            Answer::Admit(response) => admitted(response),
            other => panic!("not admitted: {other:?}"),
        }
    }
}
