//! A connection to the daemon over its Unix socket.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use gpuadmit_proto::v1::{admission_client::AdmissionClient, node_client::NodeClient};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/gpuadmit/gpuadmit.sock";
/// Longest time for opening the socket.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// Longest time for an answer, where the call has no reason of its own to take longer.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Largest answer taken, bytes. The largest real one, the status of a full node, is some hundred kilobytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Longest socket path, bytes: `sun_path` of sockaddr_un (unix(7)) less its terminating zero.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Why there can be no connection, whatever the daemon does.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kernel takes no such path.
    #[error("the socket's path of {bytes} bytes is too long; at most {MAX_SOCKET_PATH_BYTES} bytes")]
    PathTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Connections live in a tokio runtime.
    #[error("connect must be called from within a tokio runtime")]
    NoRuntime,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody answers at the socket.
    #[error("cannot reach the daemon at {}: {reason}; see whether gpuadmitd runs: `systemctl status gpuadmit`", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the kernel or the transport said.
        reason: String,
    },
    /// This user may not use the socket.
    #[error("not allowed to use the daemon at {}: {reason}; see whether this user is in the socket's group: `gpuadmit doctor`", socket.display())]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
        /// What the kernel or the daemon said.
        reason: String,
    },
    /// The daemon listens but did not answer in time.
    #[error("the daemon at {} did not answer in time; see whether it hangs: `systemctl status gpuadmit`", socket.display())]
    TimedOut {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon answered with an error.
    #[error("the daemon refused: {}", if message.is_empty() { code.description() } else { message })]
    Refused {
        /// gRPC status code.
        code: Code,
        /// The daemon's sentence.
        message: String,
    },
}

/// A connection, opened on the first call and again after a break. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    socket: PathBuf,
    channel: Channel,
}

/// A connection to the daemon that listens at `socket`; nothing is opened before the first call.
///
/// # Errors
/// The path is too long for a socket, or there is no tokio runtime.
pub fn connect(socket: impl AsRef<Path>) -> Result<Connection, ConnectError> {
    let socket = socket.as_ref().to_path_buf();
    check_path(&socket)?;
    tokio::runtime::Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
    let path = socket.clone();
    let open = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI only fills HTTP/2's `:authority`.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT_DEADLINE);
    Ok(Connection { socket, channel: endpoint.connect_with_connector_lazy(open) })
}

/// Whether the kernel takes such a path for a socket.
pub(crate) fn check_path(socket: &Path) -> Result<(), ConnectError> {
    let bytes = socket.as_os_str().len();
    if bytes > MAX_SOCKET_PATH_BYTES { Err(ConnectError::PathTooLong { bytes }) } else { Ok(()) }
}

impl Connection {
    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The channel, for services beside the two of this API (health, reflection).
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Calls of the `Admission` service.
    #[must_use]
    pub fn admission(&self) -> AdmissionClient<Channel> {
        AdmissionClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Calls of the `Node` service.
    #[must_use]
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// What a failed call means to the one who made it.
    #[must_use]
    pub fn explain(&self, status: &Status) -> CallError {
        let socket = self.socket.clone();
        if let Some(error) = io_error(status) {
            let reason = without_number(&error.to_string());
            return match error.kind() {
                io::ErrorKind::PermissionDenied => CallError::NotAllowed { socket, reason },
                _ => CallError::Unreachable { socket, reason },
            };
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::PermissionDenied => CallError::NotAllowed { socket, reason: message },
            Code::DeadlineExceeded => CallError::TimedOut { socket },
            // A deadline that this side kept: tonic tells it as a cancellation.
            Code::Cancelled if source::<tonic::TimeoutExpired>(status).is_some() => {
                CallError::TimedOut { socket }
            }
            // The daemon itself says UNAVAILABLE without a transport error behind it.
            Code::Unavailable if status.source().is_some() => {
                CallError::Unreachable { socket, reason: deepest(status) }
            }
            code => CallError::Refused { code, message },
        }
    }
}

/// Longest deadline that a call is given: more does not fit the eight digits of gRPC's header in every unit.
const LONGEST_DEADLINE: Duration = Duration::from_secs(99_999_999);

/// `message` with `deadline`, at most three years, which both sides keep.
pub fn within<T>(deadline: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.min(LONGEST_DEADLINE));
    request
}

/// All errors behind `status`, outermost first.
fn sources(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |&error| error.source())
}

fn source<T: Error + 'static>(status: &Status) -> Option<&T> {
    sources(status).find_map(|error| error.downcast_ref())
}

/// The operating system's own error, where one is behind `status`; wrappers of other errors are passed over.
fn io_error(status: &Status) -> Option<&io::Error> {
    sources(status).filter_map(|error| error.downcast_ref::<io::Error>()).last()
}

/// `No such file or directory (os error 2)` without the number, which tells a person nothing more.
fn without_number(message: &str) -> String {
    message.split_once(" (os error").map_or(message, |(text, _)| text).to_owned()
}

fn deepest(status: &Status) -> String {
    sources(status).last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use gpuadmit_proto::v1::StatusRequest;

    use super::*;

    async fn failed_call(socket: &Path, deadline: Duration) -> CallError {
        let connection = connect(socket).unwrap();
        let status = connection.node().status(within(deadline, StatusRequest::default())).await.unwrap_err();
        connection.explain(&status)
    }

    fn fresh_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("gpuadmit-{name}-{}.sock", std::process::id()))
    }

    #[tokio::test]
    async fn a_missing_socket_is_unreachable_and_names_the_path() {
        let socket = fresh_path("missing");
        let error = failed_call(&socket, CALL_DEADLINE).await;
        assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!(
                "cannot reach the daemon at {}: No such file or directory; see whether gpuadmitd",
                socket.display()
            )),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_daemon_that_never_answers_is_timed_out() {
        let socket = fresh_path("mute");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let error = failed_call(&socket, Duration::from_millis(50)).await;
        std::fs::remove_file(&socket).unwrap();
        assert!(matches!(error, CallError::TimedOut { .. }), "{error:?}");
    }

    #[test]
    fn there_is_no_connection_without_a_runtime() {
        assert!(matches!(connect("/x"), Err(ConnectError::NoRuntime)));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let error = connect("/".repeat(108)).unwrap_err();
        assert!(matches!(error, ConnectError::PathTooLong { bytes: 108 }));
    }
}
