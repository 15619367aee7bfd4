//! Rank 1's host of a comparison: it tells its facts to rank 0's, and starts the process of each session that is asked for.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

use nccl_net::inspect::version;

use crate::error::{Error, Result};
use crate::hosts::admission::Hello;
use crate::hosts::line_conn::LineConn;
use crate::hosts::reach::reach;
use crate::measure::plan::Job;
use crate::nccl::library::Source;
use crate::pair::host_end::HostEnd;
use crate::pair::message::json_error;
use crate::pair::pages::Pages;
use crate::pair::setting::Setting;
use crate::results::machine::Machine;
use crate::run::host_message::{FileFacts, HostFacts, Kind, Purpose, Reply, Request, Start};
use crate::run::other_host::boot;
use crate::run::worker::WORKER;
use crate::system::interrupt;
use crate::verbs::libibverbs::Verbs;

/// A message is sent within this time.
const SEND: Duration = Duration::from_secs(10);
/// The server says what it wants next within this time.
const NEXT: Duration = Duration::from_secs(300);
/// Beginnings of the variables that the other host may set: those of transports and of drivers.
const MAY_SET: [&str; 4] = ["NCCL_", "FERRITE_", "SOFTRNIC_", "MLX5_"];
/// Ends of those that it may not set all the same: they name code that is loaded, a program that is started, or where files are written.
const MAY_NOT_SET: [&str; 7] = ["_LIB", "_PLUGIN", "_HELPER", "_FILE", "_TRACE", "_DIR", "_PATH"];

/// What this host has for the comparison.
pub(crate) struct HostPart {
    /// A and B.
    pub(crate) sources: Vec<Source>,
    pub(crate) verbs: Verbs,
    /// Whether processes keep to a CPU.
    pub(crate) pin: bool,
}

/// Takes part in the comparison of the server at `place` until its end. The server may not be there yet: it is tried for `wait`.
/// If this host cannot, the server hears why.
///
/// # Errors
/// Why this host has no part, or why the comparison has ended before its end.
pub(crate) fn take_part(place: &str, token: &str, wait: Duration, part: Result<HostPart>) -> Result<()> {
    let prepared = part.and_then(|part| Ok((FileFacts::of(&part.sources)?, part)));
    let facts = HostFacts {
        host: Machine::host_name(),
        version: version::text().into(),
        boot: boot(),
        verbs: prepared.as_ref().map_or_else(|_| String::new(), |(_, part)| part.verbs.name().into()),
        files: prepared.as_ref().map_or_else(|_| Vec::new(), |(files, _)| files.clone()),
        machine: Machine::here(),
        problem: prepared.as_ref().err().map(ToString::to_string),
    };
    // The server wants the hello soon after it has accepted the connection.
    let mut session = Session { place, token, conn: LineConn::new(reach(place, wait)?), pages: None };
    session.send_hello(facts)?;
    let (_, part) = prepared?;
    loop {
        match session.receive()? {
            Request::Refused(why) => return Err(Error::Refused(format!("by the server at {place}: {why}"))),
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
        interrupt::check()?;
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
                process.pass_on(control, |job| adapted(job, source, &part.verbs))
            }
        }
    }

    fn start<'p>(&mut self, part: &'p HostPart, start: &Start) -> Result<(HostEnd, std::net::TcpStream, &'p Source)> {
        let source = part.sources.get(start.side).ok_or_else(|| self.problem(&format!("side {}", start.side)))?;
        if let Some((name, _)) = start.variables.iter().find(|(name, _)| !may_set(name)) {
            return Err(Error::Refused(format!(
                "{name} is not set by another host; what begins with {} is, unless it ends in {}",
                MAY_SET.join(", "),
                MAY_NOT_SET.join(", ")
            )));
        }
        if start.has_pages && self.pages.is_none() {
            self.pages = Some(Pages::of_both_ranks()?);
        }
        let variable = |(name, value): &(String, String)| (OsString::from(name), OsString::from(value));
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
    MAY_SET.iter().any(|begin| name.starts_with(begin)) && !MAY_NOT_SET.iter().any(|end| name.ends_with(end))
}

/// The server's job with what this host has.
fn adapted(job: Value, source: &Source, verbs: &Verbs) -> Result<Value> {
    let job: Job = serde_json::from_value(job).map_err(|e| json_error(&e))?;
    let job = Job { source: source.clone(), peer: None, verbs: verbs.clone(), ..job };
    serde_json::to_value(job).map_err(|e| json_error(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::Command;

    #[test]
    fn no_variable_by_which_code_is_loaded_or_a_file_is_written_is_set_by_another_host() {
        for name in ["NCCL_IB_TC", "FERRITE_LANES", "SOFTRNIC_PATHS", "MLX5_SINGLE_THREADED", "NCCL_LOOPBACK_WORD"] {
            assert!(may_set(name), "{name}");
        }
        for name in [
            "LD_PRELOAD",
            "NCCL_IBVERBS_LIB",
            "NCCL_NET_PLUGIN",
            "NCCL_DEBUG_FILE",
            "SOFTRNIC_GPU_HELPER",
            "SOFTRNIC_TRACE",
            "FERRITE_STATS_DIR",
            "NCCL_CUDA_PATH",
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let place = listener.local_addr().expect("its address").to_string();
        let part = HostPart { sources: vec![Source::stock(&library)], verbs: Verbs::System, pin: false };
        let host = std::thread::spawn(move || take_part(&place, "t", Duration::ZERO, Ok(part)));
        // This waits until the host reads, and the host reads until this is closed.
        let writer = std::fs::OpenOptions::new().write(true).open(&library).expect("the host reads");
        let called = listener.accept();
        drop((listener, writer));
        assert!(called.is_err_and(|problem| problem.kind() == std::io::ErrorKind::WouldBlock));
        assert!(host.join().expect("no panic").is_err_and(|problem| problem.to_string().contains("cannot reach")));
    }
}
