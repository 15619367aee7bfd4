//! A session of several hosts: starts the server and this host's own part in it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lab::error::{Error, Result};
use lab::hosts;
use lab::hosts::{Hello, LineConn, MOST, reach};
use lab::nccl::library::Source;
use lab::results::record;
use lab::system::host::die_with_parent;
use lab::system::output;
use lab::system::output::plain;
use lab::transport::instance::Transport;
use nccl_net::inspect::version;
use serde::{Deserialize, Serialize};

use crate::doctor::machine;
use crate::doctor::machine::Machine;
use crate::doctor::peers::judge;
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

/// What a host tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HostFacts {
    pub(super) host: String,
    /// Version of the doctor.
    pub(super) version: String,
    /// Version of the wire protocol of this release.
    pub(super) protocol: u16,
    /// SHA-256 of the plugin's file.
    pub(super) plugin: String,
    /// `NCCL_*` and `FERRITE_*`.
    pub(super) settings: BTreeMap<String, String>,
    /// The ports that the plugin uses, in its order.
    pub(super) rails: Vec<RailFacts>,
}

/// A port that the plugin uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RailFacts {
    /// `mlx5_0:1`.
    pub(super) name: String,
    pub(super) speed_mbps: u32,
    pub(super) infiniband: bool,
    /// Bytes.
    pub(super) mtu: u32,
    /// The GID as an address; empty if there is none.
    pub(super) gid: String,
    /// There is no hardware behind it, so that its speed means nothing.
    #[serde(default)]
    pub(super) is_software: bool,
}

/// What the server asks of a host. Each gets one [`Reply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The host takes part, under this number.
    Welcome(usize),
    /// It does not, for this reason. There is no reply.
    Refused(String),
    /// Nothing but the reply.
    Ping,
    /// Listen on this device.
    Listen(usize),
    /// Accept the one connection of the listener.
    Accept,
    /// Connect a device to the listener with this handle, in hexadecimal digits.
    Connect(usize, String),
    /// Send or receive messages over the connection.
    Transfer(Transfer),
    /// Close all that is open.
    Close,
    /// The session is over: how many rows have FAILed, and how many have warned.
    End { failed: usize, warned: usize },
}

/// Messages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub(super) bytes: usize,
    pub(super) count: u32,
    /// Messages in flight at most.
    pub(super) window: usize,
    /// The bytes of the first messages are checked, which takes time.
    pub(super) is_checked: bool,
}

/// The answer of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Handle(String),
    Measured(Measured),
    Failed(String),
}

/// What a [`Transfer`] took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    /// Sender: the median, and the 99th of 100, of the time from `isend` to completion;
    /// microseconds.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// The bytes in hexadecimal digits.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `N` bytes from hexadecimal digits.
pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

// The server of a session: lets hosts in by the token, has each pair of them try its rails, and
// keeps what they answer. It never calls the plugin itself.

/// A host answers within this time.
const ANSWER: Duration = Duration::from_secs(30);

/// What the server is to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) token: String,
    pub(crate) hosts: usize,
    /// How long it waits for all hosts.
    pub(crate) limit: Duration,
    /// Time of each measurement.
    pub(crate) slice: Duration,
    /// Each rail with each, and not only with its like.
    pub(crate) is_full: bool,
}

/// A host that was let in.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) facts: HostFacts,
    /// What a request without work took.
    pub(super) round_trip: Result<Duration, String>,
    /// `None`: it has failed, and an answer may still be under way.
    pub(super) conn: Mutex<Option<LineConn>>,
}

/// How a rail of one host reached a rail of another one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tried {
    pub(super) from: (usize, usize),
    pub(super) to: (usize, usize),
    pub(super) outcome: Result<Speed, String>,
}

/// What was measured over a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    pub(super) gbps: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Lets hosts in until all are there, or the time is over.
pub(super) fn gather(listener: &TcpListener, plan: &Plan) -> Vec<Host> {
    let mut hosts = Vec::new();
    let never = || false;
    hosts::gather(listener, &plan.token, plan.hosts, plan.limit, never, |facts, conn| {
        let number = hosts.len();
        hosts.push(welcome(facts, conn, number));
    });
    hosts
}

fn welcome(facts: HostFacts, conn: LineConn, number: usize) -> Host {
    let mut host =
        Host { facts, round_trip: Err("not asked".into()), conn: Mutex::new(Some(conn)) };
    host.round_trip = host.ask(&Request::Welcome(number)).and_then(|_| {
        let start = Instant::now();
        host.ask(&Request::Ping).map(|_| start.elapsed())
    });
    host
}

impl Host {
    /// Sends a request and waits for the reply.
    fn ask(&self, request: &Request) -> Result<Reply, String> {
        self.tell(request)?;
        self.hear()
    }

    fn tell(&self, request: &Request) -> Result<(), String> {
        self.over(|conn| conn.send(request, ANSWER))
    }

    fn hear(&self) -> Result<Reply, String> {
        match self.over(|conn| conn.receive(ANSWER))? {
            Reply::Failed(why) => Err(format!("{}: {why}", self.facts.host)),
            reply => Ok(reply),
        }
    }

