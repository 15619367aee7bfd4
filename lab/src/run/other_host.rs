//! The other host of a comparison, as rank 0's sees it.

use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nccl_net::inspect::version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::hosts;
use crate::hosts::{Hello, LineConn, reach};
use crate::measure::plan::Job;
use crate::nccl::library::Source;
use crate::pair::parent::{HostEnd, Setting, SocketsToHost, WORKER};
use crate::pair::worker_ctx::Pages;
use crate::results::record;
use crate::results::record::Machine;
use crate::system::output;
use crate::verbs::{Verbs, new_fabric_name};

/// A message is sent and answered within this time; hashing the files is part of it.
const ANSWER: Duration = Duration::from_secs(60);

/// How the other host is met.
pub(crate) struct Meeting {
    pub(crate) listener: TcpListener,
    pub(crate) token: String,
    /// How long it is waited for.
    pub(crate) wait: Duration,
}

/// The host of rank 1.
#[derive(Debug)]
pub(crate) struct OtherHost {
    listener: TcpListener,
    token: String,
    sources: Vec<Source>,
    files: Vec<FileFacts>,
    facts: HostFacts,
    conn: Mutex<LineConn>,
    next: AtomicU64,
}

impl OtherHost {
    /// Waits for it, and refuses it if it is not like this one.
    ///
    /// # Errors
    /// [`Error::Refused`] with what is different, [`Error::Stalled`] if none comes;
    /// [`Error::Interrupted`].
    pub(crate) fn meet(meeting: Meeting, sources: &[Source], verbs: &Verbs) -> Result<Self> {
        let files = FileFacts::of(sources)?;
        let Meeting { listener, token, wait } = meeting;
        let mut met: Option<(HostFacts, LineConn)> = None;
        hosts::gather(
            &listener,
            &token,
            1,
            wait,
            || false,
            |facts, conn| met = Some((facts, conn)),
        );
        output::check()?;
        let Some((facts, mut conn)) = met else {
            return Err(Error::Stalled { what: "waiting for the other host".into(), after: wait });
        };
        let here = HostFacts {
            host: Machine::host_name(),
            version: version::text().into(),
            boot: boot(),
            verbs: verbs.name().into(),
            files,
            ..HostFacts::default()
        };
        if let Some(why) = obstacle(&here, &facts) {
            conn.send(&Request::Refused(why.clone()), ANSWER).unwrap_or_default();
            return Err(Error::Refused(why));
        }
        let sources = sources.to_vec();
        let (conn, next) = (Mutex::new(conn), AtomicU64::new(0));
        Ok(Self { listener, token, sources, files: here.files, facts, conn, next })
    }

    /// Where it is.
    pub(crate) fn machine(&self) -> &Machine {
        &self.facts.machine
    }

