//! A session of several hosts: starts the server and this host's own part in it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::error::{Error, Result};
use lab::hosts::{Hello, LineConn, MOST, reach};
use lab::nccl::library::Source;
use lab::results::record;
use lab::system::host::die_with_parent;
use lab::system::output;
use lab::system::output::plain;
use lab::transport::instance::Transport;
use nccl_net::inspect::version;

use crate::doctor::machine;
use crate::doctor::machine::Machine;
use crate::doctor::peers::judge;
use crate::doctor::peers::message::{HostFacts, RailFacts, Reply, Request};
use crate::doctor::peers::server::{Plan, end, gather, try_all};
use crate::doctor::peers::trial::Trial;
use crate::doctor::report::{RowReport, Verdict};

/// The hidden subcommand of a host's part.
const HOST_WORKER: &str = "doctor-host";

/// Serves the session and takes part in it; the rows.
pub(crate) fn serve(
    listener: &TcpListener,
    machine: &Machine,
    plan: &Plan,
) -> Result<Vec<RowReport>> {
    let place = listener.local_addr().map_err(|e| Error::io("no address", e))?;
    let own = match place.ip().is_unspecified() {
        true => format!("127.0.0.1:{}", place.port()),
        false => place.to_string(),
    };
    let mut child = start(&own, machine, &plan.token)?;
    let hosts = gather(listener, plan);
    let tried = try_all(&hosts, plan);
    let looked = judge::all(&hosts, plan.hosts, &tried);
    let count = |verdict| looked.iter().filter(|row| row.verdict == verdict).count();
    end(&hosts, count(Verdict::Fail), count(Verdict::Warn));
    if hosts.is_empty() {
        child.kill().unwrap_or_default();
    }
    child.wait().map_err(|e| Error::io("cannot wait for this host's part", e))?;
    Ok(looked)
}

/// Takes part in the session of the server at `place`: the exit code of this host's part.
pub(crate) fn join(place: &str, machine: &Machine, token: &str) -> Result<i32> {
    let mut child = start(place, machine, token)?;
    let status = child.wait().map_err(|e| Error::io("cannot wait for this host's part", e))?;
    Ok(status.code().unwrap_or(1))
}

/// Starts this host's part, in the environment under which the plugin is tried.
fn start(place: &str, machine: &Machine, token: &str) -> Result<Child> {
    let hello = hello(machine, token)?;
    let plugin: &Path = machine.plugin.as_ref().map_err(|why| Error::Unreadable(why.clone()))?;
    let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
    let mut env: BTreeMap<String, String> = machine.env.clone();
    env.extend(machine::SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut command = Command::new(program);
    command
        .args([HOST_WORKER, place])
        .arg(plugin)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    // SAFETY: between fork and exec there is one system call.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, die_with_parent) };
    let mut child =
        command.spawn().map_err(|e| Error::io("this host's part cannot be started", e))?;
    // It reads its input to the end, which is when this pipe is dropped.
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(hello.as_bytes())
            .map_err(|e| Error::io("this host's part does not take its hello", e))?;
    }
    Ok(child)
}

/// The server may not be there yet: it is tried for so long.
const REACH: Duration = Duration::from_secs(60);
/// Between two requests the server may be busy with other hosts.
const TIME_LIMIT: Duration = Duration::from_secs(600);
const SEND: Duration = Duration::from_secs(10);

/// How a host's part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Rows that have FAILed, and that have warned.
    pub(crate) failed: usize,
    pub(crate) warned: usize,
}

/// What this host tells.
pub(crate) fn hello(machine: &Machine, token: &str) -> Result<String> {
    let plugin = machine.plugin.as_ref().map_err(|why| Error::Unreadable(why.clone()))?;
    let facts = machine.verbs().map_err(|why| Error::Unreadable(why.into()))?;
    let is_setting = |name: &str| name.starts_with("NCCL_") || name.starts_with("FERRITE_");
    let mtu = |device: &str, number: u8| {
        let mut ports = facts.ports();
        ports
            .find(|(_, d, p)| d.name == device && p.port == number)
            .map_or(0, |(_, _, port)| port.mtu)
    };
    let rails = facts.rails.iter().map(|rail| RailFacts {
        name: rail.name(),
        speed_mbps: rail.speed_mbps,
        infiniband: rail.infiniband,
        mtu: mtu(&rail.device, rail.port),
        is_software: !machine.root.exists(format!("/sys/class/infiniband/{}/device", rail.device)),
        gid: rail
            .gid
            .as_ref()
            .and_then(|gid| gid.as_ref().ok())
            .map_or_else(String::new, |gid| gid.address.clone()),
    });
    let facts = HostFacts {
        host: machine.root.text("/proc/sys/kernel/hostname").unwrap_or_default(),
        boot: machine.root.text("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        version: version::text().to_owned(),
        protocol: nccl_net::inspect::PROTOCOL_VERSION,
        plugin: record::sha256(plugin)?,
        settings: machine
            .env
            .iter()
            .filter(|(name, _)| is_setting(name))
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect(),
        rails: rails.collect(),
    };
    serde_json::to_string(&Hello { token: token.into(), facts })
        .map_err(|problem| Error::Unreadable(problem.to_string()))
}

/// What the hidden subcommand does: takes part in the session of the server at `place` with the
/// hello that it reads from its input. A process of its own, since the plugin is tried with
/// settings of its own.
pub(crate) fn main(place: &str, plugin: &Path) -> Result<Ended> {
    let mut text = String::new();
    std::io::stdin()
        .take(MOST as u64)
        .read_to_string(&mut text)
        .map_err(|e| Error::io("cannot read the hello", e))?;
    let hello: Hello<HostFacts> =
        serde_json::from_str(&text).map_err(|e| Error::Unreadable(format!("the hello: {e}")))?;
    let mut conn = LineConn::new(reach(place, REACH)?);
    conn.send(&hello, SEND).map_err(Error::Unreadable)?;
    let mut part = Part { plugin: plugin.into(), trial: None };
    loop {
        let request: Request = conn
            .receive(TIME_LIMIT)
            .map_err(|why| Error::Unreadable(format!("the server at {place}: {why}")))?;
        let reply = match request {
            Request::Refused(why) => {
                return Err(Error::Refused(plain(&format!("the server at {place}: {why}"))));
            }
            Request::End { failed, warned } => return Ok(Ended { failed, warned }),
            Request::Welcome(number) => {
                output::write_stderr(format_args!(
                    "this is host {number} of the session at {place}"
                ));
                Reply::Done
            }
            request => part.answer(&request),
        };
        conn.send(&reply, SEND)
            .map_err(|why| Error::Unreadable(format!("the server at {place}: {why}")))?;
    }
}

/// The plugin is opened when it is needed first.
struct Part {
    plugin: PathBuf,
    trial: Option<Trial>,
}

impl Part {
    fn answer(&mut self, request: &Request) -> Reply {
        if *request == Request::Ping || (*request == Request::Close && self.trial.is_none()) {
            return Reply::Done;
        }
        if self.trial.is_none() {
            match Transport::open(&Source::plugin(&self.plugin)) {
                Ok(transport) => self.trial = Some(Trial::new(transport)),
                Err(problem) => return Reply::Failed(problem.to_string()),
            }
        }
        self.trial
            .as_mut()
            .map_or_else(|| Reply::Failed("no plugin".into()), |trial| trial.answer(request))
    }
}
