//! Who calls: the credentials of the process at the other end of the socket, and whether it may.

use std::{os::fd::AsFd as _, sync::Arc, time::Duration};

use nix::unistd::Uid;
use tokio::{net::UnixStream, time::Instant};
use tonic::Status;

use super::{activity::Activity, meter::Taken, peer_groups::peer_groups};
use crate::config::Socket;

/// Who may call: root, the daemon's own uid, members of the socket's group, and those the configuration names.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    uids: Vec<u32>,
    gids: Vec<u32>,
}

/// The process at the other end of a connection. Read once, when it connects.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its effective uid.
    pub uid: u32,
    /// Whether it may call.
    pub allowed: bool,
    /// What its connection does.
    pub(super) activity: Arc<Activity>,
    /// Memory that its calls take while they come in.
    pub(super) taken: Arc<Taken>,
}

impl Peer {
    /// When its connection will have been without a call for `idle`; while a call is open, `idle` from now.
    pub(crate) fn idle_at(&self, idle: Duration) -> Instant {
        self.activity.idle_at(idle)
    }
}

impl Allowed {
    /// Those of `socket`, whose file belongs to `file_gid` where that is known.
    #[must_use]
    pub fn new(socket: &Socket, file_gid: Option<u32>) -> Self {
        let mut uids = socket.allowed_uids.clone();
        uids.extend([0, Uid::effective().as_raw()]);
        let mut gids = socket.allowed_gids.clone();
        gids.extend(file_gid);
        Self { uids, gids }
    }

    /// Whether a process of `uid` and `groups` may call.
    #[must_use]
    pub fn allows(&self, uid: u32, groups: &[u32]) -> bool {
        self.uids.contains(&uid) || groups.iter().any(|gid| self.gids.contains(gid))
    }

    /// Who is at the other end of `stream`. A process whose credentials cannot be read may not call.
    #[must_use]
    pub fn identify(&self, stream: &UnixStream) -> Peer {
        let (activity, taken) = (Arc::default(), Arc::default());
        let Ok(credentials) = stream.peer_cred() else {
            return Peer { uid: u32::MAX, allowed: false, activity, taken };
        };
        let uid = credentials.uid();
        let allowed = self.allows(uid, &[credentials.gid()])
            || peer_groups(stream.as_fd()).is_ok_and(|groups| self.allows(uid, &groups));
        Peer { uid, allowed, activity, taken }
    }
}

/// The peer behind a request.
///
/// # Errors
/// INTERNAL when the server was not set up to tell.
pub(super) fn peer_of<T>(request: &tonic::Request<T>) -> Result<&Peer, Status> {
    request.extensions().get::<Peer>().ok_or_else(|| Status::internal("the caller is not known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Allowed {
        let socket = Socket { allowed_uids: vec![4001], allowed_gids: vec![5001], ..Socket::default() };
        Allowed::new(&socket, Some(5002))
    }

    #[test]
    fn root_the_daemon_and_the_listed_may_call() {
        assert!(allowed().allows(0, &[]));
        assert!(allowed().allows(Uid::effective().as_raw(), &[]));
        assert!(allowed().allows(4001, &[]));
        assert!(allowed().allows(4002, &[7, 5001]));
    }

    #[test]
    fn members_of_the_files_group_may_call() {
        assert!(allowed().allows(4002, &[7, 5002]));
    }

    #[test]
    fn others_may_not_call() {
        assert!(!allowed().allows(4002, &[7, 4001]));
        assert!(!Allowed::default().allows(4002, &[]));
    }

    #[tokio::test]
    async fn the_other_end_is_known_by_the_kernels_word() {
        let (here, _there) = UnixStream::pair().unwrap();
        let peer = allowed().identify(&here);
        assert_eq!((peer.uid, peer.allowed), (Uid::effective().as_raw(), true));
    }
}
