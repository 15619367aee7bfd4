//! What goes wrong around a connection: strangers, peers that die, settings, missing parts. Each has a clear message, an end
//! in bounded time, and no other victim.

mod common;

use common::alone::{address, alone, connect, hello, works};
use common::doom::{in_a_doomed_child, vanish};
use common::{plugin_transport, setting};
use ferrite::abi;
use ferrite::buffer::Buffer;
use ferrite::comm::SendComm;
use ferrite::error::{Error, Result};
use ferrite::link::{Link, finished, posted};
use ferrite::pair;
use ferrite::seat::Seat;
use ferrite::transport::{Handle, Listener};
use nccl_net::proto::frame::{Assembler, Frame, Kind};
use nccl_net::proto::handle::Handle as Address;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As much of a frame as tells whose it is.
fn frame(kind: Kind, token: [u8; 16]) -> Vec<u8> {
    Frame { kind, secret: [8; 16], body: token.to_vec() }.emit()
}

/// Lets the listener hear `strangers` for a while; it must accept none of them.
fn hear(listener: &mut Listener, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        assert!(listener.accept()?.is_none(), "a stranger was accepted");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn strangers_on_the_port_are_dismissed_and_the_peer_is_served() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("strangers_on_the_port_are_dismissed_and_the_peer_is_served", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle);
        let mut other_version = frame(Kind::Hello, to.token);
        other_version[8] = 77;
        let mut endless = frame(Kind::Hello, to.token);
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let whole = hello(seat, &transport, &to)?;
        let speeches: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            vec![0; 4096],
            Vec::new(),
            whole[..20].to_vec(),
            whole[..whole.len() - 5].to_vec(),
            other_version,
            endless,
            frame(Kind::Hello, [9; 16]),
            frame(Kind::Commit, to.token),
            frame(Kind::Goodbye, to.token),
        ];
        let mut strangers = Vec::new();
        for speech in &speeches {
            let mut stranger = TcpStream::connect(to.address).expect("the port is open");
            stranger.write_all(speech).expect("it takes some bytes");
            strangers.push(stranger);
            hear(&mut listener, 3)?;
        }
        // Those who said something wrong are told so or cut off; those who said nothing or half are still waited for.
        hear(&mut listener, 50)?;
        let mut answers = Vec::new();
        for stranger in &mut strangers {
            stranger.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
            let mut bytes = Vec::new();
            // Reset counts as closed: that is what those get who had said more than was read.
            let closed = !stranger.read_to_end(&mut bytes).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
            let mut assembler = Assembler::default();
            assembler.handle_bytes(&bytes);
            let refusal = assembler.poll_frame().ok().flatten().filter(|f| f.kind == Kind::Refuse);
            answers.push((closed, refusal.map(|f| f.body_text())));
        }
        for (i, (closed, _)) in answers.iter().enumerate() {
            assert_eq!(*closed, ![2, 3, 4].contains(&i), "stranger {i}: {answers:?}");
        }
        assert!(answers[5].1.as_ref().is_some_and(|t| t.contains("protocol 77, this Ferrite 2")), "{answers:?}");
        assert!(answers[7].1.as_ref().is_some_and(|t| t.contains("wrong token")), "{answers:?}");
        let pair = connect(seat, &transport, &handle, &mut listener)?;
        works(seat, pair)
    })
}

#[test]
fn a_flood_of_silent_strangers_keeps_nobody_out() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_flood_of_silent_strangers_keeps_nobody_out", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let mut flood = Vec::new();
        for _ in 0..200 {
            flood.push(TcpStream::connect(address(&handle).address).expect("the port is open"));
            hear(&mut listener, 1)?;
        }
        let pair = connect(seat, &transport, &handle, &mut listener)?;
        works(seat, pair)
    })
}

#[test]
fn a_peer_that_dies_at_any_step_of_accept_leaves_the_listener_usable() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_peer_that_dies_at_any_step_of_accept_leaves_the_listener_usable", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle);
        let whole = hello(seat, &transport, &to)?;
        for cut in [0, 1, 31, 32, 40, whole.len() - 1, whole.len()] {
            let mut peer = TcpStream::connect(to.address).expect("the port is open");
            peer.write_all(&whole[..cut]).expect("sent");
            hear(&mut listener, 5)?;
            if cut == whole.len() {
                let mut head = [0; 32];
                peer.read_exact(&mut head).expect("the listener replies to a hello");
            }
            drop(peer);
            hear(&mut listener, 5)?;
        }
        let pair = connect(seat, &transport, &handle, &mut listener)?;
        works(seat, pair)
    })
}

