//! The control connections of a process and its port, without devices: who is accepted, who gets
//! which answer, and what is survived.

use crate::common::control_process::*;
use crate::common::prelude::*;
use nccl_net::testing::control::PeerState;
use nccl_net::testing::control::stream::{ControlStream, PeerStream};
use nccl_net::testing::proto::event::{End, Received};
use nccl_net::testing::proto::frame::{Assembler, Kind};
use nccl_net::testing::proto::handle::{Secret, Token};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use testkit::port::accepted;

#[test]
fn frames_may_come_in_any_pieces() {
    let process = Process::listening(&[[1; 16], [2; 16]]);
    let mut raw = process.client();
    raw.set_nodelay(true).expect("no delay");
    let tokens = [[1; 16], [2; 16]];
    let all = |secrets: [Secret; 2]| {
        let of = |kind| {
            [frame(kind, tokens[0], secrets[0]), frame(kind, tokens[1], secrets[1])].concat()
        };
        [of(Kind::Hello), of(Kind::Commit)].concat()
    };
    for byte in all([[11; 16], [12; 16]]) {
        raw.write_all(&[byte]).expect("sent");
        process.poll();
    }
    let streams = tokens.map(|token| process.fetch(token));
    for stream in &streams {
        is_kind(stream, Kind::Hello);
        is_kind(stream, Kind::Commit);
    }
    drop(streams);
    // And all at once.
    let mut raw = process.client();
    raw.write_all(&all([[13; 16], [14; 16]])).expect("sent");
    for stream in tokens.map(|token| process.fetch(token)) {
        is_kind(&stream, Kind::Hello);
        is_kind(&stream, Kind::Commit);
    }
}

#[test]
fn unauthenticated_clients_have_a_moment_and_are_not_let_in_without_end() {
    const MANY: usize = 128;
    let process = Process::listening(&[[1; 16]]);
    let start = Instant::now();
    let mut early: Vec<_> = (0..MANY).map(|_| process.client()).collect();
    let mut late: Vec<_> = (0..MANY).map(|_| process.client()).collect();
    (0..20).for_each(|_| process.poll());
    let closed =
        early.iter_mut().chain(&mut late).filter_map(|one| is_closed(one).then_some(())).count();
    // Unless this machine is slow just now.
    if start.elapsed() < Duration::from_millis(50) {
        assert_eq!(closed, 0, "nobody has to go before its time");
    }
    std::thread::sleep(Duration::from_millis(60));
    let mut prompt = process.client();
    prompt.write_all(&frame(Kind::Hello, [1; 16], [9; 16])).expect("sent");
    is_kind(&process.fetch([1; 16]), Kind::Hello);
    assert!(early.iter_mut().all(is_closed), "the oldest had to go");
    let others = late.iter_mut().filter_map(|one| is_closed(one).then_some(())).count();
    assert!(others <= 1, "and no more than had to make room for the prompt one");
}

#[test]
fn an_unauthenticated_client_that_drips_has_a_deadline() {
    let process = Process::with_limit(Duration::from_millis(200));
    process.listen([1; 16]);
    let mut slow = process.client();
    let start = Instant::now();
    let hello = frame(Kind::Hello, [1; 16], [9; 16]);
    let mut bytes = hello.iter().cycle();
    wait_until("the end", || {
        std::thread::sleep(Duration::from_millis(20));
        process.poll();
        // Less than a frame in all: nothing that could be judged.
        if start.elapsed() < Duration::from_millis(150) {
            slow.write_all(&[*bytes.next().expect("endless")]).expect("sent");
        }
        is_closed(&mut slow).then_some(())
    });
    assert!(start.elapsed() >= Duration::from_millis(200));
}

/// As long as there are connections the port is open; but who comes when nobody listens is not left
/// waiting.
#[test]
fn who_waits_at_the_port_is_reported_that_the_last_listener_has_closed() {
    let (process, client) = (Process::listening(&[[1; 16], [2; 16]]), Process::new());
    let near = client.reach(process.address, [1; 16], [11; 16]);
    near.send(Kind::Hello, hello([1; 16]));
    let _far = process.fetch([1; 16]);
    let mut inside = process.client();
    process.poll();
    let mut outside = process.client();
    outside.write_all(&frame(Kind::Hello, [2; 16], [12; 16])).expect("sent");
    process.driver.deregister(&[1; 16]);
    assert!(!is_closed(&mut inside) && !is_closed(&mut outside), "somebody listens still");
    process.driver.deregister(&[2; 16]);
    for client in [&mut inside, &mut outside] {
        wait_until("the end", || is_closed(client).then_some(()));
    }
    // On a control connection the answer is in words.
    let late = client.reach(process.address, [2; 16], [13; 16]);
    late.send(Kind::Hello, hello([2; 16]));
    wait_until("the refusal", || {
        process.poll();
        matches!(late.poll_frame(), Received::Frame(frame) if frame.kind == Kind::Refuse)
            .then_some(())
    });
}

