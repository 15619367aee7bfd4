//! Control connections that are reset, and peers that die when nobody can say so.

use crate::common::connect::is_reported;
use crate::common::prelude::*;
use crate::transport::{sum, with_data};
use nccl_net::testing::proto::handle::HANDLE_BYTES;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use testkit::relay::Relay;

/// A reset says nothing about the peer: its process answers when it is dialled again, and all
/// connections resume over the new line, which both ends use.
#[test]
fn a_control_connection_that_is_reset_is_dialled_again_and_ends_no_connection() -> Result<()> {
    alone(talkative(&[]), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        let mut pairs: Vec<_> = (0..4)
            .map(|_| connect_through(worker, &transport, &mut relay))
            .collect::<Result<_>>()?;
        for round in 1..4 {
            relay.reset();
            let mut deadline = worker.deadline("another control connection");
            while log().matches("is back: 4 connection(s) resumed over it").count() < round {
                relay.forward();
                deadline.idle()?;
            }
            assert_eq!(relay.clients, 1 + round, "one control connection for all four");
        }
        // What either end says comes to the other one, over the last control connection.
        let (send, recv, _listener) = pairs.pop().expect("four");
        send.close()?;
        let memory = Arc::new(Buffer::new(64)?);
        let region = recv.register(&memory)?;
        let mut deadline = worker.deadline("a goodbye of the sender");
        while recv.receive(&region, 0, 8, 0).is_ok() {
            relay.forward();
            deadline.idle()?;
        }
        let (send, recv, _listener) = pairs.pop().expect("three");
        recv.close()?;
        let region = send.register(&memory)?;
        let mut deadline = worker.deadline("a goodbye of the receiver");
        while send.send(&region, 0, 8, 0).is_ok() {
            relay.forward();
            deadline.idle()?;
        }
        assert_eq!(log().matches(": the peer has closed the connection").count(), 2, "{}", log());
        assert!(!said(&["has died"]), "{}", log());
        // And the rest carries data, now and after another reset.
        let (send, recv, _listener) = pairs.pop().expect("two");
        works(worker, (send, recv))?;
        relay.reset();
        let (send, recv, _listener) = pairs.pop().expect("one");
        works(worker, (send, recv))
    })
}

/// The relay has it, and does not pass it on: there is no control connection until the end.
#[test]
fn messages_resume_while_there_is_no_control_connection() -> Result<()> {
    const BYTES: usize = 4096;
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        let (send, recv, _listener) = connect_through(worker, &transport, &mut relay)?;
        relay.reset();
        let memory = Arc::new(Buffer::new(BYTES)?);
        let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
        let mut deadline = worker.deadline("messages");
        let mut message = || {
            let receive = posted(&mut deadline, || recv.receive(&into, 0, BYTES, 0))?;
            let sending = posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?;
            finished(&mut deadline, sending, &mut [0])?;
            finished(&mut deadline, receive, &mut [0])
        };
        // The sender asks its device whether the peer's still acknowledges once it knows of the
        // reset: that is one more request.
        let mut sent = 0;
        while sum(&with_data(), "requests") <= sent {
            message()?;
            sent += 1;
        }
        (0..20).try_for_each(|_| message())
    })
}

/// Connects to a listener of the peer's by way of `relay`, if there is one.
fn dial(
    worker: &WorkerCtx,
    transport: &Transport,
    mut handle: Handle,
    relay: Option<&mut Relay>,
) -> Result<SendComm> {
    let mut relay = relay;
    let mut deadline = worker.deadline("a connection to the peer");
    loop {
        if let Some(relay) = &mut relay {
            relay.forward();
        }
        if let Some(send) = transport.connect(worker.rank(), &mut handle)? {
            return Ok(send);
        }
        deadline.idle()?;
    }
}

fn answer(
    worker: &WorkerCtx,
    mut listener: Listener,
    relay: Option<&mut Relay>,
) -> Result<RecvComm> {
    let mut relay = relay;
    let mut deadline = worker.deadline("a connection from the peer");
    loop {
        if let Some(relay) = &mut relay {
            relay.forward();
        }
        if let Some(recv) = listener.accept()? {
            return Ok(recv);
        }
        deadline.idle()?;
    }
}

fn handle_of_peer(worker: &mut WorkerCtx) -> Result<Handle> {
    let bytes = worker.receive_bytes(HANDLE_BYTES)?;
    Ok(Handle(bytes.try_into().expect("a whole handle")))
}

/// The peer, a child of rank 1, dies, and the control connection to it is reset: nobody answers
/// when it is dialled again. The device of rank 0 reports an error although rank 0 has no writes in
/// flight. `play` waits until the peer has died before it resets the connection: a probe that the
/// peer's device still acknowledges is followed by the next one only after 10 s.
fn told_by_the_device(recovery: (&str, &str), play: Play, peer: Peer) -> Result<()> {
    let setting = require!(setting());
    let setting = setting
        .env("NCCL_IB_TIMEOUT", "10")
        .env("NCCL_IB_RETRY_CNT", "3")
        .env(recovery.0, recovery.1);
    pair(&setting, |worker| {
        if worker.rank() == 1 {
            in_child_that_dies(|| {
                let Ok(transport) = plugin_transport() else { return };
                let Ok(end) = peer(worker, &transport) else { return };
                let _ = worker.barrier();
                // Nothing is closed in good order.
                std::mem::forget(end);
            });
            return worker.barrier();
        }
        play(worker, &plugin_transport()?)?;
        let lines = lab::nccl::debug_log::lines();
        assert!(
            said(&["probing the peer", "the control connection was lost before"]),
            "{lines:#?}"
        );
        Ok(())
    })?;
    Ok(())
}