/// What `connect` says to a listener that is played by `play`.
fn connect_to(seat: &Seat, play: impl FnOnce(TcpStream, Address) + Send) -> Result<Error> {
    let transport = plugin_transport()?;
    let socket = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let to = Address { address: socket.local_addr().expect("an address"), token: [5; 16] };
    let mut handle = Handle(to.emit());
    std::thread::scope(|scope| {
        scope.spawn(move || play(socket.accept().expect("a caller").0, to));
        let mut deadline = seat.deadline("a failing connection");
        loop {
            match transport.connect(0, &mut handle) {
                Ok(None) => deadline.idle()?,
                Ok(Some(_)) => panic!("connected to a listener that is none"),
                Err(error) => return Ok(error),
            }
        }
    })
}

/// The log line that came with the last error.
fn logged(words: &str) {
    let lines = ferrite::nccl_log::lines();
    assert!(lines.iter().any(|line| line.contains(words)), "{words:?} is not in {lines:#?}");
}

#[test]
fn a_listener_that_fails_at_any_step_of_connect_is_reported() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let setting = setting.env("FERRITE_HANDSHAKE_TIMEOUT", "2");
    alone("a_listener_that_fails_at_any_step_of_connect_is_reported", &setting, |seat| {
        let code = |error: Error| match error {
            Error::Call { code, .. } => code,
            other => panic!("{other}"),
        };
        let remote = abi::ncclRemoteError;
        assert_eq!(code(connect_to(seat, |stream, _| drop(stream))?), remote);
        logged("closed the connection");
        assert_eq!(
            code(connect_to(seat, |mut stream, _| stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").expect("sent"))?),
            remote
        );
        logged("not Ferrite's bytes");
        let old = |mut stream: TcpStream, to: Address| {
            let mut reply = frame(Kind::Reply, to.token);
            reply[8] = 9;
            stream.write_all(&reply).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(code(connect_to(seat, old)?), remote);
        logged("the peer speaks protocol 9, this Ferrite 2");
        let refuse = |mut stream: TcpStream, _: Address| {
            let mut preamble = [0; 32];
            stream.read_exact(&mut preamble).expect("a hello");
            let secret = preamble[16..].try_into().expect("16 bytes");
            let refusal = Frame::text(Kind::Refuse, secret, "no more queue pairs here");
            stream.write_all(&refusal.emit()).expect("sent");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(code(connect_to(seat, refuse)?), remote);
        logged("the listener refuses: no more queue pairs here");
        // One that says nothing may be about to: its end is what counts.
        let before = ferrite::nccl_log::lines().len();
        let silent = |stream: TcpStream, _: Address| {
            std::thread::sleep(Duration::from_secs(4));
            drop(stream);
        };
        assert_eq!(code(connect_to(seat, silent)?), remote);
        let last = ferrite::nccl_log::lines().split_off(before);
        assert!(last.iter().any(|line| line.contains("closed the connection")), "{last:#?}");
        // One whose port nobody has is not waited for.
        let port = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let to = Address { address: port.local_addr().expect("an address"), token: [5; 16] };
        drop(port);
        let (transport, mut handle) = (plugin_transport()?, Handle(to.emit()));
        let mut deadline = seat.deadline("a failing connection");
        let error = loop {
            match transport.connect(0, &mut handle) {
                Ok(comm) => assert!(comm.is_none(), "nobody is there"),
                Err(error) => break error,
            }
            deadline.idle()?;
        };
        assert_eq!(code(error), remote);
        logged("FERRITE_HANDSHAKE_TIMEOUT=2 s");
        Ok(())
    })
}

#[test]
fn a_handle_of_another_network_is_named() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_handle_of_another_network_is_named", &setting, |_| {
        let transport = plugin_transport()?;
        let error = transport.connect(0, &mut Handle([0x42; 128])).expect_err("it is no handle");
        assert!(matches!(error, Error::Call { code: abi::ncclInvalidUsage, .. }), "{error}");
        logged("set NCCL_NET=Ferrite on every rank");
        Ok(())
    })
}

#[test]
fn a_listener_closes_without_and_during_an_accept() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_listener_closes_without_and_during_an_accept", &setting, |seat| {
        let transport = plugin_transport()?;
        transport.listen(0)?.1.close()?;
        let (handle, mut listener) = transport.listen(0)?;
        let mut mine = Handle(handle.0);
        assert!(transport.connect(1, &mut mine)?.is_none());
        hear(&mut listener, 5)?;
        listener.close()?;
        // The listener may have replied before it closed; then the connection is made, and is found dead at the first use.
        let memory = Arc::new(Buffer::new(64)?);
        let mut deadline = seat.deadline("an error");
        let mut dead = None;
        loop {
            let outcome = match &dead {
                None => transport.connect(1, &mut mine).map(|comm| dead = comm),
                Some(comm) => {
                    let region = SendComm::register(comm, &memory)?;
                    comm.send(&region, 0, 8, 0).map(|request| assert!(request.is_none()))
                }
            };
            if outcome.is_err() {
                break;
            }
            deadline.idle()?;
        }
        // After an accept at once, as NCCL does: the connection stays.
        let (handle, mut listener) = transport.listen(0)?;
        let pair = connect(seat, &transport, &handle, &mut listener)?;
        listener.close()?;
        works(seat, pair)
    })
}

