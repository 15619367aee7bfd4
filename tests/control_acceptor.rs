//! The port of a process and the lines over it, without devices: who is let in, who is told what, and what a line survives.

use nccl_net::testing::control::channel::{Channel, Heard};
use nccl_net::testing::control::epoll::{Epoll, Trigger};
use nccl_net::testing::control::line::End;
use nccl_net::testing::control::lines::{Lines, Reach};
use nccl_net::testing::control::link::Link;
use nccl_net::testing::control::reception::Reception;
use nccl_net::testing::host::iface::Interface;
use nccl_net::testing::proto::frame::{Assembler, Frame, Kind};
use nccl_net::testing::proto::handle::{Handle, Token};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);

fn reception(tokens: &[Token]) -> Arc<Reception> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let reception = Reception::open(&Interface { name: "lo".into(), address }).expect("a port");
    tokens.iter().for_each(|token| reception.register(*token));
    reception
}

fn caller(reception: &Arc<Reception>, token: Token) -> Channel {
    wait_until("the caller", || {
        reception.poll(PATIENCE).expect("no error");
        reception.fetch(&token)
    })
}

fn reach(lines: &Lines, address: SocketAddr, token: Token) -> Reach {
    let reach = lines.reach(&Handle { address, token }).expect("dialled");
    wait_until("the line", || reach.channel.poll_connected().expect("somebody listens").then_some(()));
    reach
}

fn heard(channel: &Channel) -> Heard {
    wait_until("a frame", || Some(channel.poll_frame()).filter(|heard| *heard != Heard::Nothing))
}

fn is_kind(channel: &Channel, kind: Kind) {
    let heard = heard(channel);
    assert!(matches!(&heard, Heard::Frame(frame) if frame.kind == kind), "{heard:?} instead of {kind:?}");
}

fn frame(kind: Kind, token: Token) -> Vec<u8> {
    Frame { kind, token, body: vec![5; 70] }.emit()
}

/// Whether the other end has closed; nothing is waited for.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("non-blocking");
    !matches!(stream.read(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::WouldBlock)
}

#[test]
fn frames_may_come_in_any_pieces() {
    let reception = reception(&[[1; 16], [2; 16]]);
    let mut raw = TcpStream::connect(reception.address()).expect("it listens");
    raw.set_nodelay(true).expect("no delay");
    let (one, two) = ([1; 16], [2; 16]);
    let all = [frame(Kind::Hello, one), frame(Kind::Hello, two), frame(Kind::Commit, one), frame(Kind::Commit, two)];
    for byte in all.concat() {
        raw.write_all(&[byte]).expect("sent");
        reception.poll(PATIENCE).expect("no error");
    }
    let channels = [one, two].map(|token| caller(&reception, token));
    for channel in &channels {
        is_kind(channel, Kind::Hello);
        is_kind(channel, Kind::Commit);
    }
    drop(channels);
    // And all at once.
    let mut raw = TcpStream::connect(reception.address()).expect("it listens");
    raw.write_all(&all.concat()).expect("sent");
    for channel in [one, two].map(|token| caller(&reception, token)) {
        is_kind(&channel, Kind::Hello);
        is_kind(&channel, Kind::Commit);
    }
}

#[test]
fn strangers_have_a_moment_and_are_not_let_in_without_end() {
    const MANY: usize = 128;
    let reception = reception(&[[1; 16]]);
    let call = || TcpStream::connect(reception.address()).expect("the port is open");
    let start = Instant::now();
    let mut early: Vec<_> = (0..MANY).map(|_| call()).collect();
    let mut late: Vec<_> = (0..MANY).map(|_| call()).collect();
    (0..20).for_each(|_| reception.poll(PATIENCE).expect("no error"));
    let closed = early.iter_mut().chain(&mut late).filter_map(|one| is_closed(one).then_some(())).count();
    // Unless this machine is slow just now.
    if start.elapsed() < Duration::from_millis(50) {
        assert_eq!(closed, 0, "nobody has to go before its time");
    }
    std::thread::sleep(Duration::from_millis(60));
    let mut prompt = call();
    prompt.write_all(&frame(Kind::Hello, [1; 16])).expect("sent");
    is_kind(&caller(&reception, [1; 16]), Kind::Hello);
    assert!(early.iter_mut().all(is_closed), "the oldest had to go");
    let others = late.iter_mut().filter_map(|one| is_closed(one).then_some(())).count();
    assert!(others <= 1, "and no more than had to make room for the prompt one");
}

#[test]
fn a_stranger_that_drips_has_a_deadline() {
    let reception = reception(&[[1; 16]]);
    let mut slow = TcpStream::connect(reception.address()).expect("it listens");
    let start = Instant::now();
    let hello = frame(Kind::Hello, [1; 16]);
    let mut bytes = hello.iter().cycle();
    wait_until("the end", || {
        std::thread::sleep(Duration::from_millis(20));
        reception.poll(Duration::from_millis(200)).expect("no error");
        // Less than a frame in all: nothing that could be judged.
        if start.elapsed() < Duration::from_millis(150) {
            slow.write_all(&[*bytes.next().expect("endless")]).expect("sent");
        }
        is_closed(&mut slow).then_some(())
    });
    assert!(start.elapsed() >= Duration::from_millis(200));
}

