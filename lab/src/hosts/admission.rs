//! Letting callers in by the token.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::hosts::line_conn::LineConn;
use crate::system::interrupt;

/// A caller says its first words within this time.
const HELLO: Duration = Duration::from_secs(10);
/// Callers that have said nothing yet, at most.
const WAITING: usize = 64;
/// How often it is looked for callers.
const LOOK: Duration = Duration::from_millis(10);

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

/// Listens at the first of `addresses` that is one of this host, or else at the last one; the port as well.
///
/// # Errors
/// [`Error::Io`] with that address.
pub fn listen(addresses: &[String]) -> Result<(TcpListener, u16)> {
    let (address, preferred) = addresses.split_last().ok_or(Error::Misuse("an address is needed"))?;
    let failed = |problem| Error::io(format!("cannot listen at {address}"), problem);
    let of_this_host = preferred.iter().find_map(|place| listen_at_own(place));
    let at_last = || TcpListener::bind(&address.to_socket_addrs()?.collect::<Vec<SocketAddr>>()[..]);
    let listener = of_this_host.map_or_else(at_last, Ok).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, port))
}

/// Listens at `place`, if it is an address of this host. A name may stand for a loopback address here and for another one elsewhere.
fn listen_at_own(place: &str) -> Option<TcpListener> {
    let is_name = place.parse::<SocketAddr>().is_err();
    let mut places = place.to_socket_addrs().ok()?.filter(|place| !(is_name && place.ip().is_loopback()));
    places.find_map(|place| TcpListener::bind(place).ok())
}

/// Hands callers with the token to `admitted` until it has `count` of them, the time is over, or `is_over` says so.
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
    while all < count && Instant::now() < end && !interrupt::received() && !is_over() {
        if let Ok((stream, caller)) = listener.accept() {
            if waiting.load(Relaxed) < WAITING {
                waiting.fetch_add(1, Relaxed);
                let (sender, token, waiting) = (sender.clone(), token.to_owned(), Arc::clone(&waiting));
                std::thread::spawn(move || {
                    admit(stream, caller, &token, &sender);
                    waiting.fetch_sub(1, Relaxed);
                });
            }
            continue;
        }
        if let Ok((facts, conn)) = receiver.recv_timeout(LOOK) {
            admitted(facts, conn);
            all += 1;
        }
    }
}

/// Hears a caller's first words, and passes it on if it has the token.
fn admit<F: DeserializeOwned>(stream: TcpStream, caller: SocketAddr, token: &str, sender: &Sender<(F, LineConn)>) {
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
    use super::*;

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
        let problem = listen(&["192.0.2.1:0".to_owned()]).expect_err("it is no address of this host");
        assert!(problem.to_string().contains("192.0.2.1:0"), "{problem}");
    }
}
