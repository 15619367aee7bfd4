//! A peer that takes its time: `connect` waits for one that lives for as long as it takes, and what
//! nobody wants any more goes.

use crate::common::prelude::*;
use crate::common::stat::queues;
use nccl_net::testing::proto::frame::{Frame, Kind};
use nccl_net::testing::proto::handle::Handle as Address;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use testkit::port::SilentPort;

/// Longer than the time limit that [`with_short_limit`] sets, which has to suffice for what works
/// on a busy machine.
const LONG: Duration = Duration::from_secs(7);

fn with_short_limit() -> std::result::Result<Setting, Missing> {
    setting().map(|setting| setting.env("FERRITE_HANDSHAKE_TIMEOUT", "5"))
}

fn meet(
    worker: &WorkerCtx,
    transport: &Transport,
    handle: &mut Handle,
    listener: &mut Listener,
) -> Result<(SendComm, RecvComm)> {
    connect_pair(worker, transport, 1, handle, listener, || ())
}

#[test]
fn accept_may_come_long_after_connect() -> Result<()> {
    alone(with_short_limit(), |worker| {
        let transport = plugin_transport()?;
        let (mut handle, mut listener) = transport.listen(0)?;
        let start = Instant::now();
        while start.elapsed() < LONG {
            assert!(transport.connect(1, &mut handle)?.is_none(), "nobody accepts");
            std::thread::sleep(Duration::from_millis(1));
        }
        let pair = meet(worker, &transport, &mut handle, &mut listener)?;
        works(worker, pair)
    })
}

/// Neither the connecting end nor the listener gives up on the other one when that pauses in the
/// middle.
#[test]
fn a_pause_at_any_step_ends_nothing() -> Result<()> {
    alone(with_short_limit(), |worker| {
        let transport = plugin_transport()?;
        for steps in [1, 2, 4] {
            let (mut handle, mut listener) = transport.listen(0)?;
            let (mut send, mut recv) = (None, None);
            for _ in 0..steps {
                send = transport.connect(1, &mut handle)?;
                recv = listener.accept()?;
                std::thread::sleep(Duration::from_millis(5));
            }
            if send.is_some() || recv.is_some() {
                continue;
            }
            // Only the listener runs: the connecting end is given up meanwhile, and begins anew
            // when it is asked for.
            let start = Instant::now();
            while start.elapsed() < LONG {
                assert!(listener.accept()?.is_none(), "nothing was committed");
                std::thread::sleep(Duration::from_millis(1));
            }
            let pair = meet(worker, &transport, &mut handle, &mut listener)?;
            works(worker, pair)?;
        }
        Ok(())
    })
}

/// The connecting end was given up and begins anew on the same control connection, which others
/// keep, before the listener is asked: the hello of the one that is given up is not answered.
#[test]
fn a_connection_that_is_begun_anew_on_its_control_connection_gets_an_answer_of_its_own()
-> Result<()> {
    alone(with_short_limit(), |worker| {
        let transport = plugin_transport()?;
        let (other, mut other_listener) = transport.listen(0)?;
        let kept = connect(worker, &transport, &other, &mut other_listener)?;
        let before = queue_pairs();
        let (mut handle, mut listener) = transport.listen(0)?;
        assert!(transport.connect(1, &mut handle)?.is_none(), "nobody accepts");
        wait_until("the end of the first attempt", || queue_pairs_later() <= before);
        let pair = meet(worker, &transport, &mut handle, &mut listener)?;
        works(worker, pair)?;
        works(worker, kept)
    })
}