/// As long as there are lines the port is open; but who comes when nobody listens is not left waiting.
#[test]
fn whoever_waits_at_the_door_is_told_that_the_last_listener_has_closed() {
    let (reception, lines) = (reception(&[[1; 16], [2; 16]]), Lines::default());
    let near = reach(&lines, reception.address(), [1; 16]).channel;
    near.send(Kind::Hello, Vec::new());
    let _far = caller(&reception, [1; 16]);
    let mut inside = TcpStream::connect(reception.address()).expect("it listens");
    wait_until("a poll", || {
        reception.poll(PATIENCE).expect("no error");
        Some(())
    });
    let mut outside = TcpStream::connect(reception.address()).expect("it listens");
    outside.write_all(&frame(Kind::Hello, [2; 16])).expect("sent");
    reception.deregister(&[1; 16]);
    assert!(!is_closed(&mut inside) && !is_closed(&mut outside), "somebody listens still");
    reception.deregister(&[2; 16]);
    for stranger in [&mut inside, &mut outside] {
        wait_until("the end", || is_closed(stranger).then_some(()));
    }
    // On a line the answer is in words.
    let late = lines.reach(&Handle { address: reception.address(), token: [2; 16] }).expect("a line");
    assert!(late.is_shared);
    late.channel.send(Kind::Hello, Vec::new());
    wait_until("the refusal", || {
        _far.line().read();
        matches!(late.channel.poll_frame(), Heard::Frame(frame) if frame.kind == Kind::Refuse).then_some(())
    });
}

/// Lines keep the port open when nobody listens: who comes then is not in the way of the next listener's peer.
#[test]
fn who_queued_up_while_nobody_listened_is_sent_away() {
    let reception = reception(&[[1; 16]]);
    reception.deregister(&[1; 16]);
    let mut early = TcpStream::connect(reception.address()).expect("it is open");
    reception.register([2; 16]);
    wait_until("the end", || is_closed(&mut early).then_some(()));
}

#[test]
fn a_port_ends_also_where_a_forked_child_has_it() {
    let reception = reception(&[]);
    let address = reception.address();
    // SAFETY: the child goes on alone with this one thread, and only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: plain numbers.
            unsafe { libc::pause() };
        }
    }
    drop(reception);
    let refused = TcpStream::connect(address).is_err();
    // SAFETY: our own child, which is waited for once.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
    assert!(refused, "nobody serves it any more");
}

/// Two connections share a line that is new; the listener of the first has closed meanwhile.
#[test]
fn a_refusal_at_the_door_is_for_one_connection() {
    let (reception, lines) = (reception(&[[2; 16]]), Lines::default());
    let [dead, live] = [[1; 16], [2; 16]].map(|token| reach(&lines, reception.address(), token).channel);
    for channel in [&dead, &live] {
        channel.send(Kind::Hello, Vec::new());
    }
    wait_until("the refusal", || {
        reception.poll(PATIENCE).expect("no error");
        matches!(dead.poll_frame(), Heard::Frame(frame) if frame.kind == Kind::Refuse).then_some(())
    });
    assert_eq!(heard(&live), Heard::End(End::Closed), "it may call again");
    let again = reach(&lines, reception.address(), [2; 16]).channel;
    again.send(Kind::Hello, Vec::new());
    is_kind(&caller(&reception, [2; 16]), Kind::Hello);
}

/// A peer that takes no bytes.
struct Deaf {
    listener: TcpListener,
    lines: Lines,
}

impl Deaf {
    fn new() -> Self {
        Self { listener: TcpListener::bind(("127.0.0.1", 0)).expect("a port"), lines: Lines::default() }
    }

    fn reach(&self, token: Token) -> Reach {
        reach(&self.lines, self.listener.local_addr().expect("an address"), token)
    }

    /// Says so much on `channel` that some of it has to wait; how many frames.
    fn fill(channel: &Channel) -> usize {
        for count in 1..100_000 {
            channel.send(Kind::Hello, vec![0; 4096]);
            if !channel.poll_sent().expect("the line is there") {
                return count;
            }
        }
        panic!("somebody takes it all");
    }
}

