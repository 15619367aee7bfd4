//! Connections that do not come about: each has a clear message, an end in bounded time, and no
//! other victim.

use crate::common::handshake::{frame, hello_on};
use crate::common::prelude::*;
use nccl_net::inspect::PROTOCOL_VERSION;
use nccl_net::testing::proto::frame::{Frame, Kind};
use nccl_net::testing::proto::handle::Handle as Address;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use testkit::port::{OwnPort, accepted};

/// Connects to the listener of `handle`, which is none, until that fails.
fn error_of(worker: &WorkerCtx, transport: &Transport, handle: &mut Handle) -> Result<Error> {
    let mut deadline = worker.deadline("a failing connection");
    loop {
        match transport.connect(0, handle) {
            Ok(comm) => assert!(comm.is_none(), "connected to a listener that is none"),
            Err(error) => return Ok(error),
        }
        deadline.idle()?;
    }
}

/// What `connect` says to a listener that is played by `play`.
fn connect_to(worker: &WorkerCtx, play: impl FnOnce(TcpStream, Address) + Send) -> Result<Error> {
    // Held to the end: a next attempt must not find the listener of another process.
    let (transport, port) = (plugin_transport()?, OwnPort::new());
    let socket = port.listen();
    let to = Address::without_gids(port.address(), [5; 16]);
    let mut handle = Handle(to.emit());
    std::thread::scope(|scope| {
        scope.spawn(move || play(accepted(&socket, "the plugin's call"), to));
        error_of(worker, &transport, &mut handle)
    })
}

/// Says `last` on `stream`, and closes it when the other end has read that and has closed it too:
/// a socket that is closed with something unread is reset, and the reset can overtake `last`.
fn say_at_last(mut stream: TcpStream, last: &[u8]) {
    stream.write_all(last).expect("sent");
    stream.shutdown(Shutdown::Write).expect("it is connected");
    // It may be reset by the other end.
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn a_listener_that_fails_at_any_step_of_connect_is_reported() -> Result<()> {
    alone(setting_with(&[("FERRITE_HANDSHAKE_TIMEOUT", "2")]), |worker| {
        let code = |error: Error| match error {
            Error::Call { code, .. } => code,
            other => panic!("{other}"),
        };
        let remote = abi::ncclRemoteError;
        assert_eq!(code(connect_to(worker, |stream, _| drop(stream))?), remote);
        assert_logged("closed the connection");
        assert_eq!(
            code(connect_to(worker, |stream, _| say_at_last(stream, b"SSH-2.0-OpenSSH_9.6\r\n"))?),
            remote
        );
        assert_logged("these bytes are not Ferrite's");
        let old = |stream: TcpStream, to: Address| {
            let mut reply = frame(Kind::Reply, to.token);
            reply[8] = 9;
            say_at_last(stream, &reply);
        };
        assert_eq!(code(connect_to(worker, old)?), remote);
        assert_logged(&format!("the peer speaks protocol 9, this Ferrite {PROTOCOL_VERSION}"));
        let refuse = |mut stream: TcpStream, _: Address| {
            let refusal =
                Frame::text(Kind::Refuse, hello_on(&mut stream).secret, "no more queue pairs here");
            say_at_last(stream, &refusal.emit());
        };
        assert_eq!(code(connect_to(worker, refuse)?), remote);
        assert_logged("the listener refuses: no more queue pairs here");
        // One that says nothing may be about to: its end is what counts.
        let before = lab::nccl::debug_log::lines().len();
        let silent = |stream: TcpStream, _: Address| {
            std::thread::sleep(Duration::from_secs(4));
            drop(stream);
        };
        assert_eq!(code(connect_to(worker, silent)?), remote);
        let last = lab::nccl::debug_log::lines().split_off(before);
        assert!(last.iter().any(|line| line.contains("closed the connection")), "{last:#?}");
        // One whose port nobody has is not waited for.
        let port = OwnPort::new();
        let to = Address::without_gids(port.address(), [5; 16]);
        let (transport, mut handle) = (plugin_transport()?, Handle(to.emit()));
        let error = error_of(worker, &transport, &mut handle)?;
        assert_eq!(code(error), remote);
        assert_logged("FERRITE_HANDSHAKE_TIMEOUT=2 s");
        Ok(())
    })
}

/// A link-local address without an interface: the kernel refuses it (EINVAL), and that does not
/// pass.
#[test]
fn an_address_that_the_kernel_refuses_is_named_at_once() -> Result<()> {
    alone(setting_with(&[("FERRITE_HANDSHAKE_TIMEOUT", "1")]), |worker| {
        let address = SocketAddr::from(([0xfe80, 0, 0, 0, 0, 0, 0, 1], 9));
        let (transport, mut handle) =
            (plugin_transport()?, Handle(Address::without_gids(address, [5; 16]).emit()));
        let error = error_of(worker, &transport, &mut handle)?;
        assert!(matches!(error, Error::Call { code: abi::ncclSystemError, .. }), "{error}");
        assert_logged("connecting to [fe80::1]:9 failed: ");
        Ok(())
    })
}

#[test]
fn a_handle_of_another_network_is_named() -> Result<()> {
    alone(setting(), |_| {
        let transport = plugin_transport()?;
        let error = transport.connect(0, &mut Handle([0x42; 128])).expect_err("it is no handle");
        assert!(matches!(error, Error::Call { code: abi::ncclInvalidUsage, .. }), "{error}");
        assert_logged("set NCCL_NET=Ferrite on every rank");
        Ok(())
    })
}

#[test]
fn a_listener_closes_without_and_during_an_accept() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        transport.listen(0)?.1.close()?;
        let (handle, mut listener) = transport.listen(0)?;
        let mut mine = Handle(handle.0);
        assert!(transport.connect(1, &mut mine)?.is_none());
        accept_nobody(&mut listener, 5)?;
        listener.close()?;
        // The listener may have replied before it closed; then the connection is made, and is found
        // dead at the first use.
        let memory = Arc::new(Buffer::new(64)?);
        let mut deadline = worker.deadline("an error");
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
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        listener.close()?;
        works(worker, pair)
    })
}

