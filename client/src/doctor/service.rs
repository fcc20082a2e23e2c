//! How the daemon is installed and how it runs: its unit, its user, its process.

use std::path::{Path, PathBuf};

use gpuadmit_client::{CallError, v1::StatusResponse};

use super::{
    Case, Finding,
    config::Config,
    machine::{Identity, Machine},
    rights::Rights,
};

/// Folders of units, by precedence (systemd.unit(5)).
const UNIT_FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const UNIT: &str = "gpuadmit.service";
/// Where the program is installed.
const PROGRAMS: [&str; 3] = ["/usr/sbin/gpuadmitd", "/usr/local/sbin/gpuadmitd", "/usr/bin/gpuadmitd"];
/// Where it looks for its configuration when the unit does not say.
pub(super) const CONFIG: &str = "/etc/gpuadmit/gpuadmit.toml";
/// The user of the unit.
pub(super) const USER: &str = "gpuadmit";

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    unit: Option<Unit>,
    process: Option<Process>,
    program: Option<PathBuf>,
    identity: Option<Identity>,
    /// Names of groups, with their numbers.
    groups: Vec<(String, u32)>,
    /// Its configuration file, and whether it was told to read it.
    pub(super) config_path: PathBuf,
    told_config: bool,
    /// What that says, as far as it matters here.
    pub(super) config: Config,
}

/// The unit, drop-ins included: settings of `[Service]` in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unit(Vec<(String, String)>);

/// The process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    identity: Identity,
    rights: Rights,
    arguments: Vec<String>,
}

impl Unit {
    fn find(machine: &Machine) -> Option<Self> {
        let text = UNIT_FOLDERS.iter().find_map(|folder| machine.read(format!("{folder}/{UNIT}")))?;
        let mut unit = Self::default();
        unit.add(&text);
        for folder in UNIT_FOLDERS.iter().rev() {
            let folder = format!("{folder}/{UNIT}.d");
            for name in machine.list(&folder).iter().filter(|name| name.ends_with(".conf")) {
                unit.add(&machine.read(format!("{folder}/{name}")).unwrap_or_default());
            }
        }
        Some(unit)
    }

    fn add(&mut self, text: &str) {
        let mut in_service = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                in_service = line == "[Service]";
            } else if let (true, Some((key, value))) = (in_service, line.split_once('=')) {
                self.0.push((key.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }

    fn all<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(one, _)| one == key).map(|(_, value)| value.as_str())
    }

    fn last(&self, key: &str) -> Option<&str> {
        self.all(key).last().filter(|value| !value.is_empty())
    }

    /// What its process may do.
    pub(super) fn rights(&self) -> Rights {
        let bound = if self.all("CapabilityBoundingSet").next().is_some() {
            Rights::of_lines(self.all("CapabilityBoundingSet"))
        } else {
            Rights::ALL
        };
        match self.last("User") {
            None | Some("root") => bound,
            Some(_) => Rights(Rights::of_lines(self.all("AmbientCapabilities")).0 & bound.0),
        }
    }

    /// Its command line, without the marks that a unit may set before it.
    fn command(&self) -> impl Iterator<Item = &str> {
        let line = self.last("ExecStart").unwrap_or_default();
        line.trim_start_matches(['-', '+', '!', ':', '@']).split_whitespace()
    }
}

impl Process {
    fn read(machine: &Machine, pid: u32) -> Option<Self> {
        let status = machine.read(format!("/proc/{pid}/status"))?;
        let arguments = machine.read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Self {
            pid,
            identity: identity(&status)?,
            rights: Rights(u64::from_str_radix(field(&status, "CapEff:")?.next()?, 16).ok()?),
            arguments: arguments.split_terminator('\0').map(str::to_owned).collect(),
        })
    }

    /// The file that its command line names; relative where the process's folder is not for us to see.
    fn config(&self, machine: &Machine) -> Option<PathBuf> {
        let path = config_of(self.arguments.iter().map(String::as_str))?;
        let folder = machine.link(format!("/proc/{}/cwd", self.pid)).unwrap_or_default();
        Some(folder.join(path))
    }

    /// A daemon that does not answer: by its name.
    fn search(machine: &Machine) -> Option<Self> {
        let is_named = |pid: &u32| machine.line(format!("/proc/{pid}/comm")).as_deref() == Some("gpuadmitd");
        let pids = machine.list("/proc").into_iter().filter_map(|name| name.parse().ok()).filter(is_named);
        pids.filter_map(|pid| Self::read(machine, pid))
            .find(|process| process.arguments.get(1).is_none_or(|word| word != "nvml-child"))
    }
}

/// The words behind `name` in a `status` file (proc_pid_status(5)).
fn field<'a>(status: &'a str, name: &str) -> Option<impl Iterator<Item = &'a str>> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace)
}