/// As NCCL sets up a ring of four: each rank posts its listener and waits for what both neighbours
/// post, before it connects and accepts. The first rank is late. So its neighbours wait for it and
/// do not accept, and the one between them, which has all it needs, waits in `connect`.
#[test]
fn a_ring_of_four_with_a_late_rank_connects() -> Result<()> {
    const RANKS: usize = 4;
    alone(with_short_limit(), |worker| {
        let (posts, boxes): (Vec<_>, Vec<_>) =
            (0..RANKS).map(|_| channel::<(usize, Handle)>()).unzip();
        let worker = &*worker;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = boxes
                .into_iter()
                .enumerate()
                .map(|(rank, inbox)| {
                    let posts = posts.clone();
                    scope.spawn(move || -> Result<()> {
                        let transport = plugin_transport()?;
                        let (handle, mut listener) = transport.listen(0)?;
                        if rank == 0 {
                            std::thread::sleep(LONG);
                        }
                        let (next, previous) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
                        for neighbour in [next, previous] {
                            posts[neighbour].send((rank, Handle(handle.0))).expect("it reads");
                        }
                        let two = [
                            inbox.recv().expect("a neighbour"),
                            inbox.recv().expect("a neighbour"),
                        ];
                        let of_next =
                            two.into_iter().find(|(from, _)| *from == next).expect("one of them");
                        let mut handle = of_next.1;
                        let (send, recv) = meet(worker, &transport, &mut handle, &mut listener)?;
                        assert!(send.close().is_ok() && recv.close().is_ok());
                        Ok(())
                    })
                })
                .collect();
            ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
        })
    })
}

/// The queue pairs of all processes on the software device.
fn queue_pairs() -> usize {
    queues("queue_pairs").len()
}

/// The same after a pause, for loops: each look takes a process.
fn queue_pairs_later() -> usize {
    std::thread::sleep(Duration::from_millis(10));
    queue_pairs()
}

/// NCCL aborts in the middle of set-up and calls nothing any more: both halves of the connection go
/// all the same.
#[test]
fn what_an_abort_leaves_behind_goes_without_another_call() -> Result<()> {
    alone(with_short_limit(), |worker| {
        let transport = plugin_transport()?;
        let (mut handle, mut listener) = transport.listen(0)?;
        wait_until("queue pairs at the connecting end", || {
            assert!(transport.connect(1, &mut handle).expect("it goes on").is_none());
            queue_pairs_later() == 1
        });
        // The connecting end is not asked any more from here on, so that it cannot commit.
        wait_until("queue pairs at both ends", || {
            assert!(listener.accept().expect("it goes on").is_none());
            queue_pairs_later() == 2
        });
        wait_until("the end of what is left", || queue_pairs_later() == 0);
        // And the listener is there still.
        let pair = meet(worker, &transport, &mut Handle(handle.0), &mut listener)?;
        works(worker, pair)
    })
}

/// A handle that leads to `to`.
fn leads_to(to: SocketAddr, handle: &Handle) -> Handle {
    Handle(Address { address: to, ..address(handle) }.emit())
}

/// The commands to the card need not wait for the TCP connection. If there is none, the queue pairs
/// go.
#[test]
fn queue_pairs_are_made_while_the_first_dial_is_under_way() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, _listener) = transport.listen(0)?;
        let silent = SilentPort::new();
        assert!(transport.connect(1, &mut leads_to(silent.address(), &handle))?.is_none());
        assert_eq!(queue_pairs(), 1, "made, although nobody has answered");
        let refusing = silent.refuse();
        let mut refused = leads_to(refusing.address(), &handle);
        let mut deadline = worker.deadline("the end of the queue pairs of the second connection");
        loop {
            assert!(transport.connect(1, &mut refused)?.is_none());
            if queue_pairs() == 1 {
                return Ok(());
            }
            deadline.idle()?;
        }
    })
}

/// From `listen` on, long before NCCL asks the listener.
#[test]
fn a_port_is_served_before_the_first_accept() -> Result<()> {
    alone(setting(), |_| {
        let transport = plugin_transport()?;
        let (handle, _listener) = transport.listen(0)?;
        let mut client = TcpStream::connect(address(&handle).address).expect("the port is open");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let hello = Frame { kind: Kind::Hello, secret: [1; 16], body: vec![9; 16] };
        client.write_all(&hello.emit()).expect("sent");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an answer and an end");
        assert!(String::from_utf8_lossy(&answer).contains("wrong token"), "{answer:?}");
        Ok(())
    })
}

/// A silent client has a deadline, also where `accept` is not called any more.
#[test]
fn a_silent_client_is_dismissed_while_nobody_accepts() -> Result<()> {
    alone(with_short_limit(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let _pair = connect(worker, &transport, &handle, &mut listener)?;
        let mut client = TcpStream::connect(address(&handle).address).expect("the port is open");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        assert_eq!(client.read(&mut [0]).expect("an end"), 0);
        Ok(())
    })
}