    /// Has it start a process of rank 1.
    ///
    /// # Errors
    /// [`Error::Unreadable`] with what went wrong there; [`Error::Interrupted`].
    pub(crate) fn start(
        &self,
        job: &Job,
        variables: &[(String, String)],
        silence: Duration,
        has_pages: bool,
    ) -> Result<SocketsToHost> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let side = |source| self.sources.iter().position(|known| known == source);
        let side =
            side(&job.source).ok_or(Error::Misuse("a side that the other host does not know"))?;
        let fabric = new_fabric_name();
        let silence_ms = silence.as_millis() as u64;
        let start = Start {
            number,
            side,
            silence_ms,
            has_pages,
            fabric: fabric.clone(),
            variables: variables.to_vec(),
        };
        self.tell(&Request::Start(start))?;
        let (mut control, mut peer) = (None, None);
        // It answers when it is connected, or cannot be.
        let is_over = || self.conn.lock().unwrap_or_else(PoisonError::into_inner).has_news();
        hosts::gather(
            &self.listener,
            &self.token,
            2,
            ANSWER,
            is_over,
            |purpose: Purpose, mut conn| {
                let place = if purpose.kind == Kind::Control { &mut control } else { &mut peer };
                if purpose.number == number && conn.send(&purpose, ANSWER).is_ok() {
                    *place = conn.into_stream().ok();
                }
            },
        );
        output::check()?;
        match (self.hear()?, control, peer) {
            (Reply::Started, Some(control), Some(peer)) => {
                Ok(SocketsToHost { control, peer, fabric })
            }
            (Reply::Started, None, _) => {
                Err(self.problem("the connection that controls its process has not come"))
            }
            (Reply::Started, ..) => Err(self.problem("the connection of its process has not come")),
            (Reply::Failed(why), ..) => Err(self.problem(&why)),
            (Reply::Files(_), ..) => Err(self.problem("it does not say whether it has started")),
        }
    }

    /// Finds out whether its files are still those that it began with, and lets it go. After an
    /// interrupt it is let go at once, if it is still there: it may have been interrupted too.
    ///
    /// # Errors
    /// [`Error::Refused`] if one was replaced.
    pub(crate) fn end(&self, is_interrupted: bool) -> Result<()> {
        if is_interrupted {
            self.tell(&Request::End).unwrap_or_default();
            return Ok(());
        }
        self.tell(&Request::Files)?;
        let Reply::Files(now) = self.hear()? else {
            return Err(self.problem("it does not tell its files"));
        };
        let is_other = |(then, now): (&FileFacts, &FileFacts)| then.sha256 != now.sha256;
        let is_replaced =
            now.len() != self.files.len() || self.files.iter().zip(&now).any(is_other);
        self.tell(&Request::End)?;
        match is_replaced {
            true => Err(Error::Refused(format!(
                "a library of {} was replaced during the run",
                self.facts.host
            ))),
            false => Ok(()),
        }
    }

    fn tell(&self, request: &Request) -> Result<()> {
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        conn.send(request, ANSWER).or_else(|why| {
            output::check()?;
            Err(self.problem(&why))
        })
    }

    fn hear(&self) -> Result<Reply> {
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = conn.receive(ANSWER);
        output::check()?;
        heard.map_err(|why| self.problem(&why))
    }

    fn problem(&self, why: &str) -> Error {
        Error::Unreadable(format!("the other host, {}: {why}", self.facts.host))
    }
}

/// What the kernel calls its own start.
pub(super) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

/// Why the two cannot be compared over.
fn obstacle(here: &HostFacts, there: &HostFacts) -> Option<String> {
    let (at, other) = (&here.host, &there.host);
    if here.version != there.version {
        let (this, that) = (&here.version, &there.version);
        return Some(format!(
            "ferrite is {this} on {at} and {that} on {other}: install the same files on both"
        ));
    }
    if let Some(problem) = &there.problem {
        return Some(format!("{other}: {problem}"));
    }
    if here.verbs != there.verbs {
        return Some(format!("--verbs is {} on {at} and {} on {other}", here.verbs, there.verbs));
    }
    if here.verbs == "softrnic" && here.boot != there.boot {
        return Some(format!(
            "the software device joins processes of one machine, and {at} and {other} are two: --verbs system"
        ));
    }
    if here.files.len() != there.files.len() {
        return Some(format!("{other} does not compare {} sides", here.files.len()));
    }
    let mut files = here.files.iter().zip(&there.files).zip(["A", "B"]);
    files.find(|((this, that), _)| this.sha256 != that.sha256).map(|((this, that), label)| {
        let short = |file: &FileFacts| file.sha256.chars().take(12).collect::<String>();
        format!(
            "{label} is {} (sha256 {}…) on {at} and {} (sha256 {}…) on {other}: install the same files on both",
            this.path,
            short(this),
            that.path,
            short(that)
        )
    })
}