    /// Uses the connection, for the last time if that fails.
    fn over<T>(&self, call: impl FnOnce(&mut LineConn) -> Result<T, String>) -> Result<T, String> {
        let mut place = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(conn) = place.as_mut() else {
            return Err(format!("{} has failed before", self.facts.host));
        };
        call(conn).map_err(|why| {
            *place = None;
            format!("{}: {why}", self.facts.host)
        })
    }
}

/// Has every pair of hosts try its rails, both ways, the pairs of a round at once.
pub(super) fn try_all(hosts: &[Host], plan: &Plan) -> Vec<Tried> {
    let mut tried = Vec::new();
    for round in rounds(hosts.len()) {
        if output::received() {
            break;
        }
        let of_pair = |a: usize, b: usize| {
            let mut tried = try_rails(hosts, (a, b), plan);
            tried.extend(try_rails(hosts, (b, a), plan));
            tried
        };
        let of_round = std::thread::scope(|scope| {
            let threads: Vec<_> =
                round.iter().map(|(a, b)| scope.spawn(move || of_pair(*a, *b))).collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .flatten()
                .collect::<Vec<_>>()
        });
        tried.extend(of_round);
    }
    tried
}

fn try_rails(hosts: &[Host], (from, to): (usize, usize), plan: &Plan) -> Vec<Tried> {
    let counts = [from, to].map(|host| hosts[host].facts.rails.len());
    let all = (0..counts[0]).flat_map(|i| (0..counts[1]).map(move |j| (i, j)));
    let wanted = all.filter(|(i, j)| plan.is_full || i == j);
    let tried = wanted.map(|(i, j)| {
        let outcome = try_pair(&hosts[from], i, &hosts[to], j, plan.slice);
        for host in [from, to] {
            drop(hosts[host].ask(&Request::Close));
        }
        Tried { from: (from, i), to: (to, j), outcome }
    });
    tried.collect()
}

const MESSAGE: usize = 1 << 20;

fn try_pair(from: &Host, i: usize, to: &Host, j: usize, slice: Duration) -> Result<Speed, String> {
    let Reply::Handle(handle) = to.ask(&Request::Listen(j))? else {
        return Err("listening gave no handle".into());
    };
    both(from, &Request::Connect(i, handle), to, &Request::Accept)?;
    let transfer = |bytes, count, window, is_checked| {
        let request = Request::Transfer(Transfer { bytes, count, window, is_checked });
        both(from, &request, to, &request)
    };
    transfer(MESSAGE, 16, 8, true)?;
    let short = transfer(MESSAGE, 64, 8, false)?;
    let count =
        (slice.as_secs_f64() / (short.seconds / 64.0).max(1e-6)).clamp(16.0, 65_536.0) as u32;
    let long = transfer(MESSAGE, count, 8, false)?;
    let small = transfer(8, 1000, 1, false)?;
    let gbps = f64::from(count) * MESSAGE as f64 * 8.0 / long.seconds.max(1e-9) / 1e9;
    Ok(Speed { gbps, p50_us: small.p50_us, p99_us: small.p99_us })
}

/// Asks both at once; what the first one has measured. Both are heard, so that no reply is left.
fn both(from: &Host, request: &Request, to: &Host, other: &Request) -> Result<Measured, String> {
    from.tell(request)?;
    let told = to.tell(other);
    let (one, two) = (from.hear(), told.and_then(|()| to.hear()));
    match (one?, two?) {
        (Reply::Measured(measured), _) => Ok(measured),
        _ => Ok(Measured::default()),
    }
}

/// Tells all hosts that the session is over.
pub(super) fn end(hosts: &[Host], failed: usize, warned: usize) {
    for host in hosts {
        host.tell(&Request::End { failed, warned }).unwrap_or_default();
    }
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

/// Rounds in which every pair of `count` hosts meets once: a round-robin tournament.
pub(super) fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    // With an odd number one host rests in each round: it meets the last number, which nobody has.
    let even = count + count % 2;
    let mut circle: Vec<usize> = (0..even).collect();
    let mut rounds = Vec::new();
    for _ in 1..even {
        let pairs = (0..even / 2)
            .map(|i| (circle[i], circle[even - 1 - i]))
            .filter(|(a, b)| *a < count && *b < count);
        rounds.push(pairs.map(|(a, b)| (a.min(b), a.max(b))).collect());
        circle[1..].rotate_right(1);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_and_others_are_not() {
        assert_eq!(from_hex::<3>(&to_hex(&[0, 0x7f, 0xff])), Some([0, 0x7f, 0xff]));
        for wrong in ["", "00", "0g0000", "00000000", "éé00"] {
            assert_eq!(from_hex::<3>(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_pair_meets_once_and_no_host_twice_in_a_round() {
        for count in 0..20 {
            let rounds = rounds(count);
            for round in &rounds {
                let mut hosts: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                let all = hosts.len();
                hosts.sort_unstable();
                hosts.dedup();
                assert_eq!(hosts.len(), all, "{round:?}");
            }
            let mut met: Vec<_> = rounds.into_iter().flatten().collect();
            met.sort_unstable();
            let every: Vec<_> =
                (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).collect();
            assert_eq!(met, every, "{count}");
        }
    }
}
