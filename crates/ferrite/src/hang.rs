//! What processes of Ferrite wait for: `ferrite hang`.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use lab::error::{Error, Result};
use lab::system::output::plain;
use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::layout::{FILE_PREFIX, OPEN, SENDER, record};
use nccl_net::inspect::stats::lock::holder;
use serde_json::Value;

use crate::top::stats_file;
use crate::top::stats_file::StatsFile;

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 4 << 20;
/// Where a process's socket is unless its environment says otherwise.
const DEFAULT_FOLDER: &str = "/tmp";
const VARIABLE: &str = "FERRITE_REPORT_DIR";

/// Why a process has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Nobody listens where it would be asked.
    NoSocket,
    /// No answer has come within the limit.
    NoAnswer,
}

/// The report of process `pid`, which takes up to five seconds, if it comes within `limit`.
///
/// # Errors
/// Why there is none.
pub fn ask(pid: u32, limit: Duration) -> Result<Value, Silence> {
    let path = socket_of(pid);
    let owner = |metadata: std::io::Result<Metadata>| metadata.map(|metadata| metadata.uid()).ok();
    // Whoever has made a file of that name: the answer is to be the process's own.
    let of_process = owner(fs::metadata(format!("/proc/{pid}"))).ok_or(Silence::NoSocket)?;
    if owner(fs::symlink_metadata(&path)) != Some(of_process) {
        return Err(Silence::NoSocket);
    }
    serde_json::from_str(&answer_at(path, limit)?).map_err(|_| Silence::NoAnswer)
}

/// Reads the socket `path` until its end, if that comes within `limit`. A process that is
/// stopped accepts nobody, and then a connect waits too: so another thread waits, which is left to
/// itself after the limit.
fn answer_at(path: PathBuf, limit: Duration) -> Result<String, Silence> {
    let (sender, answer) = mpsc::channel();
    let asked = move || {
        let mut text = String::new();
        let stream = UnixStream::connect(path).map_err(|_| Silence::NoSocket)?;
        stream.take(MAX_ANSWER).read_to_string(&mut text).map_err(|_| Silence::NoAnswer)?;
        Ok(text)
    };
    thread::spawn(move || drop(sender.send(asked())));
    answer.recv_timeout(limit).unwrap_or(Err(Silence::NoAnswer))
}

/// The process ids of the sockets in the folder that this process's environment names.
pub fn known() -> Vec<u32> {
    let Ok(entries) = fs::read_dir(own_folder()) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| name.strip_prefix("ferrite.")?.strip_suffix(".sock")?.parse().ok())
        .collect()
}

fn socket_of(pid: u32) -> PathBuf {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok());
    let named = variables
        .filter_map(|variable| variable.strip_prefix(VARIABLE)?.strip_prefix('='))
        .next_back();
    let folder = named.filter(|folder| !folder.is_empty()).map_or_else(own_folder, PathBuf::from);
    Path::new(&folder).join(format!("ferrite.{pid}.sock"))
}

fn own_folder() -> PathBuf {
    let named = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
    named.map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}

/// What the kernel says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It has ended.
    Ended,
    /// It is stopped: by a signal, by a debugger, or in a frozen cgroup.
    Stopped,
    /// Its main thread waits in the kernel and cannot be interrupted; where, if the kernel says so.
    InKernel(String),
    /// It runs, or may run.
    Running,
}

impl State {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Self {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return Self::Ended };
        match letter(&stat) {
            Some('T' | 't') => Self::Stopped,
            Some('Z' | 'X') => Self::Ended,
            Some('D') => {
                Self::InKernel(fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default())
            }
            _ if is_frozen(pid) => Self::Stopped,
            _ => Self::Running,
        }
    }

    /// For people, with what to do.
    pub fn text(&self) -> String {
        match self {
            Self::Ended => "it has ended".into(),
            Self::Stopped => {
                "it is stopped by SIGSTOP (kill -CONT), by a debugger or by a frozen cgroup".into()
            }
            Self::InKernel(place) if !place.is_empty() => {
                format!(
                    "it is blocked in the kernel, in {place}: storage or a driver does not answer"
                )
            }
            Self::InKernel(_) => {
                "it is blocked in the kernel: storage or a driver does not answer".into()
            }
            Self::Running => "it runs, but gets no CPU".into(),
        }
    }
}