/// A message is sent within this time.
const SEND: Duration = Duration::from_secs(10);
/// The server says what it wants next within this time.
const NEXT: Duration = Duration::from_secs(300);
/// Beginnings of the variables that the other host may set: those of transports and of drivers.
const MAY_SET: [&str; 4] = ["NCCL_", "FERRITE_", "SOFTRNIC_", "MLX5_"];
/// Ends of those that it may not set all the same: they name code that is loaded, a program that is
/// started, or where files are written.
const MAY_NOT_SET: [&str; 7] = ["_LIB", "_PLUGIN", "_HELPER", "_FILE", "_TRACE", "_DIR", "_PATH"];

/// What this host has for the comparison.
pub(crate) struct HostPart {
    /// A and B.
    pub(crate) sources: Vec<Source>,
    pub(crate) verbs: Verbs,
    /// Whether processes keep to a CPU.
    pub(crate) pin: bool,
}

/// Takes part in the comparison of the server at `place` until its end. The server may not be there
/// yet: it is tried for `wait`. If this host cannot, the server gets the reason.
///
/// # Errors
/// Why this host has no part, or why the comparison has ended before its end.
pub(crate) fn take_part(
    place: &str,
    token: &str,
    wait: Duration,
    part: Result<HostPart>,
) -> Result<()> {
    let prepared = part.and_then(|part| Ok((FileFacts::of(&part.sources)?, part)));
    let facts = HostFacts {
        host: Machine::host_name(),
        version: version::text().into(),
        boot: boot(),
        verbs: prepared
            .as_ref()
            .map_or_else(|_| String::new(), |(_, part)| part.verbs.name().into()),
        files: prepared.as_ref().map_or_else(|_| Vec::new(), |(files, _)| files.clone()),
        machine: Machine::here(),
        problem: prepared.as_ref().err().map(ToString::to_string),
    };
    // The server wants the hello soon after it has accepted the connection.
    let mut session =
        Session { place, token, conn: LineConn::new(reach(place, wait)?), pages: None };
    session.send_hello(facts)?;
    let (_, part) = prepared?;
    loop {
        match session.receive()? {
            Request::Refused(why) => {
                return Err(Error::Refused(format!("by the server at {place}: {why}")));
            }
            Request::End => return Ok(()),
            Request::Files => {
                let reply = match FileFacts::of(&part.sources) {
                    Ok(files) => Reply::Files(files),
                    Err(problem) => Reply::Failed(problem.to_string()),
                };
                session.reply(&reply)?;
            }
            Request::Start(start) => session.run(&part, &start)?,
        }
    }
}

struct Session<'a> {
    place: &'a str,
    token: &'a str,
    conn: LineConn,
    pages: Option<[Pages; 2]>,
}