/// Effective user and groups in a `status` file.
pub(super) fn identity(status: &str) -> Option<Identity> {
    let effective = |name| field(status, name)?.nth(1)?.parse::<u32>().ok();
    let primary = effective("Gid:")?;
    let others = field(status, "Groups:")?.filter_map(|word| word.parse().ok());
    Some(Identity { uid: effective("Uid:")?, groups: std::iter::once(primary).chain(others).collect() })
}

/// Lines of `/etc/passwd` or `/etc/group`, cut at their colons.
fn database(machine: &Machine, path: &str) -> Vec<Vec<String>> {
    let text = machine.read(path).unwrap_or_default();
    text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

fn number(fields: &[String], index: usize) -> Option<u32> {
    fields.get(index)?.parse().ok()
}

impl Service {
    /// Looks for all of it; `status` is what the daemon said of itself.
    pub(crate) fn find(machine: &Machine, status: Option<&StatusResponse>) -> Self {
        let unit = Unit::find(machine);
        let told = status.and_then(|status| status.pid).and_then(|pid| Process::read(machine, pid));
        // Whoever only bears the name is not believed what its command line says.
        let told_config = match &told {
            Some(process) => process.config(machine),
            // Services start in the root folder.
            None => unit.as_ref().and_then(|unit| Some(Path::new("/").join(config_of(unit.command())?))),
        };
        let config_path = told_config.clone().unwrap_or_else(|| CONFIG.into());
        let installed = PROGRAMS.iter().map(PathBuf::from).find(|path| machine.has(path));
        let program = unit.as_ref().and_then(|unit| unit.command().next()).map(PathBuf::from).or(installed);
        let process = told.or_else(|| Process::search(machine));
        let groups: Vec<(String, u32)> = database(machine, "/etc/group")
            .into_iter()
            .filter_map(|fields| Some((fields.first()?.clone(), number(&fields, 2)?)))
            .collect();
        let identity = process
            .as_ref()
            .map(|process| process.identity.clone())
            .or_else(|| unit_identity(machine, unit.as_ref()?));
        let config = Config::read(machine, &config_path);
        let told_config = told_config.is_some();
        Self { unit, process, program, identity, groups, config_path, told_config, config }
    }

    /// The daemon's program, of that machine.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }

    /// The daemon's configuration file, of that machine.
    pub(crate) fn config_path(&self) -> &Path {
        &self.config_path
    }

    pub(super) const fn is_told_config(&self) -> bool {
        self.told_config
    }

    pub(super) const fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref()
    }

    pub(super) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Who the daemon is, or would be.
    pub(super) const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    pub(super) fn group_name(&self, gid: u32) -> Option<&str> {
        self.groups.iter().find(|(_, number)| *number == gid).map(|(name, _)| name.as_str())
    }

    /// What the daemon may do, and of what that is known.
    pub(super) fn rights(&self) -> Option<(Rights, &'static str)> {
        let running = self.process.as_ref().map(|process| (process.rights, "process"));
        running.or_else(|| Some((self.unit.as_ref()?.rights(), "unit")))
    }
}

/// The value of `--config`.
fn config_of<'a>(words: impl Iterator<Item = &'a str>) -> Option<PathBuf> {
    let mut words = words.skip_while(|word| *word != "--config" && !word.starts_with("--config="));
    match words.next()?.strip_prefix("--config=") {
        Some(value) => Some(value.into()),
        None => words.next().map(Into::into),
    }
}

fn unit_identity(machine: &Machine, unit: &Unit) -> Option<Identity> {
    let Some(user) = unit.last("User") else { return Some(Identity { uid: 0, groups: vec![0] }) };
    let users = database(machine, "/etc/passwd");
    let fields = users.iter().find(|fields| fields.first().is_some_and(|name| name == user))?;
    let named = |fields: &Vec<String>| {
        let members = fields.get(3).is_some_and(|members| members.split(',').any(|member| member == user));
        members.then(|| number(fields, 2)).flatten()
    };
    let others = database(machine, "/etc/group");
    let groups = std::iter::once(number(fields, 3)?).chain(others.iter().filter_map(named));
    Some(Identity { uid: number(fields, 2)?, groups: groups.collect() })
}

pub(super) fn examine(case: &Case) -> Vec<Finding> {
    let mut findings = vec![unit(case)];
    findings.extend(user(case));
    findings.extend(answer(case));
    findings.extend(oom(case));
    findings
}

fn unit(case: &Case) -> Finding {
    const CHECK: &str = "daemon.unit";
    match &case.service.unit {
        Some(unit) => match unit.last("User") {
            Some(user) => Finding::ok(CHECK, format!("{UNIT} runs as {user}")),
            None => Finding::warning(
                CHECK,
                format!("{UNIT} runs as root: more rights than it has a use for"),
                "systemctl edit gpuadmit, with User=gpuadmit as in the unit that is installed",
            ),
        },
        None => Finding::note(CHECK, format!("no {UNIT}: the daemon is not installed as a service")),
    }
}