/// The state in a line of `/proc/PID/stat`. The name before it may hold any characters.
fn letter(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_frozen(pid: u32) -> bool {
    let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return false };
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::")) else {
        return false;
    };
    fs::read_to_string(format!("/sys/fs/cgroup{group}/cgroup.freeze"))
        .is_ok_and(|frozen| frozen.trim() == "1")
}

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Name of the device.
    pub device: String,
    /// Whether it is the sending end.
    pub sends: bool,
    /// The peer, for people.
    pub peer: String,
    /// Messages that NCCL has begun, and those that it has been told are done.
    pub begun: u64,
    /// Of these, the ones that are done.
    pub done: u64,
    /// Whether a message waits to be asked for.
    pub wants: bool,
    /// For how long nothing has moved although something is outstanding; zero: for less than a
    /// second.
    pub stall: Duration,
    /// The operation of NCCL that the outstanding messages are of, for people; empty: it is not
    /// known.
    pub operation: String,
}

impl Connection {
    /// Whether something is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.begun != self.done || self.wants
    }
}

/// The file of the living process `pid` in the usual folder: the one on which it holds the lock, as
/// the kernel tells. A file's name does not: the number may have been given to another process, and
/// anybody may make a file of that name.
pub fn of_living(pid: u32) -> Option<PathBuf> {
    living().into_iter().find(|(holder, _)| *holder == pid).map(|(_, path)| path)
}

