//! A host of a session: it tells its facts to the server, and does what the server asks until the end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nccl_net::inspect::version;

use crate::doctor::machine::Machine;
use crate::doctor::peers::message::{HostFacts, RailFacts, Reply, Request};
use crate::doctor::peers::trial::Trial;
use lab::error::{Error, Result};
use lab::hosts::admission::Hello;
use lab::hosts::line_conn::{LineConn, MOST};
use lab::hosts::reach::reach;
use lab::nccl::library::Source;
use lab::results::file_hash;
use lab::system::output::{self, plain};
use lab::transport::instance::Transport;

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
        ports.find(|(_, d, p)| d.name == device && p.port == number).map_or(0, |(_, _, port)| port.mtu)
    };
    let rails = facts.rails.iter().map(|rail| RailFacts {
        name: rail.name(),
        speed_mbps: rail.speed_mbps,
        infiniband: rail.infiniband,
        mtu: mtu(&rail.device, rail.port),
        is_software: !machine.root.exists(format!("/sys/class/infiniband/{}/device", rail.device)),
        gid: rail.gid.as_ref().and_then(|gid| gid.as_ref().ok()).map_or_else(String::new, |gid| gid.address.clone()),
    });
    let facts = HostFacts {
        host: machine.root.text("/proc/sys/kernel/hostname").unwrap_or_default(),
        version: version::text().to_owned(),
        protocol: nccl_net::inspect::PROTOCOL_VERSION,
        plugin: file_hash::sha256(plugin)?,
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

/// What the hidden subcommand does: takes part in the session of the server at `place` with the hello that it reads from its
/// input. A process of its own, since the plugin is tried with settings of its own.
pub(crate) fn main(place: &str, plugin: &Path) -> Result<Ended> {
    let mut text = String::new();
    std::io::stdin().take(MOST as u64).read_to_string(&mut text).map_err(|e| Error::io("cannot read the hello", e))?;
    let hello: Hello<HostFacts> =
        serde_json::from_str(&text).map_err(|e| Error::Unreadable(format!("the hello: {e}")))?;
    let mut conn = LineConn::new(reach(place, REACH)?);
    conn.send(&hello, SEND).map_err(Error::Unreadable)?;
    let mut part = Part { plugin: plugin.into(), trial: None };
    loop {
        let request: Request =
            conn.receive(TIME_LIMIT).map_err(|why| Error::Unreadable(format!("the server at {place}: {why}")))?;
        let reply = match request {
            Request::Refused(why) => return Err(Error::Refused(plain(&format!("the server at {place}: {why}")))),
            Request::End { failed, warned } => return Ok(Ended { failed, warned }),
            Request::Welcome(number) => {
                output::write_stderr(format_args!("this is host {number} of the session at {place}"));
                Reply::Done
            }
            request => part.answer(&request),
        };
        conn.send(&reply, SEND).map_err(|why| Error::Unreadable(format!("the server at {place}: {why}")))?;
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
        self.trial.as_mut().map_or_else(|| Reply::Failed("no plugin".into()), |trial| trial.answer(request))
    }
}