#[test]
fn what_a_peer_would_not_take_is_sent_once_it_does() {
    let deaf = Deaf::new();
    let (first, second) = (deaf.reach([1; 16]).channel, deaf.reach([2; 16]).channel);
    let (mut peer, _) = deaf.listener.accept().expect("a caller");
    let epoll = Epoll::new().expect("an epoll");
    let mut batch = Epoll::batch();
    epoll.add(first.line().fd(), 7, Trigger::Room).expect("added");
    second.send(Kind::Hello, Vec::new());
    let filled = Deaf::fill(&first);
    while epoll.wait(&mut batch, 0).expect("a wait").count() > 0 {}
    let start = Instant::now();
    drop(second);
    assert!(start.elapsed() < Duration::from_secs(5), "nobody waits for the peer");
    let mut assembler = Assembler::default();
    let (mut hellos, mut goodbyes) = (0, 0);
    peer.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    wait_until("the goodbye", || {
        let mut bytes = [0; 4096];
        let wanted = assembler.wanted().expect("frames").min(bytes.len());
        if let Ok(count) = peer.read(&mut bytes[..wanted]) {
            assembler.handle_bytes(&bytes[..count]);
        } else if epoll.wait(&mut batch, 10).expect("a wait").any(|key| key == 7) {
            // As a watcher does.
            first.line().read();
        }
        match assembler.poll_frame().expect("frames").map(|frame| frame.kind) {
            Some(Kind::Hello) => hellos += 1,
            Some(Kind::Goodbye) => goodbyes += 1,
            _ => {}
        }
        (goodbyes == 1).then_some(())
    });
    assert_eq!(hellos, filled + 1, "in order and whole");
}

fn give_up_after(fd: RawFd, milliseconds: u32) {
    let value = (&raw const milliseconds).cast();
    // SAFETY: an open socket and a value of the size told.
    let rc = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, 4) };
    assert_eq!(rc, 0);
}

/// The kernel gives up on a peer that does not answer: a real ETIMEDOUT.
#[test]
fn a_lost_line_ends_no_connection_and_new_ones_go_over_a_new_line() {
    let deaf = Deaf::new();
    let (first, second, third) =
        (deaf.reach([1; 16]).channel, deaf.reach([2; 16]).channel, deaf.reach([3; 16]).channel);
    let (_peer, _) = deaf.listener.accept().expect("a caller");
    Deaf::fill(&first);
    let links = [first, second].map(|channel| Link::dialled("the peer".into(), [0; 16], channel, &Arc::default()));
    give_up_after(third.line().fd(), 100);
    let end = heard(&third);
    assert!(matches!(&end, Heard::End(End::Lost(why)) if why.contains("timed out")), "{end:?}");
    for link in &links {
        assert!(!link.is_gone() && !link.is_broken(), "{}", link.reason());
        assert!(link.reason().contains("the control connection was lost before"), "{}", link.reason());
    }
    let again = deaf.reach([4; 16]);
    assert!(!again.is_shared);
    let (mut peer, _) = deaf.listener.accept().expect("a second line");
    again.channel.send(Kind::Hello, Vec::new());
    // A process that is killed has usually read what there was; else its kernel resets the connection.
    peer.read_exact(&mut [0; 32]).expect("a hello");
    let late = Link::dialled("the peer".into(), [0; 16], again.channel, &Arc::default());
    drop(peer);
    wait_until("the end of the second line", || {
        late.line().read();
        late.is_broken().then_some(())
    });
    assert_eq!(late.reason(), "the peer's process has died");
    assert!(links.iter().all(|link| !link.is_gone()), "a line of its own");
    links[0].fail("enough");
    assert!(links[0].is_broken() && !links[1].is_gone());
}

/// What a child does with its copies is its own affair.
#[test]
fn a_forked_child_leaves_its_parents_lines_alone() {
    let (reception, lines) = (reception(&[[1; 16], [2; 16]]), Lines::default());
    let near = reach(&lines, reception.address(), [1; 16]).channel;
    near.send(Kind::Hello, Vec::new());
    let far = caller(&reception, [1; 16]);
    is_kind(&far, Kind::Hello);
    // SAFETY: the child goes on alone with this one thread, which holds no lock, and ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        near.send(Kind::Commit, Vec::new());
        let is_new =
            lines.reach(&Handle { address: reception.address(), token: [2; 16] }).is_ok_and(|to| !to.is_shared);
        let is_deaf = far.poll_frame() == Heard::Nothing;
        drop((near, far, lines));
        reception.deregister(&[1; 16]);
        reception.deregister(&[2; 16]);
        drop(reception);
        // SAFETY: ends here.
        unsafe { libc::_exit(if is_new && is_deaf { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child shares no line and hears nothing");
    assert_eq!(far.poll_frame(), Heard::Nothing, "it has said nothing");
    far.send(Kind::Reply, Vec::new());
    is_kind(&near, Kind::Reply);
    assert!(TcpStream::connect(reception.address()).is_ok(), "so does the port");
    let other = reach(&lines, reception.address(), [2; 16]);
    assert!(other.is_shared, "the line goes on");
    other.channel.send(Kind::Hello, Vec::new());
    is_kind(&caller(&reception, [2; 16]), Kind::Hello);
}