/// Connections keep the port open when nobody listens: who comes then is not in the way of the next
/// listener's peer.
#[test]
fn who_queued_up_while_nobody_listened_is_sent_away() {
    let (process, client) = (Process::listening(&[[1; 16]]), Process::new());
    let near = client.reach(process.address, [1; 16], [11; 16]);
    near.send(Kind::Hello, hello([1; 16]));
    let _far = process.fetch([1; 16]);
    process.driver.deregister(&[1; 16]);
    let mut early = process.client();
    process.listen([2; 16]);
    wait_until("the end", || is_closed(&mut early).then_some(()));
}

#[test]
fn a_port_goes_with_the_last_listener_and_connection() {
    let (process, client) = (Process::listening(&[[1; 16]]), Process::new());
    let near = client.reach(process.address, [1; 16], [11; 16]);
    near.send(Kind::Hello, hello([1; 16]));
    let far = process.fetch([1; 16]);
    process.driver.deregister(&[1; 16]);
    assert!(TcpStream::connect(process.address).is_ok(), "the peer may have to come back");
    drop(far);
    assert!(TcpStream::connect(process.address).is_err());
}

#[test]
fn a_port_ends_also_where_a_forked_child_has_it() {
    let process = Process::listening(&[[1; 16]]);
    // SAFETY: the child has only this one thread, and only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: plain numbers.
            unsafe { libc::pause() };
        }
    }
    process.driver.deregister(&[1; 16]);
    let refused = TcpStream::connect(process.address).is_err();
    // SAFETY: our own child, which is waited for once.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
    assert!(refused, "nobody serves it any more");
}

#[test]
fn streams_to_one_address_share_a_control_connection_which_goes_with_the_last() {
    let client = Process::new();
    let listeners: Vec<_> =
        (0..2).map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a port")).collect();
    let address = |n: usize| listeners[n].local_addr().expect("an address");
    let reach = |n, token, secret| client.reach(address(n), [token; 16], [secret; 16]);
    let before = sockets();
    let (a, b, again) = (reach(0, 1, 1), reach(0, 2, 2), reach(0, 1, 3));
    assert_eq!(sockets(), before + 1, "one process, one control connection");
    let other = reach(1, 3, 4);
    assert_eq!(sockets(), before + 2);
    drop((a, b, other));
    assert_eq!(sockets(), before + 1);
    drop(again);
    assert_eq!(sockets(), before);
}

/// Two connections share a control connection that is new; the listener of the first has closed
/// meanwhile.
#[test]
fn a_refusal_at_the_port_is_for_one_connection() {
    let (process, client) = (Process::listening(&[[2; 16]]), Process::new());
    let [dead, live] = [1, 2].map(|n| client.reach(process.address, [n; 16], [10 + n; 16]));
    dead.send(Kind::Hello, hello([1; 16]));
    live.send(Kind::Hello, hello([2; 16]));
    wait_until("the refusal", || {
        process.poll();
        matches!(dead.poll_frame(), Received::Frame(frame) if frame.kind == Kind::Refuse)
            .then_some(())
    });
    assert_eq!(heard(&live), Received::End(End::Closed), "it may call again");
    let again = client.reach(process.address, [2; 16], [13; 16]);
    again.send(Kind::Hello, hello([2; 16]));
    is_kind(&process.fetch([2; 16]), Kind::Hello);
}

/// A peer that takes no bytes, and a process that talks to it.
struct Deaf {
    listener: TcpListener,
    client: Process,
}

impl Deaf {
    fn new() -> Self {
        Self {
            listener: TcpListener::bind(("127.0.0.1", 0)).expect("a port"),
            client: Process::new(),
        }
    }

    fn reach(&self, token: Token) -> ControlStream {
        self.client.reach(self.listener.local_addr().expect("an address"), token, token)
    }

    /// Says so much on `stream` that some of it has to wait; how many frames.
    fn fill(stream: &ControlStream) -> usize {
        let count = 5000;
        (0..count).for_each(|_| stream.send(Kind::Hello, vec![0; 4096]));
        count
    }
}

