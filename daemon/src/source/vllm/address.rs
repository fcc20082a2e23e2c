//! Where an engine listens.

use std::{fmt, net::IpAddr, path::PathBuf};

/// Longest path of a Unix socket (`sun_path` of unix(7), less its end).
const MAX_SOCKET_PATH: usize = 107;

/// Address of an engine's HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `http://HOST:PORT`.
    Tcp {
        /// Name or IP address, IPv6 without brackets.
        host: String,
        /// Port, 1 to 65535.
        port: u16,
    },
    /// `unix:/PATH`.
    Unix(PathBuf),
    /// It has none: a follower without an API server.
    Headless {
        /// First data-parallel rank of its node, or its node's rank.
        rank: u32,
    },
}

/// An address that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// TLS.
    #[error(
        "address {0:?}: https is not supported; use http://HOST:PORT or unix:/PATH, with a TLS proxy if need be"
    )]
    Tls(String),
    /// Anything else.
    #[error(
        "address {0:?} is not http://HOST:PORT (port 1 to 65535) or unix:/PATH (at most {MAX_SOCKET_PATH} bytes)"
    )]
    Form(String),
}

impl Address {
    /// Reads an address as configured.
    ///
    /// # Errors
    /// [`AddressError`] says what is allowed.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.starts_with("https:") {
            return Err(AddressError::Tls(text.into()));
        }
        Self::unix(text).or_else(|| Self::tcp(text)).ok_or_else(|| AddressError::Form(text.into()))
    }

    fn unix(text: &str) -> Option<Self> {
        let path = text.strip_prefix("unix:")?;
        (path.starts_with('/') && path.len() <= MAX_SOCKET_PATH).then(|| Self::Unix(path.into()))
    }

    fn tcp(text: &str) -> Option<Self> {
        let authority = text.strip_prefix("http://")?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let named =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
        let fits = !bare.is_empty() && bare.bytes().all(named) && port != 0;
        // An IPv6 address needs its brackets, or its last group would be the port.
        (fits && (bare != host || !bare.contains(':'))).then(|| Self::Tcp { host: bare.into(), port })
    }

    /// Where a server on this machine that was told to listen on `host` is reached.
    #[must_use]
    pub fn local(host: Option<&str>, port: u16) -> Self {
        let host = match host {
            None | Some("" | "0.0.0.0" | "localhost") => "127.0.0.1",
            Some("::") => "::1",
            Some(host) => host,
        };
        Self::Tcp { host: host.into(), port }
    }

    /// The port, where the address is this machine's loopback or wildcard.
    #[must_use]
    pub fn loopback_port(&self) -> Option<u16> {
        let Self::Tcp { host, port } = self else { return None };
        let local = host == "localhost"
            || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback() || ip.is_unspecified());
        local.then_some(*port)
    }

    /// Whether both mean the same server, for loopback addresses by port alone.
    #[must_use]
    pub fn same_server(&self, other: &Self) -> bool {
        self == other || (self.loopback_port().is_some() && self.loopback_port() == other.loopback_port())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "http://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Headless { rank } => write!(f, "none (headless, rank {rank})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in
            ["http://127.0.0.1:8000", "http://[::1]:8000", "http://gpu-3.example:9", "unix:/run/vllm.sock"]
        {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Address::parse("http://host/").unwrap().to_string(), "http://host:80");
    }

    #[test]
    fn what_cannot_be_reached_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "localhost:8000",
            "http://",
            "http://a:0",
            "http://a:70000",
            "http://::1:8000",
            "unix:x",
            "http://a b:1",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT") && error.contains(&format!("{text:?}")), "{error}");
        }
        assert!(Address::parse("https://a:1").unwrap_err().to_string().contains("https is not supported"));
    }

    #[test]
    fn loopback_addresses_of_one_port_are_one_server() {
        let parse = |text| Address::parse(text).unwrap();
        assert!(parse("http://localhost:8000").same_server(&Address::local(Some("0.0.0.0"), 8000)));
        assert!(!parse("http://localhost:8000").same_server(&Address::local(None, 8001)));
        assert!(!parse("http://10.0.0.1:8000").same_server(&parse("http://10.0.0.2:8000")));
    }
}