impl Session<'_> {
    fn send_hello(&mut self, facts: HostFacts) -> Result<()> {
        let hello = Hello { token: self.token.into(), facts };
        self.conn.send(&hello, SEND).map_err(|why| self.problem(&why))
    }

    fn receive(&mut self) -> Result<Request> {
        let received = self.conn.receive(NEXT);
        output::check()?;
        received.map_err(|why| self.problem(&why))
    }

    fn reply(&mut self, reply: &Reply) -> Result<()> {
        self.conn.send(reply, SEND).map_err(|why| self.problem(&why))
    }

    /// One process of rank 1, from start to end.
    fn run(&mut self, part: &HostPart, start: &Start) -> Result<()> {
        match self.start(part, start) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(problem) => self.reply(&Reply::Failed(problem.to_string())),
            Ok((process, control, source)) => {
                self.reply(&Reply::Started)?;
                process.pass_on(control, |job| adapted(job, source, part))
            }
        }
    }

    fn start<'p>(
        &mut self,
        part: &'p HostPart,
        start: &Start,
    ) -> Result<(HostEnd, std::net::TcpStream, &'p Source)> {
        let source = part
            .sources
            .get(start.side)
            .ok_or_else(|| self.problem(&format!("side {}", start.side)))?;
        require_settable(&start.variables)?;
        if start.has_pages && self.pages.is_none() {
            self.pages = Some(Pages::of_both_ranks()?);
        }
        let variable =
            |(name, value): &(String, String)| (OsString::from(name), OsString::from(value));
        let setting = Setting {
            net_plugin: source.net_plugin().into(),
            pin: part.pin,
            silence: Duration::from_millis(start.silence_ms),
            pages: self.pages.clone().filter(|_| start.has_pages),
            env: start.variables.iter().map(variable).collect(),
            between_hosts: true,
            ..Setting::new(part.verbs.clone())
        };
        let control = self.connect(start.number, Kind::Control)?;
        let peer = self.connect(start.number, Kind::Peer)?;
        let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
        let process = HostEnd::start(&program, &[WORKER.into()], &setting, &start.fabric, peer)?;
        Ok((process, control, source))
    }

    /// A further connection; the server has answered when nothing more comes in lines.
    fn connect(&self, number: u64, kind: Kind) -> Result<std::net::TcpStream> {
        let purpose = Purpose { number, kind };
        let mut conn = LineConn::new(reach(self.place, SEND)?);
        let hello = Hello { token: self.token.into(), facts: purpose };
        let answer = conn.send(&hello, SEND).and_then(|()| conn.receive::<Purpose>(SEND));
        match answer.and_then(|answer| Ok((answer, conn.into_stream()?))) {
            Ok((answer, stream)) if answer == purpose => Ok(stream),
            Ok(_) => Err(self.problem("it takes a connection for another one")),
            Err(why) => Err(self.problem(&why)),
        }
    }

    fn problem(&self, why: &str) -> Error {
        Error::Unreadable(format!("the server at {}: {why}", self.place))
    }
}

/// Whether the other host may set the variable.
fn may_set(name: &str) -> bool {
    MAY_SET.iter().any(|begin| name.starts_with(begin))
        && !MAY_NOT_SET.iter().any(|end| name.ends_with(end))
}

/// Refuses variables that the other host may not set.
fn require_settable(variables: &[(String, String)]) -> Result<()> {
    match variables.iter().find(|(name, _)| !may_set(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Refused(format!(
            "{name} is not set by another host; what begins with {} is, unless it ends in {}",
            MAY_SET.join(", "),
            MAY_NOT_SET.join(", ")
        ))),
    }
}

/// The server's job with what this host has. B is the last of its sides.
fn adapted(job: Value, source: &Source, part: &HostPart) -> Result<Value> {
    let mut job: Job = serde_json::from_value(job)?;
    require_settable(&job.variables)?;
    if let (Some(beside), Some(b)) = (&mut job.beside, part.sources.last()) {
        require_settable(&beside.variables)?;
        beside.source = b.clone();
    }
    let job = Job { source: source.clone(), peer: None, verbs: part.verbs.clone(), ..job };
    Ok(serde_json::to_value(job)?)
}

/// What a host tells of itself, in its first message. A field that another version of this
/// program does not send is empty here. So the versions can be compared, and the refusal is a
/// sentence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HostFacts {
    pub(super) host: String,
    /// Version of this program, with its commit.
    pub(super) version: String,
    /// What the kernel calls its own start: the same for all namespaces of a machine.
    pub(super) boot: String,
    /// `softrnic` or `system`.
    pub(super) verbs: String,
    /// The libraries of A and B.
    pub(super) files: Vec<FileFacts>,
    pub(super) machine: Machine,
    /// Why it cannot take part.
    pub(super) problem: Option<String>,
}

/// The library of a side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) path: String,
    pub(super) sha256: String,
}

impl FileFacts {
    /// Of each side, as its file is now.
    pub(super) fn of(sources: &[Source]) -> Result<Vec<Self>> {
        let of = |source: &Source| {
            Ok(Self {
                path: source.file().display().to_string(),
                sha256: record::sha256(source.file())?,
            })
        };
        sources.iter().map(of).collect()
    }
}

