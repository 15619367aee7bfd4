//! Metrics in the OpenMetrics text format, for Prometheus.
//!
//! Labels name devices, directions and hosts of peers, and no connection or rank: there would be
//! too many. Sums only grow while this program runs: what is counted of ends that close and of
//! processes that end stays in them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab::error::{Error, Result};
use nccl_net::inspect::stats::histogram::{BUCKETS, lower_bound};
use nccl_net::inspect::stats::layout::{header, record};
use serde_json::{Value, json};

use crate::top::rates::Row;
use crate::top::stats_file::{Buckets, End, Processes};
use crate::top::table::{Ports, View};

/// One line: an object with `time` (seconds since 1970), `processes`, `connections`, `ports`,
/// `dead` and `unreadable`. Times of stages are in seconds.
pub(crate) fn line(view: &View<'_>) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let processes = view.now.living.values().map(|process| {
        json!({"pid": process.file.pid(), "rank": process.file.rank(), "host": process.file.host(),
            "program": process.file.text(header::PROGRAM, header::PROGRAM_WORDS)})
    });
    let ports = view.ports.iter().map(|((device, port), about)| {
        json!({"device": device, "port": port, "state": about.state, "counters": about.counters})
    });
    let unreadable =
        view.now.unreadable.iter().map(|(path, why)| json!({"file": path, "why": why}));
    let object = json!({
        "time": time,
        "processes": processes.collect::<Vec<_>>(),
        "connections": view.rows.iter().map(connection).collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "dead": view.now.dead,
        "unreadable": unreadable.collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn connection(row: &Row) -> Value {
    let end = &row.end;
    let counter = |at: usize| end.counters[at];
    let stages: serde_json::Map<String, Value> = end
        .stage_names()
        .iter()
        .enumerate()
        .map(|(stage, name)| {
            let seconds = |share| row.quantile(stage, share).map(|ns| ns / 1e9);
            let longest = end.longest[stage] as f64 / 1e9;
            (
                (*name).to_owned(),
                json!({"p50": seconds(0.5), "p99": seconds(0.99), "longest": longest}),
            )
        })
        .collect();
    let rails = end
        .rails
        .iter()
        .zip(&row.rail_bytes)
        .map(|((name, total), new)| json!({"name": name, "bytes": total, "new_bytes": new}));
    let lanes = end
        .lanes
        .iter()
        .zip(&row.lane_bytes)
        .map(|(total, new)| json!({"bytes": total, "new_bytes": new}));
    let operation = end.operation.as_ref().map(
        |(call, name)| json!({"function": call.function.name(), "number": call.number, "communicator_name": name}),
    );
    let recovering = end
        .recovering
        .map(|(since, attempts)| json!({"since_unix": since as f64 / 1e9, "attempts": attempts}));
    json!({
        "recovering": recovering,
        "operation": operation, "communicator": Some(end.communicator).filter(|id| *id != 0).map(|id| format!("{id:#x}")),
        "pid": row.pid, "rank": row.rank, "direction": if end.is_sender { "send" } else { "receive" },
        "peer": {"rank": end.peer.rank, "host": end.peer.host, "pid": end.peer.pid},
        "device": end.device, "queue_pairs": end.queue_pairs, "lanes": lanes.collect::<Vec<_>>(),
        "moves": counter(record::MOVES), "rails": rails.collect::<Vec<_>>(),
        "begun": counter(record::BEGUN), "done": counter(record::DONE), "bytes": counter(record::BYTES),
        "outstanding": end.outstanding(), "waits": counter(record::WAITS), "flushes": counter(record::FLUSHES),
        "recoveries": counter(record::RECOVERIES), "resent": counter(record::RESENT),
        "resent_bytes": counter(record::RESENT_BYTES), "stalls": counter(record::STALLS),
        "stall": end.stall as f64 / 1e9, "longest_stall": end.longest_stall as f64 / 1e9,
        "bytes_per_second": row.bytes_per_second(), "messages_per_second": row.per_second(record::DONE),
        "stages": stages,
    })
}

/// Upper bounds of the buckets of times, in seconds.
const BOUNDS: [f64; 19] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1,
    0.2, 0.5, 1.0,
];

/// Sums over connections, by device, direction and host of the peer.
type Sums = BTreeMap<(String, &'static str, String), [u64; record::COUNTERS]>;

/// What has been counted so far.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    sums: Sums,
    /// By device and stage.
    stages: BTreeMap<(String, &'static str), ([f64; BUCKETS], f64)>,
    /// By device and rail.
    rails: BTreeMap<(String, String), u64>,
    /// How each record was last seen.
    seen: BTreeMap<(PathBuf, usize), End>,
}

impl Totals {
    /// Adds what has been counted since the last call.
    pub(crate) fn add(&mut self, now: &Processes) {
        let mut seen = BTreeMap::new();
        for (path, process) in &now.living {
            let scale = process.file.word(header::SAMPLE).max(1) as f64;
            for end in &process.ends {
                let key = (path.clone(), end.number);
                let earlier =
                    self.seen.remove(&key).filter(|earlier| earlier.generation == end.generation);
                self.add_end(end, earlier.as_ref(), scale);
                seen.insert(key, end.clone());
            }
        }
        self.seen = seen;
    }

    fn add_end(&mut self, end: &End, earlier: Option<&End>, scale: f64) {
        let key = (end.device.clone(), direction(end), end.peer.host.clone());
        let sums = self.sums.entry(key).or_default();
        for (at, sum) in sums.iter_mut().enumerate() {
            let new =
                end.counters[at].saturating_sub(earlier.map_or(0, |earlier| earlier.counters[at]));
            *sum = sum.saturating_add(new);
        }
        for (stage, name) in end.stage_names().into_iter().enumerate() {
            let (counts, seconds) =
                self.stages.entry((end.device.clone(), name)).or_insert(([0.0; BUCKETS], 0.0));
            let before: &Buckets = earlier.map_or(&[0; BUCKETS], |earlier| &earlier.stages[stage]);
            for (bucket, sum) in counts.iter_mut().enumerate() {
                let new =
                    f64::from(end.stages[stage][bucket].saturating_sub(before[bucket])) * scale;
                *sum += new;
                *seconds += new
                    * (lower_bound(bucket) as f64 * lower_bound(bucket + 1) as f64).sqrt()
                    / 1e9;
            }
        }
        for (rail, (name, bytes)) in end.rails.iter().enumerate().filter(|_| end.rails.len() > 1) {
            let before =
                earlier.and_then(|earlier| earlier.rails.get(rail)).map_or(0, |(_, bytes)| *bytes);
            let sum = self.rails.entry((end.device.clone(), name.clone())).or_default();
            *sum = sum.saturating_add(bytes.saturating_sub(before));
        }
    }

    /// The whole text.
    pub(crate) fn text(&self, now: &Processes, ports: &Ports) -> String {
        let mut text = processes(now);
        for (name, unit, help, at) in [
            ("ferrite_messages", "", "Messages that are complete.", record::DONE),
            ("ferrite_bytes", "bytes", "Bytes of those.", record::BYTES),
            (
                "ferrite_waits",
                "",
                "Messages for which there was no clear-to-send at first.",
                record::WAITS,
            ),
            (
                "ferrite_stalls",
                "",
                "Times without progress for a second or longer.",
                record::STALLS,
            ),
            (
                "ferrite_recoveries",
                "",
                "Times that a connection went on over new queue pairs.",
                record::RECOVERIES,
            ),
            ("ferrite_lane_moves", "", "Times that a lane was given another path.", record::MOVES),
            (
                "ferrite_resent_messages",
                "",
                "Messages sent again after a recovery.",
                record::RESENT,
            ),
            ("ferrite_resent_bytes", "bytes", "Bytes of those.", record::RESENT_BYTES),
        ] {
            family(&mut text, name, "counter", unit, help);
            for ((device, direction, host), sums) in &self.sums {
                let labels =
                    labels(&[("device", device), ("direction", direction), ("peer_host", host)]);
                let _ = writeln!(text, "{name}_total{labels} {}", sums[at]);
            }
        }
        family(
            &mut text, "ferrite_rail_bytes", "counter", "bytes",
            "Bytes given to each of several rails.",
        );
        for ((device, rail), bytes) in &self.rails {
            let _ = writeln!(
                text,
                "ferrite_rail_bytes_total{} {bytes}",
                labels(&[("device", device), ("rail", rail)])
            );
        }
        text += &self.stage_text();
        text += &gauges(now);
        text += &port_text(ports);
        text + "# EOF\n"
    }

    fn stage_text(&self) -> String {
        let mut text = String::new();
        family(
            &mut text,
            "ferrite_stage_seconds",
            "histogram",
            "seconds",
            "Times of stages, from samples, scaled up.",
        );
        for ((device, stage), (counts, seconds)) in &self.stages {
            let total: f64 = counts.iter().sum();
            let mut put = |bound: &str, count: f64| {
                let labels = labels(&[("stage", stage), ("device", device), ("le", bound)]);
                let _ = writeln!(text, "ferrite_stage_seconds_bucket{labels} {count:.0}");
            };
            for bound in BOUNDS {
                let below = counts
                    .iter()
                    .enumerate()
                    .filter(|(bucket, _)| lower_bound(bucket + 1) as f64 <= bound * 1e9 * 1.125);
                put(&bound.to_string(), below.map(|(_, count)| count).sum());
            }
            put("+Inf", total);
            let labels = labels(&[("stage", stage), ("device", device)]);
            let _ = writeln!(
                text,
                "ferrite_stage_seconds_sum{labels} {seconds}\nferrite_stage_seconds_count{labels} {total:.0}"
            );
        }
        text
    }
}

fn direction(end: &End) -> &'static str {
    if end.is_sender { "send" } else { "receive" }
}

fn processes(now: &Processes) -> String {
    let mut text = String::new();
    family(&mut text, "ferrite_process", "info", "", "Processes with the plugin.");
    for process in now.living.values() {
        let file = &process.file;
        let rank = file.rank().map_or_else(String::new, |rank| rank.to_string());
        let version = file.text(header::VERSION, header::VERSION_WORDS);
        let program = file.text(header::PROGRAM, header::PROGRAM_WORDS);
        let pid = file.pid().to_string();
        let labels =
            labels(&[("pid", &pid), ("rank", &rank), ("version", &version), ("program", &program)]);
        let _ = writeln!(text, "ferrite_process_info{labels} 1");
    }
    text
}

fn gauges(now: &Processes) -> String {
    let mut sums: BTreeMap<(&str, &str), [f64; 3]> = BTreeMap::new();
    for end in now.living.values().flat_map(|process| &process.ends).filter(|end| end.is_open) {
        let sum = sums.entry((&end.device, direction(end))).or_default();
        sum[0] += 1.0;
        sum[1] += end.outstanding() as f64;
        sum[2] = sum[2].max(end.longest_stall as f64 / 1e9);
    }
    let mut text = String::new();
    for (at, name, unit, help) in [
        (0, "ferrite_connections", "", "Ends of connections that stand."),
        (1, "ferrite_outstanding_messages", "", "Messages that are under way."),
        (
            2,
            "ferrite_longest_stall_seconds",
            "seconds",
            "The longest time without progress of an end that stands.",
        ),
    ] {
        family(&mut text, name, "gauge", unit, help);
        for ((device, direction), sum) in &sums {
            let _ = writeln!(
                text,
                "{name}{} {}",
                labels(&[("device", device), ("direction", direction)]),
                sum[at]
            );
        }
    }
    text
}

fn port_text(ports: &Ports) -> String {
    let mut text = String::new();
    family(
        &mut text,
        "ferrite_rdma_port_counter",
        "counter",
        "",
        "Counters of the kernel for each port, under its names.",
    );
    for ((device, port), about) in ports {
        let port = port.to_string();
        for (counter, value) in &about.counters {
            let labels = labels(&[("device", device), ("port", &port), ("counter", counter)]);
            let _ = writeln!(text, "ferrite_rdma_port_counter_total{labels} {value}");
        }
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, unit: &str, help: &str) {
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if !unit.is_empty() {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {help}");
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts: Vec<_> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", parts.join(","))
}

/// How long a client may take for its request and the answer together.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a request at most.
const MAX_REQUEST: usize = 8192;

/// Where metrics are asked for.
#[derive(Debug)]
pub(crate) struct Server(TcpListener);

impl Server {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub(crate) fn new(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .map_err(|e| Error::io(format!("cannot listen at {address}"), e))?;
        listener.set_nonblocking(true).map_err(|e| Error::io("a socket that does not block", e))?;
        Ok(Self(listener))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Answers the clients that are there, with what `metrics` returns. A client that does not
    /// speak, or goes away, is its own affair.
    pub(crate) fn poll(&self, mut metrics: impl FnMut() -> String) {
        while let Ok((stream, _)) = self.0.accept() {
            let _ = answer(stream, &mut metrics);
        }
    }
}

/// A client that has a time for all that it does.
struct Client {
    stream: TcpStream,
    until: Instant,
}

impl Client {
    /// What is left of its time.
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl std::io::Write for Client {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: TcpStream, metrics: &mut impl FnMut() -> String) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut stream = Client { stream, until: Instant::now() + TIME_LIMIT };
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    let is_whole = |request: &[u8]| request.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_whole(&request) && request.len() < MAX_REQUEST {
        match stream.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let (status, kind, body) =
        match String::from_utf8_lossy(&request).split(' ').take(2).collect::<Vec<_>>()[..] {
            ["GET", "/metrics" | "/"] => {
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", metrics())
            }
            ["GET", _] => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
            _ => ("400 Bad Request", "text/plain", "GET /metrics is expected\n".to_owned()),
        };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nccl_net::inspect::stats::layout::{CLOSED, HEADER_WORDS, OPEN};

    use super::*;
    use crate::top::stats_file::tests::{example, parsed};

    fn with(changes: &[(usize, u64)]) -> Processes {
        let mut words = example();
        changes.iter().for_each(|(at, value)| words[HEADER_WORDS + at] = *value);
        let file = parsed(&words);
        let ends = file.records().map(|(number, words)| End::new(number, words)).collect();
        let living = BTreeMap::from([("a".into(), crate::top::stats_file::Process { file, ends })]);
        Processes { at: Instant::now(), living, dead: Vec::new(), unreadable: Vec::new() }
    }

    fn value(text: &str, start: &str) -> Option<f64> {
        text.lines().find(|line| line.starts_with(start))?.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn sums_go_on_when_an_end_is_closed_and_its_record_given_to_another_one_or_the_process_ends() {
        let mut totals = Totals::default();
        let state = |generation: u64, state: u64| (record::STATE, generation << 8 | state);
        let open = OPEN;
        for (changes, expected) in [
            (vec![state(1, open), (record::DONE, 100)], 100.0),
            (vec![state(1, open), (record::DONE, 150)], 150.0),
            (vec![state(1, CLOSED), (record::DONE, 160)], 160.0),
            (vec![state(2, open), (record::DONE, 5)], 165.0),
        ] {
            let now = with(&changes);
            totals.add(&now);
            let text = totals.text(&now, &Ports::new());
            assert_eq!(value(&text, "ferrite_messages_total{"), Some(expected), "{text}");
        }
        let none = Processes {
            at: Instant::now(),
            living: BTreeMap::new(),
            dead: Vec::new(),
            unreadable: Vec::new(),
        };
        totals.add(&none);
        assert_eq!(
            value(&totals.text(&none, &Ports::new()), "ferrite_messages_total{"),
            Some(165.0)
        );
    }

    #[test]
    fn the_text_is_openmetrics() {
        let bucket = record::HISTOGRAMS + 2;
        let now = with(&[(bucket, 7 | 2 << 32), (record::RAIL_COUNT, 2), (record::RAIL_BYTES, 9)]);
        let mut totals = Totals::default();
        totals.add(&now);
        let text = totals.text(&now, &Ports::new());
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
        let mut families: Vec<(&str, &str)> = Vec::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let family = rest.split_once(' ').expect("a kind");
                assert!(families.iter().all(|(known, _)| *known != family.0), "twice: {line}");
                families.push(family);
                continue;
            }
            let (name, kind) = families.last().expect("a family comes first");
            if let Some(rest) = line.strip_prefix("# UNIT ") {
                assert!(
                    rest.strip_prefix(name).is_some_and(|unit| name.ends_with(unit.trim())),
                    "{line}"
                );
            } else if !line.starts_with("# HELP ") {
                let sample = line.split(['{', ' ']).next().expect("a name");
                let suffixes: &[&str] = match *kind {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                assert!(
                    suffixes.iter().any(|suffix| sample == format!("{name}{suffix}")),
                    "{line}"
                );
                assert!(
                    line.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok()),
                    "{line}"
                );
            }
        }
        assert_eq!(
            value(&text, "ferrite_stage_seconds_count{stage=\"gpu\""),
            Some(576.0),
            "9 samples, 1 in 64"
        );
        assert_eq!(
            value(
                &text,
                "ferrite_stage_seconds_bucket{stage=\"gpu\",device=\"mlx5_3\",le=\"+Inf\"}"
            ),
            Some(576.0)
        );
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(labels(&[("a", "x\"y\\z")]), "{a=\"x\\\"y\\\\z\"}");
    }

    fn asked(request: &str) -> String {
        let server = Server::new(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let mut client =
            TcpStream::connect(server.address().expect("an address")).expect("it listens");
        client.write_all(request.as_bytes()).expect("sent");
        client.shutdown(std::net::Shutdown::Write).expect("done");
        let mut answer = String::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| client.read_to_string(&mut answer).expect("an answer"));
            while !reader.is_finished() {
                server.poll(|| "# EOF\n".into());
            }
        });
        answer
    }

    #[test]
    fn a_client_that_says_a_byte_now_and_then_is_left_when_its_time_is_over() {
        let server = Server::new(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let mut client =
            TcpStream::connect(server.address().expect("an address")).expect("it listens");
        let (told, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let dripping = scope.spawn(move || {
                // As long as the server listens, and no longer than the test may take.
                let pause = || {
                    is_over.recv_timeout(TIME_LIMIT / 10)
                        == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                };
                (0..300).take_while(|_| pause() && client.write_all(b"G").is_ok()).count()
            });
            server.poll(|| "# EOF\n".into());
            drop(told);
            assert!(dripping.join().expect("it ends") < 300);
        });
    }

    #[test]
    fn metrics_are_answered_and_nothing_else() {
        let metrics = asked("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            metrics.starts_with("HTTP/1.1 200 OK\r\n")
                && metrics.ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n# EOF\n")
        );
        assert!(asked("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(asked("nonsense").starts_with("HTTP/1.1 400"));
        assert!(asked("").starts_with("HTTP/1.1 400"));
    }
}