/// The user that the unit names.
fn user(case: &Case) -> Option<Finding> {
    const CHECK: &str = "daemon.user";
    let user = case.service.unit.as_ref()?.last("User")?;
    let group = case.service.unit.as_ref()?.last("Group").unwrap_or(user);
    let is_user =
        database(&case.machine, "/etc/passwd").iter().any(|one| one.first().is_some_and(|name| name == user));
    let is_group = case.service.groups.iter().any(|(name, _)| name == group);
    Some(if is_user && is_group {
        Finding::ok(CHECK, format!("user {user}, group {group}"))
    } else {
        let what = if is_user { format!("group {group}") } else { format!("user {user}") };
        Finding::error(CHECK, format!("there is no {what}: the service cannot start"), "systemd-sysusers")
    })
}

fn answer(case: &Case) -> Vec<Finding> {
    const CHECK: &str = "daemon.answers";
    let status = match &case.status {
        Ok(status) => status,
        Err(error) => return vec![silence(case, error)],
    };
    let text = format!("version {}{}", status.version, if status.simulated { ", simulated" } else { "" });
    let answers = Finding::ok(CHECK, text);
    let version = if status.version == case.version {
        Finding::ok("daemon.version", "the command's own")
    } else {
        let text = format!("the daemon is {} and this command {}", status.version, case.version);
        Finding::warning("daemon.version", text, "systemctl restart gpuadmit (callers wait meanwhile)")
    };
    vec![answers, version]
}

fn silence(case: &Case, error: &CallError) -> Finding {
    const CHECK: &str = "daemon.answers";
    match error {
        // Whether this user may is the business of the socket's own check.
        CallError::NotAllowed { .. } => Finding::warning(
            CHECK,
            "this user may not ask it: engines are not checked",
            "run gpuadmit doctor as root",
        ),
        CallError::TimedOut { .. } => Finding::error(
            CHECK,
            "it takes connections and does not answer: callers go by what they do without it",
            "journalctl -u gpuadmit -n 50; systemctl restart gpuadmit",
        ),
        CallError::Refused { message, .. } => Finding::error(
            CHECK,
            format!("it answers with an error: {message}"),
            "journalctl -u gpuadmit -n 50",
        ),
        CallError::Unreachable { reason, .. } => {
            let running = match &case.service.process {
                Some(process) => format!("a gpuadmitd runs (process {}) but", process.pid),
                None => "it does not run:".to_owned(),
            };
            let text = format!("{running} nobody answers at {} ({reason})", case.socket);
            Finding::error(
                CHECK,
                text,
                "systemctl enable --now gpuadmit.socket gpuadmit.service; journalctl -u gpuadmit -n 50",
            )
        }
    }
}

/// Whether the kernel would choose the daemon when memory runs out.
fn oom(case: &Case) -> Option<Finding> {
    const CHECK: &str = "daemon.oom";
    let pid = case.service.process()?.pid;
    let score: i32 = case.machine.line(format!("/proc/{pid}/oom_score_adj"))?.parse().ok()?;
    Some(if score < 0 {
        Finding::ok(CHECK, format!("oom_score_adj {score}"))
    } else if case.service.unit.is_none() {
        Finding::note(
            CHECK,
            format!("oom_score_adj {score}: not kept from the kernel's choice, as its unit does"),
        )
    } else {
        let text = format!(
            "oom_score_adj {score}: when the host's memory runs out the kernel may kill the daemon first"
        );
        Finding::warning(CHECK, text, "start it by its unit, which has OOMScoreAdjust=-900")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_what_the_command_line_says() {
        let of = |line: &str| config_of(line.split(' ').skip(1));
        assert_eq!(of("gpuadmitd --config /a"), Some("/a".into()));
        assert_eq!(of("gpuadmitd --config=/a --simulate"), Some("/a".into()));
        assert_eq!(of("gpuadmitd --simulate --config /a"), Some("/a".into()));
        assert_eq!(of("gpuadmitd --check-config"), None);
    }

    #[test]
    fn the_unit_that_is_shipped_is_well() {
        let mut unit = Unit::default();
        unit.add(include_str!("../../../systemd/gpuadmit.service"));
        assert_eq!(unit.last("User"), Some(USER));
        assert_eq!(unit.rights().lacking().map(|one| one.name).collect::<Vec<_>>(), [""; 0]);
        assert_eq!(config_of(unit.command()), Some(CONFIG.into()));
        assert_eq!(unit.command().next(), PROGRAMS.first().copied());
    }

    #[test]
    fn drop_ins_change_a_unit() {
        let mut unit = Unit::default();
        unit.add(
            "[Unit]\nUser=nobody\n[Service]\nUser=gpuadmit\nExecStart=/usr/sbin/gpuadmitd --config /x\n",
        );
        unit.add("[Service]\nExecStart=\nExecStart=/opt/gpuadmitd\n");
        assert_eq!(unit.last("User"), Some("gpuadmit"));
        assert_eq!(unit.command().collect::<Vec<_>>(), ["/opt/gpuadmitd"]);
        assert_eq!(unit.rights().lacking().count(), 4);
    }
}
