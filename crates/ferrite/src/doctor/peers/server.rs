//! The server of a session: lets hosts in by the token, has each pair of them try its rails, and
//! keeps what they answer. It never calls the plugin itself.

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lab::hosts;
use lab::hosts::LineConn;
use lab::system::output;

use crate::doctor::peers::message::{HostFacts, Measured, Reply, Request, Transfer};

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
    let count = count_within(slice, short.seconds / 64.0, 65_536);
    let long = transfer(MESSAGE, count, 8, false)?;
    let few = transfer(8, FEWEST, 1, false)?;
    let small = transfer(8, count_within(slice, few.seconds / f64::from(FEWEST), 1000), 1, false)?;
    let gbps = f64::from(count) * MESSAGE as f64 * 8.0 / long.seconds.max(1e-9) / 1e9;
    Ok(Speed { gbps, p50_us: small.p50_us, p99_us: small.p99_us })
}

/// Messages of a measurement, at least.
const FEWEST: u32 = 16;

/// How many messages, of so many seconds each, fill `slice`; no more than `most`.
fn count_within(slice: Duration, seconds: f64, most: u32) -> u32 {
    (slice.as_secs_f64() / seconds.max(1e-6)).clamp(f64::from(FEWEST), f64::from(most)) as u32
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

    /// A host that answers too late has failed: slow messages are few.
    #[test]
    fn a_measurement_has_as_many_messages_as_fill_its_time_within_limits() {
        let slice = Duration::from_millis(100);
        let counts = [0.0, 5e-6, 1e-3, 0.04].map(|seconds| count_within(slice, seconds, 1000));
        assert_eq!(counts, [1000, 1000, 100, FEWEST]);
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