/// The file that the dead process `pid` has left in the usual folder; the newest one if there are
/// several.
pub fn of_dead(pid: u32) -> Option<PathBuf> {
    let prefix = format!("{FILE_PREFIX}{pid}.");
    let is_left = |path: &PathBuf| {
        name(path).starts_with(&prefix)
            && open(path).is_ok_and(|file| holder(file.as_fd()).is_none())
    };
    let left = paths().into_iter().filter(is_left);
    left.max_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

/// The living processes that have files in the usual folder.
pub fn processes() -> Vec<u32> {
    living().into_iter().map(|(holder, _)| holder).collect()
}

/// The files of living processes, each with its process.
fn living() -> Vec<(u32, PathBuf)> {
    let files = paths().into_iter().filter(|path| name(path).starts_with(FILE_PREFIX));
    files
        .filter_map(|path| Some((holder(open(&path).ok()?.as_fd()).filter(|pid| *pid != 0)?, path)))
        .collect()
}

/// Opened without waiting for a writer.
fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn paths() -> Vec<PathBuf> {
    let folder = std::env::var_os("FERRITE_STATS_DIR").filter(|folder| !folder.is_empty());
    let entries = fs::read_dir(folder.unwrap_or_else(|| "/dev/shm".into()));
    entries
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default()
}

/// The open connections in the file at `path`.
///
/// # Errors
/// It cannot be read, or is no statistics file of a layout that is known.
pub fn connections(path: &Path) -> Result<Vec<Connection>> {
    let unreadable = |why: String| Error::Unreadable(format!("{}: {why}", path.display()));
    let file = open(path).map_err(|e| unreadable(e.to_string()))?;
    let bytes = stats_file::whole(&file).map_err(unreadable)?;
    Ok(open_connections(&StatsFile::parse(&bytes).map_err(unreadable)?))
}

/// The open connections in `file`.
pub(crate) fn open_connections(file: &StatsFile) -> Vec<Connection> {
    let open = file.records().filter(|(_, words)| words[record::STATE] & 0xff == OPEN);
    open.map(|(_, words)| connection(words)).collect()
}

fn connection(words: &[u64]) -> Connection {
    let text = |at: usize, count: usize| stats_file::text(&words[at..at + count]);
    let ranks = [words[record::PEER_RANK], words[record::PEER_LABEL]];
    let (host, pid) = (text(record::PEER_HOST, record::PEER_HOST_WORDS), words[record::PEER_PID]);
    let peer = match ranks.into_iter().find(|rank| *rank != 0) {
        Some(rank) => format!("rank {} on {host} (pid {pid})", rank - 1),
        None => format!("process {pid} on {host}"),
    };
    let sends = words[record::DIRECTION] == SENDER;
    let name = text(record::COMMUNICATOR_NAME, record::COMMUNICATOR_NAME_WORDS);
    Connection {
        device: text(record::DEVICE, record::DEVICE_WORDS),
        sends,
        peer,
        begun: words[record::BEGUN],
        done: words[record::DONE],
        stall: Duration::from_nanos(words[record::STALL]),
        wants: sends && words[record::REFUSED_AT] == words[record::BEGUN],
        operation: match (Call::from_bits(words[record::OPERATION]), name) {
            (None, _) => String::new(),
            (Some(call), name) if name.is_empty() => call.to_string(),
            (Some(call), name) => format!("{call} of communicator {name}"),
        },
    }
}

/// A wait of so long is a hang where a process does not tell its own time. The plugin's default,
/// too.
const THRESHOLD: Duration = Duration::from_secs(10);
/// What has waited for less is under way: nothing is said of it.
const UNDER_WAY_S: f64 = 1.0;

/// What is known of one process.
#[derive(Debug)]
pub enum Finding {
    /// What it says itself: its report.
    Answer(Value),
    /// It has not answered: its state, and what it has left for others.
    Outside(State, Traces),
}

/// What is seen of a process without its answer.
#[derive(Debug)]
pub struct Traces {
    /// Why there is no answer.
    silence: Silence,
    /// Its connections as its statistics file has them. `None`: it has no such file.
    connections: Option<Vec<Connection>>,
}

impl Traces {
    /// Whether there is a statistics file.
    pub fn has_file(&self) -> bool {
        self.connections.is_some()
    }
}

impl Finding {
    /// Of process `pid`, which has `limit` for its answer.
    pub fn of_process(pid: u32, limit: Duration) -> Self {
        let silence = match ask(pid, limit) {
            Ok(answer) => return Self::Answer(answer),
            Err(silence) => silence,
        };
        let state = State::of(pid);
        let path = if state == State::Ended { of_dead(pid) } else { of_living(pid) };
        let connections = path.and_then(|path| connections(&path).ok());
        Self::Outside(state, Traces { silence, connections })
    }

    /// Of the process that has written the statistics file at `path`, and may be dead.
    ///
    /// # Errors
    /// It is no such file.
    pub fn of_file(path: &Path) -> Result<Self> {
        Ok(Self::of_connections(connections(path)?))
    }

    /// Of a process that has left these connections.
    pub(crate) fn of_connections(connections: Vec<Connection>) -> Self {
        Self::Outside(
            State::Ended,
            Traces { silence: Silence::NoSocket, connections: Some(connections) },
        )
    }

    /// Asks all `processes` at the same time, for `limit` in total: each may take seconds to
    /// answer.
    pub fn of_processes(
        processes: impl IntoIterator<Item = u32>,
        limit: Duration,
    ) -> BTreeMap<u32, Self> {
        let until = Instant::now() + limit;
        let left = move || until.saturating_duration_since(Instant::now());
        let ask = |pid| (pid, thread::spawn(move || Self::of_process(pid, left())));
        let asked: Vec<_> = processes.into_iter().map(ask).collect();
        asked.into_iter().filter_map(|(pid, thread)| Some((pid, thread.join().ok()?))).collect()
    }

    /// Whether the process lives and uses Ferrite, as far as can be seen.
    pub fn is_of_ferrite(&self) -> bool {
        match self {
            Self::Answer(_) => true,
            Self::Outside(State::Ended, _) => false,
            Self::Outside(_, traces) => {
                traces.silence == Silence::NoAnswer || traces.connections.is_some()
            }
        }
    }

    /// Whether something has waited for `threshold` or longer, by default for the process's own
    /// limit, or the process is stopped or blocked.
    pub fn hangs(&self, threshold: Option<Duration>) -> bool {
        match self {
            Self::Answer(report) => {
                let own =
                    report["threshold_s"].as_u64().filter(|own| *own > 0).map(Duration::from_secs);
                let threshold = threshold.or(own).unwrap_or(THRESHOLD).as_secs_f64();
                let some = |name: &str, counts: fn(&Value) -> bool| {
                    let is_long = |wait: &Value| {
                        wait["since_s"].as_f64().is_some_and(|since| since >= threshold)
                    };
                    report[name]
                        .as_array()
                        .is_some_and(|all| all.iter().any(|wait| counts(wait) && is_long(wait)))
                };
                // A peer that continues with other messages is only slow. A listener on which NCCL
                // no longer calls `accept` may be abandoned.
                some("waits", |wait| wait["verdict"] != "Moving")
                    || some("set_ups", |set_up| set_up["called"] == true)
            }
            Self::Outside(state, Traces { silence, connections }) => {
                let threshold = threshold.unwrap_or(THRESHOLD);
                let some =
                    |hangs: &dyn Fn(&Connection) -> bool| connections.iter().flatten().any(hangs);
                match (state, silence) {
                    (State::Stopped, _) => true,
                    // As it was when it ended.
                    (State::Ended, _) => some(&Connection::is_waiting),
                    (State::InKernel(_), Silence::NoAnswer) => true,
                    // It has had all the time that it needs for an answer.
                    (State::Running, Silence::NoAnswer) => some(&Connection::is_waiting),
                    (_, Silence::NoSocket) => some(&|connection| connection.stall >= threshold),
                }
            }
        }
    }

    /// For people: one line, and a further one for each connection with something outstanding of a
    /// process that has not answered.
    pub fn text(&self) -> String {
        match self {
            // Another user's process has written it.
            Self::Answer(report) => match report["waits"][0]["since_s"].as_f64() {
                Some(since)
                    if since < UNDER_WAY_S
                        && !report["set_ups"][0]["called"].as_bool().unwrap_or(false) =>
                {
                    "messages are under way, and none has waited for a second".into()
                }
                _ => plain(report["text"].as_str().unwrap_or_default()),
            },
            Self::Outside(state, traces) => {
                let waiting = traces
                    .connections
                    .iter()
                    .flatten()
                    .filter(|connection| connection.is_waiting());
                let lines = waiting.map(|Connection { device, sends, peer, begun, done, wants, operation, .. }| {
                    let what = if *sends { "sends to" } else { "receives from" };
                    let wants = if *wants { ", one more waits for its receive" } else { "" };
                    let within = if operation.is_empty() { String::new() } else { format!(" in {operation}") };
                    format!("\n  {device}: {what} {peer}{within}: {begun} messages begun, {done} done{wants}")
                });
                let lines: String = lines.collect();
                match (state, traces.silence) {
                    (State::Ended, _) if lines.is_empty() => {
                        format!("{}. Nothing was outstanding", state.text())
                    }
                    (State::Ended, _) => {
                        format!("{}. Outstanding at its end:{lines}", state.text())
                    }
                    (State::Running, Silence::NoSocket) => format!(
                        "cannot be asked: its connections are younger than 4 s, or its reports are off \
                         (FERRITE_HANG_SECONDS=0){lines}"
                    ),
                    _ => format!("does not answer: {}{lines}", state.text()),
                }
            }
        }
    }

    /// The cause of the first wait, if it is between other processes.
    fn cause_of_others(&self) -> Option<&Value> {
        let Self::Answer(report) = self else { return None };
        let wait = &report["waits"][0];
        Some(&wait["cause"]).filter(|cause| wait["verdict"] == "PeerWaits" && cause.is_object())
    }

    /// For people: what the process waits for, whose cause is printed as this `number`.
    fn short_text(&self, number: usize) -> Option<String> {
        let (Self::Answer(report), cause) = (self, self.cause_of_others()?) else { return None };
        let wait = &report["waits"][0];
        let text = |value: &Value| plain(value.as_str().unwrap_or_default());
        let (device, peer) = (text(&wait["device"]), text(&wait["peer_name"]));
        let further = cause["connections"].as_u64().unwrap_or(1).saturating_sub(1);
        Some(format!(
            "{device}: has been waiting for {:.1} s for {peer}, which waits too: cause {number}, {further} connection(s) away",
            wait["since_s"].as_f64()?
        ))
    }

    /// A line for each connection that waits, with what its peer has answered.
    pub fn waits(&self) -> String {
        let Self::Answer(report) = self else { return String::new() };
        let waits: &[Value] = report["waits"].as_array().map_or(&[], Vec::as_slice);
        let more = report["waits_in_all"].as_u64().unwrap_or(0).saturating_sub(waits.len() as u64);
        let more = match more {
            0 => String::new(),
            more => format!("  {more} more connection(s) wait\n"),
        };
        waits.iter().map(wait_line).collect::<String>() + &more
    }
}

/// What a connection waits for, and the answer of its peer.
fn wait_line(wait: &Value) -> String {
    let text = |value: &Value| plain(value.as_str().unwrap_or_default());
    let answer = match (&wait["remote"], &wait["peer_waits_for"]) {
        (Value::Null, _) => "no answer yet".into(),
        (_, Value::Null) => format!("answers: {}, waits for nobody", numbers(&wait["remote"])),
        (remote, who) => format!(
            "answers: {}, waits for process {} on {}",
            numbers(remote),
            who["pid"],
            text(&who["host"])
        ),
    };
    let (device, verdict) = (text(&wait["device"]), text(&wait["verdict"]));
    let (since, peer) = (wait["since_s"].as_f64().unwrap_or(0.0), text(&wait["peer_name"]));
    format!("  {device}, {since:.1} s, {verdict}: {peer} {answer}\n")
}

/// The counters of an end.
fn numbers(end: &Value) -> String {
    let names: &[&str] = match end["seen"].is_null() {
        true => &["posted", "announced", "arrived"],
        false => &["seen", "sent", "acknowledged"],
    };
    names.iter().map(|name| format!("{} {name}", end[*name])).collect::<Vec<_>>().join(", ")
}

/// The most causes that are printed.
const MAX_CAUSES: usize = 8;

/// Identifies a cause that several processes name: the verdict, and the two processes.
type CauseKey = (String, [(String, u64); 2]);

/// The number of processes that name a cause, and the text of the one nearest to it.
#[derive(Default)]
struct Named {
    processes: usize,
    nearest: Option<(u64, String)>,
}

/// The summary of `findings`, by process id: first the cause that most of them name.
pub fn summary(findings: &BTreeMap<u32, Finding>, has_waits: bool) -> String {
    let mut causes: BTreeMap<CauseKey, Named> = BTreeMap::new();
    for finding in findings.values() {
        let Finding::Answer(report) = finding else { continue };
        let waits = report["waits"].as_array().into_iter().flatten();
        let waits =
            waits.filter(|wait| wait["since_s"].as_f64().is_none_or(|since| since >= UNDER_WAY_S));
        let distance = |cause: &&Value| cause["connections"].as_u64().unwrap_or(0);
        // Once for each process: its connections wait for the same, as a rule.
        let nearest = waits
            .map(|wait| &wait["cause"])
            .filter(|cause| cause["text"].is_string())
            .min_by_key(distance);
        let Some(cause) = nearest else { continue };
        let named = causes.entry(key(cause)).or_default();
        named.processes += 1;
        let distance = distance(&cause);
        if named.nearest.as_ref().is_none_or(|(known, _)| distance < *known) {
            named.nearest = Some((distance, plain(cause["text"].as_str().unwrap_or_default())));
        }
    }
    let mut causes: Vec<(CauseKey, Named)> = causes.into_iter().collect();
    causes.sort_by_key(|(_, named)| std::cmp::Reverse(named.processes));
    let line = |(number, (_, Named { processes, nearest })): (usize, &(CauseKey, Named))| {
        let text = nearest.as_ref().map_or("", |(_, text)| text.as_str());
        let all = findings.len();
        format!("cause {}, named by {processes} of {all} process(es): {text}\n", number + 1)
    };
    let mut text: String = causes.iter().take(MAX_CAUSES).enumerate().map(line).collect();
    if causes.len() > MAX_CAUSES {
        text += &format!("{} more causes: see the processes\n", causes.len() - MAX_CAUSES);
    }
    for (pid, finding) in findings {
        let number = finding
            .cause_of_others()
            .and_then(|cause| causes.iter().position(|(one, _)| *one == key(cause)))
            .filter(|number| *number < MAX_CAUSES);
        text += &match number.and_then(|number| finding.short_text(number + 1)) {
            Some(short) => format!("process {pid}: {short}\n"),
            None => format!("process {pid}: {}\n", finding.text()),
        };
        if has_waits {
            text += &finding.waits();
        }
    }
    text
}

/// The same key for the reports of both ends of a path.
fn key(cause: &Value) -> CauseKey {
    let process = |who: &Value| {
        (who["host"].as_str().unwrap_or_default().to_owned(), who["pid"].as_u64().unwrap_or(0))
    };
    let verdict = match cause["verdict"].as_str().unwrap_or_default() {
        // Its neighbours on both sides wait for the same process.
        "PeerHasNotSent" | "PeerHasNotAsked" => "PeerHasNot",
        verdict => verdict,
    };
    let (near, far) = (process(&cause["near"]), process(&cause["far"]));
    let is_path =
        ["Recovering", "DataLost", "AcknowledgementsLost", "ClearToSendsLost"].contains(&verdict);
    let ends = if is_path && far < near { [far, near] } else { [near, far] };
    // Any process that waits for one that has stopped may be the nearer one.
    let near =
        if is_path || verdict == "OrderDiffers" { ends[0].clone() } else { Default::default() };
    (verdict.to_owned(), [near, ends[1].clone()])
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use nccl_net::inspect::operation::Function;
    use nccl_net::inspect::stats::layout::{
        HEADER_WORDS, LAYOUT_MAJOR, MAGIC, RECORD_WORDS, header,
    };
    use testkit::Scratch;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    #[test]
    fn an_answer_is_read_to_its_end() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        thread::spawn(move || {
            listener.accept().expect("a client").0.write_all(b"{}").expect("it reads")
        });
        assert_eq!(answer_at(path, Duration::from_secs(60)).as_deref(), Ok("{}"));
    }

    #[test]
    fn where_nobody_listens_there_is_no_socket() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).expect("a socket"));
        assert_eq!(
            answer_at(path, LIMIT),
            Err(Silence::NoSocket),
            "it is left over from a process that has died"
        );
    }

    #[test]
    fn who_says_a_byte_now_and_then_is_not_listened_to_for_longer_than_the_limit() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            while client.write_all(b" ").is_ok() {
                thread::sleep(LIMIT / 10);
            }
        });
        assert_eq!(answer_at(path, LIMIT), Err(Silence::NoAnswer));
    }

    #[test]
    fn a_process_that_accepts_nobody_has_no_answer() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        // More than it has room for.
        for _ in 0..200 {
            let path = path.clone();
            thread::spawn(move || {
                UnixStream::connect(path).map(|stream| stream.take(1).read_to_end(&mut Vec::new()))
            });
        }
        assert_eq!(answer_at(path, LIMIT), Err(Silence::NoAnswer));
    }

    #[test]
    fn the_state_comes_after_a_name_with_any_characters() {
        assert_eq!(letter("7 (a) T (b) S) D 1 2"), Some('D'));
        assert_eq!(letter("nothing"), None);
        assert_eq!(State::of(std::process::id()), State::Running);
        assert_eq!(State::of(u32::MAX), State::Ended);
    }

    fn file(words: &[u64]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
            .expect("written");
        (folder, path)
    }

    /// A file of so many records, which are free.
    fn words_of(records: usize) -> Vec<u64> {
        let mut words = vec![0; HEADER_WORDS + records * RECORD_WORDS];
        words[header::MAGIC] = MAGIC;
        words[header::LAYOUT] = LAYOUT_MAJOR << 32;
        words[header::HEADER_BYTES] = (HEADER_WORDS * 8) as u64;
        words[header::RECORD_BYTES] = (RECORD_WORDS * 8) as u64;
        words[header::RECORDS] = records as u64;
        words
    }

    #[test]
    fn open_connections_are_read_and_free_records_are_not() {
        let mut words = words_of(2);
        let record = &mut words[HEADER_WORDS + RECORD_WORDS..];
        record[record::STATE] = 5 << 8 | OPEN;
        record[record::DIRECTION] = SENDER;
        (record[record::BEGUN], record[record::DONE], record[record::REFUSED_AT]) =
            (9, 7, u64::MAX);
        (record[record::PEER_RANK], record[record::PEER_PID]) = (4, 77);
        record[record::STALL] = 12_000_000_000;
        record[record::DEVICE] = u64::from_ne_bytes(*b"mlx5_0\0\0");
        record[record::PEER_HOST] = u64::from_ne_bytes(*b"n-0412\0\0");
        record[record::OPERATION] =
            Call { function: Function::AllGather, number: Some(7) }.to_bits();
        record[record::COMMUNICATOR_NAME] = u64::from_ne_bytes(*b"tp\0\0\0\0\0\0");
        let (_folder, path) = file(&words);
        let peer = "rank 3 on n-0412 (pid 77)".into();
        let operation = "AllGather number 7 of communicator tp".into();
        let device = "mlx5_0".into();
        let stall = Duration::from_secs(12);
        let expected = Connection {
            device,
            sends: true,
            peer,
            begun: 9,
            done: 7,
            wants: false,
            stall,
            operation,
        };
        assert_eq!(connections(&path).expect("valid"), [expected]);
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_the_reason() {
        let words = words_of(1);
        let why = |words: &[u64]| {
            let (_folder, path) = file(words);
            connections(&path).expect_err("it is none").to_string()
        };
        assert!(why(&[1; HEADER_WORDS]).contains("not a file of Ferrite's statistics"));
        assert!(why(&words[..HEADER_WORDS + 1]).contains("1 records are announced"));
        // A named pipe whose writer does not come.
        let (folder, _) = file(&[]);
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a valid text.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(
            connections(&pipe).is_err_and(|why| why.to_string().contains("not a regular file"))
        );
    }

    fn outside(state: State, silence: Silence, connections: Option<Vec<Connection>>) -> Finding {
        Finding::Outside(state, Traces { silence, connections })
    }

    fn connection(stall_s: u64) -> Connection {
        Connection {
            device: "mlx5_0".into(),
            sends: true,
            peer: "rank 1".into(),
            begun: 9,
            done: 7,
            wants: false,
            stall: Duration::from_secs(stall_s),
            operation: String::new(),
        }
    }

    #[test]
    fn the_cause_that_most_processes_name_comes_first() {
        let report = |cause: &str| {
            let cause = serde_json::json!({"text": cause, "verdict": cause, "connections": 1});
            let wait = serde_json::json!({"cause": cause, "since_s": 12.0});
            Finding::Answer(serde_json::json!({"text": "waits", "waits": [wait]}))
        };
        let stopped = outside(State::Stopped, Silence::NoAnswer, None);
        let findings =
            BTreeMap::from([(1, report("a")), (2, report("b")), (3, report("b")), (4, stopped)]);
        let text = summary(&findings, false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..2],
            ["cause 1, named by 2 of 4 process(es): b", "cause 2, named by 1 of 4 process(es): a"]
        );
        assert!(lines[5].starts_with("process 4: does not answer: it is stopped"), "{text}");
        assert!(findings.values().all(|finding| finding.hangs(None)));
    }

    /// Each end names the other, and a third process has heard of it from one of them.
    #[test]
    fn a_path_that_both_ends_name_is_one_cause_in_the_words_of_the_nearest() {
        let who = |pid: u32| serde_json::json!({"host": "n-0007", "pid": pid});
        let report = |near: u32, far: u32, connections: u32, text: &str| {
            let cause = serde_json::json!({"verdict": "Recovering", "near": who(near), "far": who(far),
                "connections": connections, "text": text});
            let wait = serde_json::json!({"cause": cause, "since_s": 12.0});
            Finding::Answer(serde_json::json!({"text": "waits", "waits": [wait]}))
        };
        let findings = BTreeMap::from([
            (1, report(2, 3, 2, "as of a second ago")),
            (2, report(2, 3, 1, "rail 0: nothing is acknowledged")),
            (3, report(3, 2, 1, "rail 0: nothing arrives")),
        ]);
        let text = summary(&findings, false);
        let named: Vec<_> = text.lines().filter(|line| line.starts_with("cause")).collect();
        assert_eq!(
            named,
            ["cause 1, named by 3 of 3 process(es): rail 0: nothing is acknowledged"]
        );
    }

    #[test]
    fn what_an_operator_sees_of_a_job_that_hangs() {
        let who = |pid: u32| serde_json::json!({"host": "n-0007", "pid": pid});
        let name = |pid: u32| format!("rank {} on n-0007 (pid {pid}", pid - 100);
        let report = |verdict: &str, near: u32, far: u32, connections: u32, peer: u32| {
            let text =
                format!("{}) waits for {}): that process does not answer", name(near), name(far));
            let cause = serde_json::json!({"verdict": "PeerSilent", "near": who(near), "far": who(far),
                "connections": connections, "text": text});
            let wait = serde_json::json!({"verdict": verdict, "device": "mlx5_3", "since_s": 31.2, "cause": cause,
                "peer_name": format!("{}; mlx5_1 port 1, 10.3.4.12:40211)", name(peer)), "peer_waits_for": null,
                "remote": null});
            let text = format!("mlx5_3: has been waiting for 31.2 s for data of {})", name(peer));
            Finding::Answer(
                serde_json::json!({"text": text, "threshold_s": 10, "waits": [wait], "waits_in_all": 1}),
            )
        };
        let findings = BTreeMap::from([
            (101, report("PeerSilent", 101, 103, 1, 103)),
            (102, report("PeerWaits", 101, 103, 2, 101)),
            (103, outside(State::Stopped, Silence::NoAnswer, Some(vec![connection(31)]))),
            (104, Finding::Answer(serde_json::json!({"text": "no message waits", "waits": []}))),
            (105, outside(State::Ended, Silence::NoSocket, Some(vec![connection(31)]))),
            (106, outside(State::Running, Silence::NoAnswer, Some(vec![connection(31)]))),
            (107, outside(State::Running, Silence::NoSocket, Some(Vec::new()))),
        ]);
        testkit::snapshot!("hang", &summary(&findings, true));
    }

    #[test]
    fn each_wait_is_shown_with_its_peers_answer() {
        let wait = |remote: Value, who: Value| {
            serde_json::json!({"device": "mlx5_0", "since_s": 12.0, "verdict": "PeerWaits",
                "peer_name": "rank 3 on n-7 (pid 5)", "remote": remote, "peer_waits_for": who})
        };
        let remote = serde_json::json!({"posted": 3, "announced": 3, "arrived": 2});
        let who = serde_json::json!({"host": "n-9", "pid": 77});
        let waits = [wait(remote, who), wait(Value::Null, Value::Null)];
        let report = serde_json::json!({"text": "it", "waits": waits, "waits_in_all": 5});
        let lines = [
            "  mlx5_0, 12.0 s, PeerWaits: rank 3 on n-7 (pid 5) answers: 3 posted, 3 announced, 2 arrived, \
             waits for process 77 on n-9\n",
            "  mlx5_0, 12.0 s, PeerWaits: rank 3 on n-7 (pid 5) no answer yet\n",
            "  3 more connection(s) wait\n",
        ];
        assert_eq!(Finding::Answer(report).waits(), lines.concat());
    }

    #[test]
    fn a_wait_is_a_hang_once_it_is_as_long_as_the_process_says_or_the_user() {
        let report = |since: f64, verdict: &str| {
            let wait = serde_json::json!({"since_s": since, "verdict": verdict});
            Finding::Answer(
                serde_json::json!({"text": "it", "threshold_s": 5, "waits": [wait], "set_ups": []}),
            )
        };
        let hangs = |since, verdict, threshold: Option<u64>| {
            report(since, verdict).hangs(threshold.map(Duration::from_secs))
        };
        assert!(!hangs(0.0, "Unknown", None), "a busy job");
        assert!(!hangs(4.9, "PeerSilent", None) && hangs(5.0, "PeerSilent", None));
        assert!(hangs(4.9, "PeerSilent", Some(1)) && !hangs(5.0, "PeerSilent", Some(60)));
        assert!(!hangs(50.0, "Moving", None), "its peer goes on with other messages");
        assert!(report(0.0, "Unknown").text().contains("none has waited for a second"));
        assert_eq!(
            report(2.0, "Unknown").text(),
            "it",
            "who asks wants to know it before it is a hang"
        );
        let off =
            Finding::Answer(serde_json::json!({"threshold_s": 0, "waits": [{"since_s": 9.0}]}));
        assert!(!off.hangs(None), "a process that reports nothing by itself has the default");
    }

    #[test]
    fn a_connection_that_is_not_set_up_waits_if_nccl_asks_for_it() {
        let report = |called: bool, since: f64| {
            let set_up = serde_json::json!({"called": called, "since_s": since});
            Finding::Answer(serde_json::json!({"text": "", "waits": [], "set_ups": [set_up]}))
        };
        assert!(
            report(true, 10.0).hangs(None)
                && !report(false, 10.0).hangs(None)
                && !report(true, 3.0).hangs(None)
        );
        assert!(
            !Finding::Answer(serde_json::json!({"text": "", "waits": []})).hangs(None),
            "an older one"
        );
    }

    #[test]
    fn of_a_process_that_does_not_answer_its_state_and_its_file_tell_whether_it_hangs() {
        let busy = || Some(vec![connection(0)]);
        for (state, silence, connections, hangs) in [
            (State::Running, Silence::NoSocket, busy(), false),
            (State::Running, Silence::NoSocket, Some(vec![connection(10)]), true),
            (State::Running, Silence::NoAnswer, busy(), true),
            (State::Running, Silence::NoAnswer, Some(Vec::new()), false),
            (State::InKernel(String::new()), Silence::NoSocket, busy(), false),
            (State::InKernel(String::new()), Silence::NoAnswer, None, true),
            (State::Stopped, Silence::NoAnswer, busy(), true),
            (State::Ended, Silence::NoSocket, busy(), true),
            (State::Ended, Silence::NoSocket, Some(Vec::new()), false),
        ] {
            let finding = outside(state, silence, connections);
            assert_eq!(finding.hangs(None), hangs, "{finding:?}");
        }
        let ended = outside(State::Ended, Silence::NoSocket, Some(Vec::new()));
        assert_eq!(ended.text(), "it has ended. Nothing was outstanding");
        assert!(
            !outside(State::Running, Silence::NoSocket, None).is_of_ferrite(),
            "any other process"
        );
        assert!(
            !outside(State::Ended, Silence::NoAnswer, busy()).is_of_ferrite(),
            "it has ended meanwhile"
        );
        assert!(outside(State::Stopped, Silence::NoAnswer, None).is_of_ferrite());
    }

    #[test]
    fn what_a_process_says_changes_no_terminal() {
        let wait = serde_json::json!({"cause": {"text": "a\u{1b}[2J"}, "since_s": 12.0});
        let report = serde_json::json!({"text": "b\u{9b}2J\n\u{7}", "waits": [wait]});
        let text = summary(&BTreeMap::from([(1, Finding::Answer(report))]), true);
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()) && text.lines().count() == 3,
            "{text:?}"
        );
    }
}
