//! How processes of several hosts find each other, and the lines that they send. What they say is
//! their own matter.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::system::output;
use crate::system::output::plain;

/// How far the server's port lies above `MASTER_PORT`.
const ABOVE_MASTER: u16 = 2;
const MASTER_PORT: u16 = 29500;

/// What this process is in the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It serves so many hosts, with its own, at the first of these addresses that this host has.
    Server { addresses: Vec<String>, token: String, hosts: usize },
    /// It takes part in the session of the server there. A launcher says of how many hosts that is.
    Host { place: String, token: String, hosts: Option<usize> },
}

/// What a launcher's variables say, with one process a host: rank 0 serves.
///
/// # Errors
/// [`Error::Usage`] if something is missing or is no number.
pub fn of_launcher(token: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Role> {
    let find = |names: &[&str]| {
        names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))
    };
    let first = |names: &[&str]| {
        find(names).ok_or_else(|| Error::Usage(format!("--job needs one of {}", names.join(", "))))
    };
    let number = |text: String| {
        text.parse::<usize>().map_err(|_| Error::Usage(format!("{text:?} is no number of a rank")))
    };
    let rank = number(first(&["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])?)?;
    let hosts =
        number(first(&["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])?)?;
    let of_slurm = || find(&["SLURM_STEP_NODELIST"]).and_then(|nodes| first_node(&nodes));
    let master =
        find(&["MASTER_ADDR"]).or_else(of_slurm).map_or_else(|| first(&["MASTER_ADDR"]), Ok)?;
    let port = variable("MASTER_PORT").map_or(Ok(MASTER_PORT), |text| {
        text.parse::<u16>()
            .map_err(|_| Error::Usage(format!("MASTER_PORT={text}: a port is expected")))
    })?;
    let port = port
        .checked_add(ABOVE_MASTER)
        .ok_or_else(|| Error::Usage(format!("MASTER_PORT={port} is too high")))?;
    let token = match token {
        Some(token) => token.to_owned(),
        None => first(&[
            "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
        ])
        .map_err(|problem| Error::Usage(format!("{problem}, or --token")))?,
    };
    Ok(match rank {
        // Not on networks that the job does not use: the token may be known to others.
        0 => Role::Server {
            addresses: vec![format!("{master}:{port}"), format!("0.0.0.0:{port}")],
            token,
            hosts,
        },
        _ => Role::Host { place: format!("{master}:{port}"), token, hosts: Some(hosts) },
    })
}

/// The first of a node list such as `gpu[03-07,11],login1`.
fn first_node(nodes: &str) -> Option<String> {
    let (name, rest) = nodes.split_at(nodes.find(['[', ',']).unwrap_or(nodes.len()));
    let number = rest
        .strip_prefix('[')
        .and_then(|numbers| numbers.split(['-', ',', ']']).next())
        .unwrap_or_default();
    Some(format!("{name}{number}")).filter(|node| !node.is_empty())
}

/// A token that nobody guesses.
///
/// # Errors
/// [`Error::Unreadable`] if the system has no random bytes.
pub fn new_token() -> Result<String> {
    let bytes: [u8; 8] =
        nccl_net::inspect::random::bytes().map_err(|error| Error::Unreadable(error.text()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// One attempt takes so long at most.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// A connection to `HOST:PORT`, which is tried for `limit`, each time at all addresses of the name.
///
/// # Errors
/// [`Error::Io`] with what was in the way last; [`Error::Interrupted`].
pub fn reach(place: &str, limit: Duration) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        match place.to_socket_addrs().and_then(connect) {
            Ok(stream) => return Ok(stream),
            Err(problem) if start.elapsed() > limit => {
                return Err(Error::io(format!("cannot reach {place}"), problem));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        output::check()?;
    }
}

/// A connection to the first of these addresses that takes one.
fn connect(places: impl Iterator<Item = SocketAddr>) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("no address of that name");
    for place in places {
        match TcpStream::connect_timeout(&place, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

/// Bytes of a line at most.
pub const MOST: usize = 64 << 10;
/// How often a wait looks whether the user has interrupted the program.
const LOOK: Duration = Duration::from_millis(200);

/// What has come over a connection, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
    /// Bytes of it that are known to have no end of a line.
    searched: usize,
}

impl Lines {
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next line that is whole, with its end.
    ///
    /// # Errors
    /// It is too long, and not whole yet.
    pub fn poll_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        if let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') {
            let rest = self.pending.split_off(self.searched + at + 1);
            self.searched = 0;
            return Ok(Some(std::mem::replace(&mut self.pending, rest)));
        }
        self.searched = self.pending.len();
        if self.searched >= MOST {
            return Err(format!("a line of more than {MOST} bytes"));
        }
        Ok(None)
    }
}

/// The message in a line.
///
/// # Errors
/// There is no such message. The text may be shown: what it has of the line is plain.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| plain(&format!("no such message: {e}")))
}

/// The connection, and what has been read beyond the last line.
#[derive(Debug)]
pub struct LineConn {
    stream: TcpStream,
    lines: Lines,
}

impl LineConn {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap_or_default();
        Self { stream, lines: Lines::default() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// It is too long, or the peer does not take it.
    pub fn send(&mut self, message: &impl Serialize, limit: Duration) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|e| e.to_string())?;
        line.push(b'\n');
        if line.len() > MOST {
            return Err(format!("a message of {} bytes; {MOST} are allowed", line.len()));
        }
        self.stream.set_write_timeout(Some(limit)).map_err(|e| e.to_string())?;
        self.stream.write_all(&line).map_err(|e| format!("cannot send: {e}"))
    }

    /// The next message.
    ///
    /// # Errors
    /// None has come whole within `limit`, the line is too long or no such message, or the
    /// connection has ended.
    pub fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, String> {
        parse(&self.line(Instant::now() + limit, limit)?)
    }

    /// Whether the peer has said something that was not received, or has ended the connection.
    pub fn has_news(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap_or_default();
        let is_quiet =
            matches!(self.stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap_or_default();
        !self.lines.is_empty() || !is_quiet
    }

    /// The connection for other uses: both ends agree that nothing more comes in lines.
    ///
    /// # Errors
    /// Something has come beyond the last line.
    pub fn into_stream(self) -> Result<TcpStream, String> {
        if !self.lines.is_empty() {
            return Err(format!("{} bytes more than were expected", self.lines.pending.len()));
        }
        self.stream.set_read_timeout(None).map_err(|e| e.to_string())?;
        self.stream.set_write_timeout(None).map_err(|e| e.to_string())?;
        Ok(self.stream)
    }

    fn line(&mut self, end: Instant, limit: Duration) -> Result<Vec<u8>, String> {
        loop {
            if let Some(line) = self.lines.poll_line()? {
                return Ok(line);
            }
            let late = || format!("nothing whole for {:.0} s", limit.as_secs_f64());
            let left = end
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
                .ok_or_else(late)?;
            if output::received() {
                return Err("interrupted".into());
            }
            self.stream.set_read_timeout(Some(left.min(LOOK))).map_err(|e| e.to_string())?;
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(count) => self.lines.handle_bytes(&part[..count]),
                Err(e)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted]
                        .contains(&e.kind()) => {}
                Err(e) => return Err(format!("the connection has failed: {e}")),
            }
        }
    }
}

/// A caller says its first words within this time.
const HELLO: Duration = Duration::from_secs(10);
/// Callers that have said nothing yet, at most.
const WAITING: usize = 64;
/// How often it is looked for callers.
const LOOK_FOR_CLIENTS: Duration = Duration::from_millis(10);

/// The first message of a caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello<F> {
    pub token: String,
    pub facts: F,
}

/// The answer to a caller that is not let in; those to others are the session's own.
#[derive(Debug, Serialize)]
enum Answer {
    Refused(&'static str),
}

/// Listens at the first of `addresses` that is one of this host, or else at the last one; the port
/// as well.
///
/// # Errors
/// [`Error::Io`] with that address.
pub fn listen(addresses: &[String]) -> Result<(TcpListener, u16)> {
    let (address, preferred) =
        addresses.split_last().ok_or(Error::Misuse("an address is needed"))?;
    let failed = |problem| Error::io(format!("cannot listen at {address}"), problem);
    let of_this_host = preferred.iter().find_map(|place| listen_at_own(place));
    let at_last =
        || TcpListener::bind(&address.to_socket_addrs()?.collect::<Vec<SocketAddr>>()[..]);
    let listener = of_this_host.map_or_else(at_last, Ok).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, port))
}

/// Listens at `place`, if it is an address of this host. A name may stand for a loopback address
/// here and for another one elsewhere.
fn listen_at_own(place: &str) -> Option<TcpListener> {
    let is_name = place.parse::<SocketAddr>().is_err();
    let mut places =
        place.to_socket_addrs().ok()?.filter(|place| !(is_name && place.ip().is_loopback()));
    places.find_map(|place| TcpListener::bind(place).ok())
}

/// Hands callers with the token to `admitted` until it has `count` of them, the time is over, or
/// `is_over` says so.
pub fn gather<F: DeserializeOwned + Send + 'static>(
    listener: &TcpListener,
    token: &str,
    count: usize,
    limit: Duration,
    is_over: impl Fn() -> bool,
    mut admitted: impl FnMut(F, LineConn),
) {
    let (sender, receiver) = mpsc::channel();
    let (end, mut all) = (Instant::now() + limit, 0);
    let waiting = Arc::new(AtomicUsize::new(0));
    listener.set_nonblocking(true).unwrap_or_default();
    while all < count && Instant::now() < end && !output::received() && !is_over() {
        if let Ok((stream, caller)) = listener.accept() {
            if waiting.load(Relaxed) < WAITING {
                waiting.fetch_add(1, Relaxed);
                let (sender, token, waiting) =
                    (sender.clone(), token.to_owned(), Arc::clone(&waiting));
                std::thread::spawn(move || {
                    admit(stream, caller, &token, &sender);
                    waiting.fetch_sub(1, Relaxed);
                });
            }
            continue;
        }
        if let Ok((facts, conn)) = receiver.recv_timeout(LOOK_FOR_CLIENTS) {
            admitted(facts, conn);
            all += 1;
        }
    }
}

/// Hears a caller's first words, and passes it on if it has the token.
fn admit<F: DeserializeOwned>(
    stream: TcpStream,
    caller: SocketAddr,
    token: &str,
    sender: &Sender<(F, LineConn)>,
) {
    stream.set_nonblocking(false).unwrap_or_default();
    let mut conn = LineConn::new(stream);
    match conn.receive::<Hello<F>>(HELLO) {
        Ok(hello) if is_equal(&hello.token, token) => drop(sender.send((hello.facts, conn))),
        Ok(_) => {
            log::warn!("{caller} has another token");
            conn.send(&Answer::Refused("another token (--token)"), HELLO).unwrap_or_default();
        }
        Err(why) => log::warn!("{caller} is no host of this session: {why}"),
    }
}

/// Takes the same time wherever the texts differ.
fn is_equal(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn role(variables: &[(&str, &str)]) -> Result<Role> {
        of_launcher(None, |name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_launcher_tells_who_serves_and_where() {
        let of = |rank: &'static str| {
            role(&[
                ("RANK", rank),
                ("WORLD_SIZE", "3"),
                ("MASTER_ADDR", "n0"),
                ("MASTER_PORT", "4000"),
                ("SLURM_JOB_ID", "77"),
            ])
            .expect("all is there")
        };
        assert_eq!(
            of("0"),
            Role::Server {
                addresses: vec!["n0:4002".into(), "0.0.0.0:4002".into()],
                token: "77".into(),
                hosts: 3
            }
        );
        assert_eq!(
            of("2"),
            Role::Host { place: "n0:4002".into(), token: "77".into(), hosts: Some(3) }
        );
    }

    #[test]
    fn slurm_tells_the_host_of_rank_0_by_its_list_of_nodes() {
        for (nodes, first) in [
            ("gpu[03-07,11],login1", "gpu03"),
            ("node0,node1", "node0"),
            ("n[1,4]", "n1"),
            ("a", "a"),
        ] {
            let all = [
                ("SLURM_PROCID", "1"),
                ("SLURM_NTASKS", "2"),
                ("SLURM_STEP_NODELIST", nodes),
                ("SLURM_JOB_ID", "7"),
            ];
            let expected =
                Role::Host { place: format!("{first}:29502"), token: "7".into(), hosts: Some(2) };
            assert_eq!(role(&all).expect("all is there"), expected, "{nodes}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = role(&[]).expect_err("nothing is set").to_string();
        assert!(missing.contains("RANK, SLURM_PROCID"), "{missing}");
        let missing =
            role(&[("RANK", "1"), ("WORLD_SIZE", "2")]).expect_err("no host of rank 0").to_string();
        assert!(missing.contains("MASTER_ADDR"), "{missing}");
    }

    #[test]
    fn every_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let open = listener.local_addr().expect("its address");
        // Nobody listens at port 0.
        let closed = SocketAddr::from(([127, 0, 0, 1], 0));
        let stream = connect([closed, open].into_iter()).expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), open);
        assert!(connect([closed, closed].into_iter()).is_err());
        assert!(
            connect([].into_iter())
                .is_err_and(|problem| problem.to_string().contains("no address"))
        );
    }

    fn pair() -> (TcpStream, LineConn) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let far =
            TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
        (far, LineConn::new(listener.accept().expect("accepted").0))
    }

    #[test]
    fn lines_come_in_parts_and_several_at_once() {
        let (mut far, mut near) = pair();
        far.write_all(b"[1,").expect("sent");
        far.write_all(b"2]\n[3]\n").expect("sent");
        let long = Duration::from_secs(20);
        assert_eq!(near.receive::<Vec<u8>>(long), Ok(vec![1, 2]));
        assert!(near.has_news());
        assert_eq!(near.receive::<Vec<u8>>(long), Ok(vec![3]));
        assert!(!near.has_news());
        drop(far);
        assert!(near.receive::<Vec<u8>>(long).is_err_and(|e| e.contains("closed")));
        assert!(near.has_news());
    }

    #[test]
    fn lines_without_end_and_without_sense_and_silence_are_errors() {
        let (mut far, mut near) = pair();
        assert!(
            near.receive::<u8>(Duration::from_millis(20))
                .is_err_and(|e| e.contains("nothing whole"))
        );
        far.write_all(b"{]\n").expect("sent");
        assert!(
            near.receive::<u8>(Duration::from_secs(20))
                .is_err_and(|e| e.contains("no such message"))
        );
        far.write_all(b"{\"\\u001b[2J\": 1}\n").expect("sent");
        let refused =
            near.receive::<Hello<u8>>(Duration::from_secs(20)).expect_err("no such field");
        assert!(refused.contains("[2J") && !refused.contains(char::is_control), "{refused:?}");
        let writer = std::thread::spawn(move || far.write_all(&vec![b'x'; 4 * MOST]));
        assert!(
            near.receive::<u8>(Duration::from_secs(20)).is_err_and(|e| e.contains("more than"))
        );
        drop(near);
        let _ = writer.join();
    }

    fn listening(preferred: &str) -> SocketAddr {
        let addresses = [preferred.to_owned(), "0.0.0.0:0".to_owned()];
        listen(&addresses).expect("a port").0.local_addr().expect("its address")
    }

    #[test]
    fn a_session_is_served_at_the_jobs_address_alone_where_it_is_one_of_this_host() {
        assert!(listening("127.0.0.1:0").ip().is_loopback());
        // An address that no host has, and a name that other hosts may resolve otherwise.
        for elsewhere in ["192.0.2.1:0", "localhost:0"] {
            assert!(listening(elsewhere).ip().is_unspecified(), "{elsewhere}");
        }
    }

    #[test]
    fn an_address_that_the_user_has_given_is_the_only_one() {
        let problem =
            listen(&["192.0.2.1:0".to_owned()]).expect_err("it is no address of this host");
        assert!(problem.to_string().contains("192.0.2.1:0"), "{problem}");
    }
}