/// Waits until the peer is connected, and then until it has died.
fn wait_for_death(worker: &mut WorkerCtx) -> Result<()> {
    worker.barrier()?;
    worker.barrier()
}

/// Without recovery that ends the connection; with it, when nobody has answered for so long.
const WITHOUT_RECOVERY: (&str, &str) = ("FERRITE_FAILOVER", "0");
const WITH_RECOVERY: (&str, &str) = ("FERRITE_GIVE_UP", "2");

type Play = fn(&mut WorkerCtx, &Transport) -> Result<()>;
type Peer = fn(&mut WorkerCtx, &Transport) -> Result<(Option<SendComm>, Option<RecvComm>)>;

cases! { Result<()>;
    /// Rank 0 waits for two messages in one receive, and one arrives. That shows that the
    /// clear-to-send has arrived: it is not what fails for want of an acknowledgement.
    a_receiver_without_a_control_connection_is_reported_by_its_device =>
        a_receiver_is_reported_by_its_device(WITHOUT_RECOVERY);
    a_receiver_without_a_control_connection_gives_up_its_recovery =>
        a_receiver_is_reported_by_its_device(WITH_RECOVERY);
}

fn a_receiver_is_reported_by_its_device(recovery: (&str, &str)) -> Result<()> {
    const SENT: i32 = 1;
    const NOT_SENT: i32 = 2;
    let play: Play = |worker, transport| {
        let (handle, listener) = transport.listen(0)?;
        let mut relay = relay_to(&handle);
        worker.send_bytes(&through(&relay, &handle).0)?;
        let recv = answer(worker, listener, Some(&mut relay))?;
        let memory = Arc::new(Buffer::new(64)?);
        let region = recv.register(&memory)?;
        let mut deadline = worker.deadline("word from the device");
        let buffers = [(0, SENT), (8, NOT_SENT)].map(|(offset, tag)| RecvBuffer {
            region: &region,
            offset,
            len: 8,
            tag,
        });
        let mut receiving = posted(&mut deadline, || recv.receive_group(&buffers))?;
        worker.barrier()?;
        // The message that has come is polled: from now on there is nothing to poll.
        assert!(!receiving.test(&mut [0; 2])?);
        worker.barrier()?;
        relay.reset();
        relay.refuse();
        while receiving.test(&mut [0; 2]).is_ok() {
            deadline.idle()?;
        }
        Ok(())
    };
    let peer: Peer = |worker, transport| {
        let handle = handle_of_peer(worker)?;
        let send = dial(worker, transport, handle, None)?;
        let region = send.register(&Arc::new(Buffer::new(64)?))?;
        let mut deadline = worker.deadline("a message to the receiver");
        let sending = posted(&mut deadline, || send.send(&region, 0, 8, SENT))?;
        finished(&mut deadline, sending, &mut [0])?;
        Ok((Some(send), None))
    };
    told_by_the_device(recovery, play, peer)
}

cases! { Result<()>;
    a_sender_without_a_control_connection_is_reported_by_its_device =>
        a_sender_is_reported_by_its_device(WITHOUT_RECOVERY);
    a_sender_without_a_control_connection_gives_up_its_recovery =>
        a_sender_is_reported_by_its_device(WITH_RECOVERY);
}

fn a_sender_is_reported_by_its_device(recovery: (&str, &str)) -> Result<()> {
    let play: Play = |worker, transport| {
        let handle = handle_of_peer(worker)?;
        let mut relay = relay_to(&handle);
        let diverted = through(&relay, &handle);
        let send = dial(worker, transport, diverted, Some(&mut relay))?;
        // The peer waits for the commit.
        let mut deadline = worker.deadline("the commit to pass");
        while !relay.is_quiet() {
            relay.forward();
            deadline.idle()?;
        }
        wait_for_death(worker)?;
        // From here on the port takes clients, and nobody answers them.
        relay.reset();
        let memory = Arc::new(Buffer::new(64)?);
        let region = send.register(&memory)?;
        let mut deadline = worker.deadline("word from the device");
        while send.send(&region, 0, 8, 0).is_ok() {
            deadline.idle()?;
        }
        Ok(())
    };
    let peer: Peer = |worker, transport| {
        let (handle, listener) = transport.listen(0)?;
        worker.send_bytes(&handle.0)?;
        Ok((None, Some(answer(worker, listener, None)?)))
    };
    told_by_the_device(recovery, play, peer)
}

/// A worker that the peer has forked, as data loaders are, outlives it: that keeps nobody from
/// hearing of the death.
#[test]
fn a_peer_that_dies_before_its_forked_worker_is_reported_all_the_same() -> Result<()> {
    both(setting(), |worker| {
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            let link = PeerConn::open(worker, &transport, 0)?;
            worker.barrier()?;
            is_reported(worker, &link.send)?;
            let memory = Arc::new(Buffer::new(64)?);
            let region = link.recv.register(&memory)?;
            let mut deadline = worker.deadline("an error of the receiver");
            while link.recv.receive(&region, 0, 8, 0).is_ok() {
                deadline.idle()?;
            }
            return worker.barrier();
        }
        let (here, workers) = UnixStream::pair().expect("a pair");
        in_child_that_dies(|| {
            let Ok(transport) = plugin_transport() else { return };
            let Ok(link) = PeerConn::open(worker, &transport, 1) else { return };
            let mut byte = [0_u8];
            // SAFETY: the child has only this one thread, makes only system calls,
            // and ends below.
            if unsafe { libc::fork() } == 0 {
                // SAFETY: plain numbers; a valid byte. The read ends when rank 1 closes its end.
                unsafe {
                    libc::close(here.as_raw_fd());
                    libc::read(workers.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                    libc::_exit(0);
                }
            }
            let _ = worker.barrier();
            std::mem::forget(link);
        });
        let told = worker.barrier();
        drop(here);
        told
    })
}