/// What the server asks of the other host. Each gets one [`Reply`], but for the ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// It takes no part, for this reason.
    Refused(String),
    /// Start the process of rank 1.
    Start(Start),
    /// What are the files of A and B now?
    Files,
    /// The comparison is over.
    End,
}

/// A process of rank 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Which one: its connections say it as well.
    pub(super) number: u64,
    /// The place of its side among the files.
    pub(super) side: usize,
    pub(super) silence_ms: u64,
    /// Its buffers lie in the same pages as those of the others.
    pub(super) has_pages: bool,
    /// The fabric of the software device.
    pub(super) fabric: String,
    /// Variables of its side.
    pub(super) variables: Vec<(String, String)>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Started,
    Files(Vec<FileFacts>),
    Failed(String),
}

/// What a further connection of the other host is for; the server's answer is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Purpose {
    /// Of which process.
    pub(super) number: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// From the program that has started the process.
    Control,
    /// From the process itself.
    Peer,
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::net::{Shutdown, TcpStream};
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::Command;

    use testkit::{port, wait_until};

    use super::*;

    fn facts(host: &str) -> HostFacts {
        let file =
            |path: &str| FileFacts { path: path.into(), sha256: format!("{path}-0123456789") };
        let files = vec![file("libnccl.so.2"), file("libnccl-net.so")];
        HostFacts {
            host: host.into(),
            version: "1+a".into(),
            verbs: "system".into(),
            boot: "x".into(),
            files,
            ..HostFacts::default()
        }
    }

    #[test]
    fn hosts_that_are_not_alike_are_told_in_what() {
        type Change = fn(&mut HostFacts);
        let cases: [(Change, &str); 6] = [
            (
                |there| there.version = "1+b".into(),
                "ferrite is 1+a on n0 and 1+b on n1: install the same files",
            ),
            (|there| there.problem = Some("no plugin at /x".into()), "n1: no plugin at /x"),
            (|there| there.verbs = "softrnic".into(), "--verbs is system on n0 and softrnic on n1"),
            (|there| there.files.clear(), "n1 does not compare 2 sides"),
            (
                |there| there.files[1].sha256 = "f".repeat(64),
                "B is libnccl-net.so (sha256 libnccl-net.…) on n0 and",
            ),
            (|there| *there = HostFacts::default(), "ferrite is 1+a on n0 and  on "),
        ];
        let here = facts("n0");
        for (change, words) in cases {
            let mut there = facts("n1");
            change(&mut there);
            let said = obstacle(&here, &there).expect("they differ");
            assert!(said.starts_with(words), "{said}");
        }
        let paths = HostFacts { boot: "y".into(), ..facts("n1") };
        assert_eq!(obstacle(&here, &paths), None);
    }

    /// The host n1, and its end of the connection to it.
    fn other_host(sources: Vec<Source>) -> (OtherHost, TcpStream) {
        let listener = port::listener();
        let address = listener.local_addr().expect("its address");
        let stream = TcpStream::connect(address).expect("connected");
        let there = port::accepted(&listener, "the connection to the host");
        let host = OtherHost {
            listener,
            token: "t".into(),
            sources,
            files: Vec::new(),
            facts: facts("n1"),
            conn: Mutex::new(LineConn::new(stream)),
            next: AtomicU64::new(0),
        };
        (host, there)
    }

    /// It says that it has started its process.
    #[test]
    fn a_connection_of_the_other_host_that_does_not_come_is_named() {
        for (kinds, missing) in [
            (&[][..], "the connection that controls its process has not come"),
            (&[Kind::Peer], "the connection that controls its process has not come"),
            (&[Kind::Control], "the connection of its process has not come"),
        ] {
            let source = Source::stock("/no/libnccl.so.2");
            let (host, there) = other_host(vec![source.clone()]);
            let place = host.listener.local_addr().expect("its address").to_string();
            let far = std::thread::spawn(move || {
                let mut session =
                    Session { place: &place, token: "t", conn: LineConn::new(there), pages: None };
                let Request::Start(start) = session.receive().expect("a request") else {
                    panic!("it is to start")
                };
                for kind in kinds {
                    drop(session.connect(start.number, *kind).expect("connected"));
                }
                session.reply(&Reply::Started).expect("said");
            });
            let job = Job {
                source,
                peer: None,
                beside: None,
                verbs: Verbs::System,
                devices: [None; 2],
                fused: false,
                variables: Vec::new(),
                streams: 1,
                tasks: Vec::new(),
            };
            let started = host.start(&job, &[], Duration::ZERO, false);
            far.join().expect("no panic");
            let said = started.map(drop).expect_err("a connection is missing").to_string();
            assert_eq!(said, format!("the other host, n1: {missing}"));
        }
    }

    /// It may have been interrupted too, and be gone.
    #[test]
    fn after_an_interrupt_it_does_not_matter_that_the_other_host_is_gone() {
        let (mut gone, _there) = other_host(Vec::new());
        let stream = TcpStream::connect(gone.listener.local_addr().expect("its address"));
        let stream = stream.expect("connected");
        stream.shutdown(Shutdown::Both).expect("it is connected");
        gone.conn = Mutex::new(LineConn::new(stream));
        assert!(
            gone.end(false).is_err_and(|problem| problem
                .to_string()
                .contains("the other host, n1: cannot send"))
        );
        gone.end(true).expect("an interrupt");
    }

    #[test]
    fn the_software_device_is_of_one_machine() {
        let software = |host: &str, boot: &str| HostFacts {
            verbs: "softrnic".into(),
            boot: boot.into(),
            ..facts(host)
        };
        assert_eq!(obstacle(&software("n0", "x"), &software("n1", "x")), None);
        let said = obstacle(&software("n0", "x"), &software("n1", "y")).expect("two machines");
        assert!(
            said.contains("joins processes of one machine, and n0 and n1 are two: --verbs system"),
            "{said}"
        );
    }

    #[test]
    fn no_variable_by_which_code_is_loaded_or_a_file_is_written_is_set_by_another_host() {
        for name in [
            "NCCL_IB_TC", "FERRITE_LANES", "SOFTRNIC_PATHS", "MLX5_SINGLE_THREADED",
            "NCCL_LOOPBACK_WORD",
        ] {
            assert!(may_set(name), "{name}");
        }
        for name in [
            "LD_PRELOAD", "NCCL_IBVERBS_LIB", "NCCL_NET_PLUGIN", "NCCL_DEBUG_FILE",
            "SOFTRNIC_GPU_HELPER", "SOFTRNIC_TRACE", "FERRITE_STATS_DIR", "NCCL_CUDA_PATH",
        ] {
            assert!(!may_set(name), "{name}");
        }
    }

    /// The server wants the first words soon after it has accepted a connection.
    #[test]
    fn the_libraries_are_read_before_the_server_is_called() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join("libnccl.so.2");
        assert!(Command::new("mkfifo").arg(&library).status().expect("mkfifo").success());
        let listener = port::listener();
        let place = listener.local_addr().expect("its address").to_string();
        let part =
            HostPart { sources: vec![Source::stock(&library)], verbs: Verbs::System, pin: false };
        let host = std::thread::spawn(move || take_part(&place, "t", Duration::ZERO, Ok(part)));
        // There is a writer as soon as the host reads, and the host reads until this is closed.
        let mut for_writing = OpenOptions::new();
        for_writing.write(true).custom_flags(libc::O_NONBLOCK);
        let writer = wait_until("the host to read the library", || for_writing.open(&library).ok());
        let called = listener.accept();
        drop(writer);
        assert!(called.is_err_and(|problem| problem.kind() == std::io::ErrorKind::WouldBlock));
        drop(port::accepted(&listener, "the host's call when it has read"));
        let ended = host.join().expect("no panic").map_err(|problem| problem.to_string());
        assert!(ended.as_ref().is_err_and(|words| words.contains("the server at")), "{ended:?}");
    }
}
