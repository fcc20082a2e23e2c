//! The socket: whether it is there, and who may use it.

use std::{io, path::Path};

use super::{
    Case, Finding,
    groups::grants_more,
    machine::Want,
    service::{CONFIG, USER, identity},
};

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    const CHECK: &str = "socket.file";
    let file = match case.machine.access(&case.socket) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let folder = Path::new(&case.socket).parent().unwrap_or(Path::new("/")).display().to_string();
            let text = format!(
                "this user may not look into {folder}: no caller but the daemon's user reaches the socket"
            );
            return vec![Finding::error(CHECK, text, format!("chmod 0755 {folder}"))];
        }
        Err(_) => {
            let text = format!("no {}: callers fail at once", case.socket);
            return vec![Finding::error(CHECK, text, "systemctl enable --now gpuadmit.socket")];
        }
    };
    if !file.is_socket {
        let text = format!("{} is no socket: the daemon refuses to replace it", case.socket);
        let remedy = format!("rm {} && systemctl restart gpuadmit.socket", case.socket);
        return vec![Finding::error(CHECK, text, remedy)];
    }
    let group = case.service.group_name(file.gid).map_or_else(|| file.gid.to_string(), str::to_owned);
    if file.mode & 0o002 != 0 {
        let text =
            format!("mode {:04o}: every user of this machine can take up all of an engine's room", file.mode);
        return vec![Finding::warning(
            CHECK,
            text,
            "systemctl edit gpuadmit.socket, with SocketMode=0660; restart it",
        )];
    }
    if file.mode & 0o060 != 0o060 {
        let text =
            format!("mode {:04o}: its group {group} may not use it, so gateways need to be root", file.mode);
        return vec![Finding::warning(
            CHECK,
            text,
            "systemctl edit gpuadmit.socket, with SocketMode=0660; restart it",
        )];
    }
    let there = Finding::ok(CHECK, format!("{}, mode {:04o}, group {group}", case.socket, file.mode));
    let me = case.machine.read("/proc/self/status").as_deref().and_then(identity);
    let mine = me.map(|me| {
        if file.allows(&me, Want::ReadWrite) {
            Finding::ok("socket.member", "this user may use it")
        } else {
            let text = format!(
                "this user (uid {}) is not in the socket's group {group}, and may not use it",
                me.uid
            );
            Finding::warning("socket.member", text, join(&group, file.gid))
        }
    });
    std::iter::once(there).chain(mine).chain(nameless(case, file.gid)).collect()
}

/// How a caller gets into the socket's group; how the socket gets another one, where its group is not for callers.
fn join(group: &str, gid: u32) -> String {
    if grants_more(group, gid) {
        return format!(
            "set [socket] group in {CONFIG} to a group of callers, such as {USER} (under systemd: SocketGroup in \
             `systemctl edit gpuadmit.socket`), and restart; not to {group}, whose members may do far more than ask"
        );
    }
    format!("usermod -aG {group} USER, then log in anew; a gateway's unit: SupplementaryGroups={group}")
}

/// A group that nobody can be put into.
fn nameless(case: &Case, gid: u32) -> Option<Finding> {
    case.service.unit()?;
    case.service.group_name(gid).is_none().then(|| {
        let text = format!("the socket's group {gid} has no name: nobody can be put into it");
        let remedy = format!("systemd-sysusers && systemctl restart gpuadmit.socket (its group is {USER})");
        Finding::warning("socket.group", text, remedy)
    })
}