/// Both ways one message per round, for so many rounds.
fn traffic(seat: &mut Seat, rounds: usize) -> Result<()> {
    let transport = plugin_transport()?;
    let link = Link::open(seat, &transport, 0)?;
    let memory = Arc::new(Buffer::new(4096)?);
    let (out, into) = (link.send.register(&memory)?, link.recv.register(&memory)?);
    let mut deadline = seat.deadline("traffic");
    let mut round = || {
        let receive = posted(&mut deadline, || link.recv.receive(&into, 2048, 64, 0))?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, 64, 0))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])
    };
    let outcome = (0..rounds).try_for_each(|_| round());
    if seat.rank() == 1 {
        vanish();
    }
    let error = outcome.expect_err("the peer has died");
    assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
    logged("has died");
    // The same again, at once and without another line, on both communicators; and closing is no problem.
    let start = Instant::now();
    while link.recv.receive(&into, 2048, 64, 0).is_ok() || link.send.send(&out, 0, 64, 0).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(20), "one of the two is never told");
    }
    let lines = ferrite::nccl_log::lines().len();
    for _ in 0..1000 {
        assert!(link.recv.receive(&into, 2048, 64, 0).is_err());
        assert!(link.send.send(&out, 0, 64, 0).is_err());
    }
    assert!(ferrite::nccl_log::lines().len() <= lines + 2, "the log is flooded");
    drop((out, into));
    link.close()
}

#[test]
fn a_peer_killed_in_mid_traffic_is_reported_once_on_both_communicators() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    pair::run("a_peer_killed_in_mid_traffic_is_reported_once_on_both_communicators", &setting, |seat| {
        match seat.rank() {
            0 => traffic(seat, usize::MAX)?,
            _ => in_a_doomed_child(|| drop(traffic(seat, 1000))),
        }
        seat.barrier()
    })?;
    Ok(())
}

/// NCCL aborts a communicator with messages on their way: the other side is told, and need not wait for its device.
#[test]
fn a_receiver_closed_with_receives_outstanding_ends_the_sender() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_receiver_closed_with_receives_outstanding_ends_the_sender", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(seat, &transport, &handle, &mut listener)?;
        let memory = Arc::new(Buffer::new(8192)?);
        let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
        let mut deadline = seat.deadline("the end");
        let _never_tested = recv.receive(&into, 4096, 64, 7)?.expect("room");
        drop(into);
        recv.close()?;
        while send.send(&out, 0, 64, 0).is_ok() {
            deadline.idle()?;
        }
        logged("the peer gave up: the receiver was closed with receives outstanding");
        Ok(())
    })
}

/// A buffer is freed too early: the device refuses the write, and the line says which write, where, and the likely cause.
#[test]
fn a_failed_completion_names_both_ends_and_the_likely_cause() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_failed_completion_names_both_ends_and_the_likely_cause", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(seat, &transport, &handle, &mut listener)?;
        let (mine, theirs) = (Arc::new(Buffer::new(4096)?), Arc::new(Buffer::new(4096)?));
        let (out, into) = (send.register(&mine)?, recv.register(&theirs)?);
        let mut deadline = seat.deadline("the failure");
        let _never_arrives = recv.receive(&into, 0, 64, 7)?.expect("room");
        drop(into);
        let mut sending = posted(&mut deadline, || send.send(&out, 0, 64, 7))?;
        let failure = loop {
            match sending.test(&mut [0]) {
                Ok(done) => assert!(!done, "the buffer is gone"),
                Err(error) => break error,
            }
            deadline.idle()?;
        };
        assert!(matches!(failure, Error::Call { code: abi::ncclRemoteError, .. }), "{failure}");
        let line =
            ferrite::nccl_log::lines().into_iter().find(|l| l.contains("sending data on softrnic1")).expect("a line");
        for part in [
            "remote access error (status 10)",
            "local GID ",
            "remote GID ",
            "queue pair ",
            "peer softrnic0 port 1",
            "likely: ",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        Ok(())
    })
}

