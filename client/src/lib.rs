//! Client of gpuadmit, for gateways and tools on the same machine.
//!
//! ```no_run
//! use gpuadmit_client::{CALL_DEADLINE, connect, v1, within};
//!
//! # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
//! let connection = connect("/run/gpuadmit/gpuadmit.sock")?;
//! let status = connection.node().status(within(CALL_DEADLINE, v1::StatusRequest::default())).await?;
//! println!("{} engines", status.into_inner().engines.len());
//! # Ok(())
//! # }
//! ```

pub mod canonical;
mod connect;
pub mod gate;
mod guard;
pub mod page;
mod session;

pub use connect::{
    CALL_DEADLINE, CONNECT_DEADLINE, CallError, ConnectError, Connection, DEFAULT_SOCKET, MAX_MESSAGE_BYTES,
    connect, within,
};
pub use gpuadmit_proto::v1;
pub use guard::Guard;