#[test]
fn what_a_peer_would_not_take_is_sent_once_it_does() {
    let deaf = Deaf::new();
    let (first, second) = (deaf.reach([1; 16]), deaf.reach([2; 16]));
    let mut peer = accepted(&deaf.listener, "a client");
    second.send(Kind::Hello, Vec::new());
    let filled = Deaf::fill(&first);
    let start = Instant::now();
    drop(second);
    assert!(start.elapsed() < Duration::from_secs(5), "nobody waits for the peer");
    let mut assembler = Assembler::default();
    let (mut hellos, mut goodbyes) = (0, 0);
    peer.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    wait_until("the goodbye", || {
        let mut bytes = [0; 4096];
        match peer.read(&mut bytes) {
            Ok(count) => assembler.handle_bytes(&bytes[..count]),
            Err(_) => deaf.client.poll(),
        }
        while let Some(frame) = assembler.poll_frame().expect("frames") {
            match frame.kind {
                Kind::Hello => hellos += 1,
                Kind::Goodbye => goodbyes += 1,
                _ => {}
            }
        }
        (goodbyes == 1).then_some(())
    });
    assert_eq!(hellos, filled + 1, "in order and whole");
}

/// The sockets of this process that are connected to `port`.
fn connected_to(port: u16) -> Vec<RawFd> {
    (3..1000)
        .filter(|fd| {
            // SAFETY: all zero is an address of no family, filled in below.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            let mut size = size_of_val(&raw) as libc::socklen_t;
            // SAFETY: a valid place for an address, and its size.
            let rc = unsafe { libc::getpeername(*fd, (&raw mut raw).cast(), &raw mut size) };
            rc == 0 && u16::from_be(raw.sin_port) == port
        })
        .collect()
}

fn give_up_after(fd: RawFd, milliseconds: u32) {
    let value = (&raw const milliseconds).cast();
    // SAFETY: an open socket and a value of the size told.
    let rc = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, 4) };
    assert_eq!(rc, 0);
}

/// The kernel gives up on a peer that does not answer: a real ETIMEDOUT.
#[test]
fn a_lost_control_connection_ends_no_connection_and_new_ones_go_over_a_new_one() {
    let deaf = Deaf::new();
    let (first, second, third) = (deaf.reach([1; 16]), deaf.reach([2; 16]), deaf.reach([3; 16]));
    let _peer = accepted(&deaf.listener, "a client");
    Deaf::fill(&first);
    let peers = [first, second].map(|stream| PeerState::new("the peer".into(), stream, false));
    let port = deaf.listener.local_addr().expect("an address").port();
    connected_to(port).into_iter().for_each(|fd| give_up_after(fd, 100));
    let end = heard(&third);
    assert!(matches!(&end, Received::End(End::Lost(why)) if why.contains("timed out")), "{end:?}");
    for peer in &peers {
        assert!(!peer.is_gone() && !peer.is_broken(), "{}", peer.reason());
        assert!(
            peer.reason().contains("the control connection was lost before"),
            "{}",
            peer.reason()
        );
    }
    let again = deaf.reach([4; 16]);
    let mut new = accepted(&deaf.listener, "a second control connection");
    again.send(Kind::Hello, Vec::new());
    // Two resumptions, and the hello: a kernel resets a connection that is closed with something
    // unread.
    new.read_exact(&mut [0; 32 + 2 * (32 + 20)]).expect("a hello");
    let late = PeerState::new("the peer".into(), again, false);
    drop(new);
    wait_until("the end of the second one", || {
        deaf.client.poll();
        late.is_lost().then_some(())
    });
    assert!(late.reason().contains("closed without a goodbye"), "{}", late.reason());
    assert!(peers.iter().all(|peer| !peer.is_gone()), "they have not been answered yet");
    peers[0].fail("enough");
    assert!(peers[0].is_broken() && !peers[1].is_gone());
}

/// What a child does with its copies has no effect on its parent.
#[test]
fn a_forked_child_leaves_its_parents_control_connections_alone() {
    let (process, client) = (Process::listening(&[[1; 16], [2; 16]]), Process::new());
    let near = client.reach(process.address, [1; 16], [11; 16]);
    near.send(Kind::Hello, hello([1; 16]));
    let far = process.fetch([1; 16]);
    is_kind(&far, Kind::Hello);
    // SAFETY: the child has only this one thread, which holds no lock, and ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        near.send(Kind::Commit, Vec::new());
        let is_parents =
            ControlStream::open(&client.driver, process.address, [2; 16], [12; 16]).is_err();
        let is_deaf = far.poll_frame() == Received::Nothing;
        process.driver.deregister(&[1; 16]);
        process.driver.deregister(&[2; 16]);
        drop((near, far, client, process));
        // SAFETY: ends here.
        unsafe { libc::_exit(if is_parents && is_deaf { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child has no part in it and hears nothing");
    assert_eq!(far.poll_frame(), Received::Nothing, "it has said nothing");
    far.send(Kind::Reply, Vec::new());
    is_kind(&near, Kind::Reply);
    assert!(TcpStream::connect(process.address).is_ok(), "so does the port");
    let before = sockets();
    let other = client.reach(process.address, [2; 16], [13; 16]);
    assert_eq!(sockets(), before, "the control connection goes on");
    other.send(Kind::Hello, hello([2; 16]));
    is_kind(&process.fetch([2; 16]), Kind::Hello);
}
