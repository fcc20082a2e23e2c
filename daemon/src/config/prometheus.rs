//! `[prometheus]`: the endpoint with the daemon's metrics.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::check::{Found, MAX_SOCKET_PATH_BYTES};

/// `[prometheus]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prometheus {
    /// Whether metrics are served at all.
    pub enabled: bool,
    /// `IP:PORT` to serve them at over TCP; port 0 takes a free one. Empty: not over TCP.
    pub address: String,
    /// Absolute path of a Unix socket to serve them at, with mode and group of `[socket]`. Absent: none.
    pub socket: Option<PathBuf>,
    /// Connections at once; one more is closed at once.
    pub connections: u32,
}

impl Default for Prometheus {
    fn default() -> Self {
        Self { enabled: true, address: "127.0.0.1:9476".into(), socket: None, connections: 8 }
    }
}

pub(super) fn check(prometheus: &Prometheus, found: &mut Found) {
    let Prometheus { address, socket, connections, .. } = prometheus;
    found.unless(
        address.is_empty() || address.parse::<SocketAddr>().is_ok(),
        "prometheus.address",
        address,
        "an IP address and a port like \"127.0.0.1:9476\" or \"[::1]:9476\", or nothing",
    );
    found.range("prometheus.connections", *connections, 1..=1024);
    if let Some(path) = socket {
        found.unless(
            path.is_absolute() && path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES,
            "prometheus.socket",
            path,
            &format!("an absolute path of at most {MAX_SOCKET_PATH_BYTES} bytes"),
        );
    }
}
