//! The other host of a comparison, as rank 0's sees it.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nccl_net::inspect::version;

use crate::error::{Error, Result};
use crate::hosts::admission;
use crate::hosts::line_conn::LineConn;
use crate::nccl::library::Source;
use crate::pair::parent::SocketsToHost;
use crate::results::machine::Machine;
use crate::run::host_message::{FileFacts, HostFacts, Kind, Purpose, Reply, Request, Start};
use crate::system::interrupt;
use crate::verbs::libibverbs::{Verbs, new_fabric_name};

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
    /// [`Error::Refused`] with what is different, [`Error::Stalled`] if none comes; [`Error::Interrupted`].
    pub(crate) fn meet(meeting: Meeting, sources: &[Source], verbs: &Verbs) -> Result<Self> {
        let files = FileFacts::of(sources)?;
        let Meeting { listener, token, wait } = meeting;
        let mut met: Option<(HostFacts, LineConn)> = None;
        admission::gather(&listener, &token, 1, wait, || false, |facts, conn| met = Some((facts, conn)));
        interrupt::check()?;
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
        source: &Source,
        variables: &[(String, String)],
        silence: Duration,
        has_pages: bool,
    ) -> Result<SocketsToHost> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let side = self.sources.iter().position(|known| known == source);
        let side = side.ok_or(Error::Misuse("a side that the other host does not know"))?;
        let fabric = new_fabric_name();
        let silence_ms = silence.as_millis() as u64;
        let start =
            Start { number, side, silence_ms, has_pages, fabric: fabric.clone(), variables: variables.to_vec() };
        self.tell(&Request::Start(start))?;
        let (mut control, mut peer) = (None, None);
        // It answers when it is connected, or cannot be.
        let is_over = || self.conn.lock().unwrap_or_else(PoisonError::into_inner).has_news();
        admission::gather(&self.listener, &self.token, 2, ANSWER, is_over, |purpose: Purpose, mut conn| {
            let place = if purpose.kind == Kind::Control { &mut control } else { &mut peer };
            if purpose.number == number && conn.send(&purpose, ANSWER).is_ok() {
                *place = conn.into_stream().ok();
            }
        });
        interrupt::check()?;
        match (self.hear()?, control, peer) {
            (Reply::Started, Some(control), Some(peer)) => Ok(SocketsToHost { control, peer, fabric }),
            (Reply::Failed(why), ..) => Err(self.problem(&why)),
            _ => Err(self.problem("it has not connected as it should")),
        }
    }

    /// Finds out whether its files are still those that it began with, and lets it go. After an interrupt it is let go at once, if it is
    /// still there: it may have been interrupted too.
    ///
    /// # Errors
    /// [`Error::Refused`] if one was replaced.
    pub(crate) fn end(&self, is_interrupted: bool) -> Result<()> {
        if is_interrupted {
            self.tell(&Request::End).unwrap_or_default();
            return Ok(());
        }
        self.tell(&Request::Files)?;
        let Reply::Files(now) = self.hear()? else { return Err(self.problem("it does not tell its files")) };
        let is_other = |(then, now): (&FileFacts, &FileFacts)| then.sha256 != now.sha256;
        let is_replaced = now.len() != self.files.len() || self.files.iter().zip(&now).any(is_other);
        self.tell(&Request::End)?;
        match is_replaced {
            true => Err(Error::Refused(format!("a library of {} was replaced during the run", self.facts.host))),
            false => Ok(()),
        }
    }

    fn tell(&self, request: &Request) -> Result<()> {
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        conn.send(request, ANSWER).or_else(|why| {
            interrupt::check()?;
            Err(self.problem(&why))
        })
    }

    fn hear(&self) -> Result<Reply> {
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = conn.receive(ANSWER);
        interrupt::check()?;
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
        return Some(format!("ferrite is {this} on {at} and {that} on {other}: install the same files on both"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpStream};

    fn facts(host: &str) -> HostFacts {
        let file = |path: &str| FileFacts { path: path.into(), sha256: format!("{path}-0123456789") };
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
            (|there| there.version = "1+b".into(), "ferrite is 1+a on n0 and 1+b on n1: install the same files"),
            (|there| there.problem = Some("no plugin at /x".into()), "n1: no plugin at /x"),
            (|there| there.verbs = "softrnic".into(), "--verbs is system on n0 and softrnic on n1"),
            (|there| there.files.clear(), "n1 does not compare 2 sides"),
            (|there| there.files[1].sha256 = "f".repeat(64), "B is libnccl-net.so (sha256 libnccl-net.…) on n0 and"),
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

    /// It may have been interrupted too, and be gone.
    #[test]
    fn after_an_interrupt_it_does_not_matter_that_the_other_host_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        stream.shutdown(Shutdown::Both).expect("it is connected");
        let gone = OtherHost {
            listener,
            token: "t".into(),
            sources: Vec::new(),
            files: Vec::new(),
            facts: facts("n1"),
            conn: Mutex::new(LineConn::new(stream)),
            next: AtomicU64::new(0),
        };
        assert!(gone.end(false).is_err_and(|problem| problem.to_string().contains("the other host, n1: cannot send")));
        gone.end(true).expect("an interrupt");
    }

    #[test]
    fn the_software_device_is_of_one_machine() {
        let software =
            |host: &str, boot: &str| HostFacts { verbs: "softrnic".into(), boot: boot.into(), ..facts(host) };
        assert_eq!(obstacle(&software("n0", "x"), &software("n1", "x")), None);
        let said = obstacle(&software("n0", "x"), &software("n1", "y")).expect("two machines");
        assert!(said.contains("joins processes of one machine, and n0 and n1 are two: --verbs system"), "{said}");
    }
}