#[test]
fn no_queue_pairs_left_is_refused_in_words_to_the_peer() -> Result<()> {
    alone(setting_with(&[("SOFTRNIC_MAX_QP", "3")]), |worker| {
        let transport = plugin_transport()?;
        let mut kept = Vec::new();
        let failure = loop {
            assert!(kept.len() < 4, "the limit is not felt");
            let (handle, mut listener) = transport.listen(0)?;
            match connect(worker, &transport, &handle, &mut listener) {
                Ok(pair) => kept.push(pair),
                Err(error) => break error,
            }
        };
        assert!(matches!(failure, Error::Call { .. }), "{failure}");
        assert_logged("ibv_create_qp(");
        // What there was still works, and what is closed can be had again.
        works(worker, kept.pop().expect("at least one fits"))?;
        let (handle, mut listener) = transport.listen(0)?;
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        works(worker, pair)
    })
}

/// What a registration and a queue say where locked memory is limited.
#[test]
fn the_limit_of_locked_memory_is_named() -> Result<()> {
    let setting =
        setting_with(&[("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=4; reg-mr=EFAULT message=5")]);
    alone(setting, |worker| {
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
        let (send, _recv) = connect(worker, &transport, &handle, &mut listener)?;
        let (mut refusals, mut held) = (0, Vec::new());
        for _ in 0..8 {
            match send.register(&Arc::new(Buffer::new(1 << 16)?)) {
                Ok(region) => held.push(region),
                Err(_) => refusals += 1,
            }
        }
        assert_eq!(refusals, 2);
        let lines = lab::nccl::debug_log::lines();
        let about = |errno: &str| {
            lines.iter().find(|l| l.contains("ibv_reg_mr") && l.contains(errno)).cloned()
        };
        let enomem = about("Cannot allocate memory").expect("it is reported");
        assert!(
            enomem.contains("RLIMIT_MEMLOCK, 48 KiB here")
                && enomem.contains("ulimit -l unlimited"),
            "{enomem}"
        );
        assert!(!about("Bad address").expect("it is reported").contains("MEMLOCK"), "{lines:?}");
        Ok(())
    })
}

/// What is said of a registration that fails with this errno where the limit of locked memory is
/// not the cause.
fn likely_cause_of_refused_memory(errno: &str, words: [&str; 2]) -> Result<()> {
    let setting = require!(setting());
    let fault = format!("reg-mr={errno} message=4");
    alone(Ok(setting.env("SOFTRNIC_FAULTS", fault)), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, _recv) = connect(worker, &transport, &handle, &mut listener)?;
        let buffers =
            (0..4).map(|_| Buffer::new(4096).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let held: Vec<_> = buffers.iter().filter_map(|buffer| send.register(buffer).ok()).collect();
        assert_eq!(held.len(), 3);
        assert!(said(&["ibv_reg_mr", words[0], words[1]]), "{words:?}: {}", log());
        Ok(())
    })
}

cases! { Result<()>;
    memory_that_the_device_has_no_room_for_is_explained =>
        likely_cause_of_refused_memory("ENOMEM", ["max_mr", "CmaFree"]);
    memory_that_the_kernel_refuses_is_explained =>
        likely_cause_of_refused_memory("EPERM", ["seccomp", "RLIMIT_MEMLOCK=0"]);
}

/// The plugin's own `connect`, killed after any number of calls: the listener that waits must not
/// be harmed.
#[test]
fn a_connector_killed_after_any_call_leaves_the_listener_usable() -> Result<()> {
    both(setting(), |worker| {
        const DEATHS: [usize; 6] = [1, 2, 3, 4, 6, 20];
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            let (handle, mut listener) = transport.listen(0)?;
            for _ in DEATHS {
                worker.exchange(&handle.0)?;
                let mut accepted = None;
                // The peer dies meanwhile; one that has committed before it died was a
                // peer.
                for _ in 0..200 {
                    accepted = accepted.or(listener.accept()?);
                    std::thread::sleep(Duration::from_millis(1));
                }
                worker.barrier()?;
            }
            let pair = connect(worker, &transport, &handle, &mut listener)?;
            return works(worker, pair);
        }
        for calls in DEATHS {
            let theirs = worker.exchange(&[0; 128])?;
            in_child_that_dies(|| {
                let Ok(transport) = plugin_transport() else { return };
                let mut handle = Handle([0; 128]);
                handle.0.copy_from_slice(&theirs);
                for _ in 0..calls {
                    let _ = transport.connect(0, &mut handle);
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            worker.barrier()?;
        }
        Ok(())
    })
}
