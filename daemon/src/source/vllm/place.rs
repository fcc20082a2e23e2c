//! Where an engine listens: what it was told, and which sockets its processes have.

use std::collections::BTreeSet;

use gpuadmit_core::observation::Obstacle;

use super::{
    address::Address,
    cmdline::{Command, DEFAULT_PORT, Speaks},
    process::{Identity, Proc},
};

/// Where an engine listens, as far as known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    /// It does not listen yet; it was told to do so here.
    Expected(Address),
    /// It listens here.
    Known(Address),
    /// It cannot be reached; why.
    Unreachable(String),
}

/// Where a server was told to listen, and why it cannot be asked there.
pub(super) fn told(command: &Command) -> (Address, Option<Obstacle>) {
    let obstacle = match command.speaks {
        Speaks::Http => None,
        Speaks::Tls => Some(Obstacle::Tls),
        Speaks::Grpc => Some(Obstacle::Grpc),
        Speaks::Nothing => {
            return (Address::Headless { rank: command.first_rank }, Some(Obstacle::Headless));
        }
    };
    let Some(path) = &command.uds else {
        let port = command.port.unwrap_or(DEFAULT_PORT);
        return (Address::local(command.host.as_deref(), port), obstacle);
    };
    match command.places.seen(path) {
        Some(path) => (Address::Unix(path.into()), obstacle),
        None => (Address::Unix(path.into()), Some(Obstacle::RelativeSocket)),
    }
}

/// Looks where the server that began with `root` listens. `servers`: its processes that may listen.
pub(super) fn locate(command: &Command, root: Identity, servers: &[u32], proc: &Proc) -> Place {
    let (told, _) = told(command);
    let Address::Tcp { port: told_port, .. } = told else { return Place::Known(told) };
    if proc.other_network(root.pid) == Some(true) {
        return Place::Unreachable(format!(
            "vllm (pid {}) listens in another network namespace (a container): \
             configure it as an engine with the address it is published at",
            root.pid
        ));
    }
    let sockets: Option<Vec<BTreeSet<u64>>> = servers.iter().map(|server| proc.sockets(*server)).collect();
    let unknown_port = || {
        Place::Unreachable(format!(
            "vllm (pid {}) listens at any free port (--port 0), which is not seen: give it a port",
            root.pid
        ))
    };
    // Without the right to see whose a socket is, what the command line says is tried.
    let Some(sockets) = sockets else {
        return if told_port == 0 { unknown_port() } else { Place::Known(told) };
    };
    let (mine, others): (Vec<_>, Vec<_>) = proc
        .listeners()
        .into_iter()
        .partition(|listener| sockets.iter().any(|inodes| inodes.contains(&listener.inode)));
    let mine: BTreeSet<u16> = mine.iter().map(|listener| listener.port).collect();
    match mine.first() {
        _ if mine.contains(&told_port) => Place::Known(told),
        // A port from a configuration file that cannot be read, or any.
        Some(only) if mine.len() == 1 && command.port.unwrap_or(0) == 0 => {
            Place::Known(Address::local(command.host.as_deref(), *only))
        }
        _ if told_port == 0 => unknown_port(),
        _ if others.iter().any(|listener| listener.port == told_port) => Place::Unreachable(format!(
            "port {told_port}, which vllm (pid {}) was told to listen on, is held by another program",
            root.pid
        )),
        _ => Place::Expected(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &str, folder: Option<&str>, root: Option<&str>) -> (String, Option<Obstacle>) {
        let words: Vec<String> = format!("vllm serve m {options}").split(' ').map(Into::into).collect();
        let mut command = Command::parse(&words, |_| Ok(vec![])).unwrap();
        command.places.folder = folder.map(Into::into);
        command.places.root = root.map(Into::into);
        let (address, obstacle) = told(&command);
        (address.to_string(), obstacle)
    }

    #[test]
    fn a_socket_is_where_the_engine_sees_it() {
        let address = |path, folder, root| of(&format!("--uds {path}"), folder, root);
        assert_eq!(address("/run/a", Some("/srv"), None), ("unix:/run/a".into(), None));
        assert_eq!(address("a.sock", Some("/srv"), None), ("unix:/srv/a.sock".into(), None));
        assert_eq!(address("/run/a", None, Some("/proc/7/root")), ("unix:/proc/7/root/run/a".into(), None));
        assert_eq!(
            address("./a", Some("/srv"), Some("/proc/7/root")),
            ("unix:/proc/7/root/srv/./a".into(), None)
        );
        let relative = ("unix:a.sock".into(), Some(Obstacle::RelativeSocket));
        assert_eq!(address("a.sock", None, None), relative);
        assert_eq!(address("a.sock --ssl-keyfile k", None, None), relative);
    }

    #[test]
    fn what_it_speaks_may_stand_in_the_way() {
        let tcp = |port| format!("http://127.0.0.1:{port}");
        assert_eq!(of("--ssl-certf c.pem --port 1024", None, None), (tcp(1024), Some(Obstacle::Tls)));
        assert_eq!(of("--grpc", None, None), (tcp(8000), Some(Obstacle::Grpc)));
        let headless = "--headless -dp 4 --data-parallel-start-rank 2 --ssl-keyfile k";
        assert_eq!(of(headless, None, None), ("none (headless, rank 2)".into(), Some(Obstacle::Headless)));
        assert_eq!(of("--uds /s --ssl-keyfile k", None, None), ("unix:/s".into(), Some(Obstacle::Tls)));
    }
}