/// Every caller is heard before another has to go, so a peer in the middle of a flood gets through.
#[test]
fn a_peer_in_the_middle_of_a_flood_is_heard() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    alone("a_peer_in_the_middle_of_a_flood_is_heard", &setting, |seat| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle).address;
        let flood = || (0..100).map(|_| TcpStream::connect(to).expect("the port is open")).collect::<Vec<_>>();
        let _before = flood();
        let mut mine = Handle(handle.0);
        // Dials and says hello, in between.
        for _ in 0..3 {
            assert!(transport.connect(1, &mut mine)?.is_none());
            std::thread::sleep(Duration::from_millis(2));
        }
        let _after = flood();
        let mut deadline = seat.deadline("a connection in a flood");
        let (mut send, mut recv) = (None, None);
        while send.is_none() || recv.is_none() {
            if send.is_none() {
                send = transport.connect(1, &mut mine)?;
            }
            recv = recv.or(listener.accept()?);
            deadline.idle()?;
        }
        works(seat, (send.expect("just made"), recv.expect("just made")))
    })
}

#[test]
fn no_queue_pairs_left_is_refused_in_words_to_the_peer() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let setting = setting.env("SOFTRNIC_MAX_QP", "3");
    alone("no_queue_pairs_left_is_refused_in_words_to_the_peer", &setting, |seat| {
        let transport = plugin_transport()?;
        let mut kept = Vec::new();
        let failure = loop {
            assert!(kept.len() < 4, "the limit is not felt");
            let (handle, mut listener) = transport.listen(0)?;
            match connect(seat, &transport, &handle, &mut listener) {
                Ok(pair) => kept.push(pair),
                Err(error) => break error,
            }
        };
        assert!(matches!(failure, Error::Call { .. }), "{failure}");
        logged("ibv_create_qp(");
        // What there was still works, and what is closed can be had again.
        works(seat, kept.pop().expect("at least one fits"))?;
        let (handle, mut listener) = transport.listen(0)?;
        let pair = connect(seat, &transport, &handle, &mut listener)?;
        works(seat, pair)
    })
}

/// The plugin's own `connect`, killed after any number of calls: the listener that waits must not be harmed.
#[test]
fn a_connector_killed_after_any_call_leaves_the_listener_usable() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    pair::run("a_connector_killed_after_any_call_leaves_the_listener_usable", &setting, |seat| {
        const DEATHS: [usize; 6] = [1, 2, 3, 4, 6, 20];
        if seat.rank() == 0 {
            let transport = plugin_transport()?;
            let (handle, mut listener) = transport.listen(0)?;
            for _ in DEATHS {
                seat.exchange(&handle.0)?;
                let mut accepted = None;
                // The peer dies while this goes on; one that has committed before it died was a peer.
                for _ in 0..200 {
                    accepted = accepted.or(listener.accept()?);
                    std::thread::sleep(Duration::from_millis(1));
                }
                seat.barrier()?;
            }
            let pair = connect(seat, &transport, &handle, &mut listener)?;
            return works(seat, pair);
        }
        for calls in DEATHS {
            let theirs = seat.exchange(&[0; 128])?;
            in_a_doomed_child(|| {
                let Ok(transport) = plugin_transport() else { return };
                let mut handle = Handle([0; 128]);
                handle.0.copy_from_slice(&theirs);
                for _ in 0..calls {
                    let _ = transport.connect(0, &mut handle);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            seat.barrier()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// What a registration and a queue say where locked memory is limited.
#[test]
fn the_limit_of_locked_memory_is_named() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let setting = setting.env("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=4; reg-mr=EFAULT message=5");
    alone("the_limit_of_locked_memory_is_named", &setting, |seat| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place, then a valid limit.
        let codes = unsafe {
            let read = libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
            limit.rlim_cur = 48 << 10;
            (read, libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit))
        };
        assert_eq!(codes, (0, 0));
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, _recv) = connect(seat, &transport, &handle, &mut listener)?;
        let (mut refusals, mut held) = (0, Vec::new());
        for _ in 0..8 {
            match send.register(&Arc::new(Buffer::new(1 << 16)?)) {
                Ok(region) => held.push(region),
                Err(_) => refusals += 1,
            }
        }
        assert_eq!(refusals, 2);
        let lines = ferrite::nccl_log::lines();
        let about = |errno: &str| lines.iter().find(|l| l.contains("ibv_reg_mr") && l.contains(errno)).cloned();
        let enomem = about("Cannot allocate memory").expect("it is reported");
        assert!(enomem.contains("RLIMIT_MEMLOCK, 48 KiB here") && enomem.contains("ulimit -l unlimited"), "{enomem}");
        assert!(!about("Bad address").expect("it is reported").contains("MEMLOCK"), "{lines:?}");
        Ok(())
    })
}
