//! The control connections between processes: how many there are, who shares them, and what their
//! ends mean.

use crate::common::connect::is_reported;
use crate::common::prelude::*;
use nccl_net::testing::proto::handle::Handle as Address;
use rustix::net::AddressFamily;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The TCP sockets and all files of this process except sockets on this host: a
/// connection that lasts for some seconds opens one.
fn files() -> (usize, usize) {
    let all: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .expect("readable")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let families: Vec<_> = all.into_iter().map(family_of).collect();
    let tcp = families
        .iter()
        .filter(|family| matches!(family, Some(AddressFamily::INET | AddressFamily::INET6)));
    (tcp.count(), families.iter().filter(|family| **family != Some(AddressFamily::UNIX)).count())
}

/// `None`: it is no socket.
fn family_of(file: RawFd) -> Option<AddressFamily> {
    // SAFETY: only its kind is asked for. If it has been closed meanwhile, there is an error, or it
    // is another file of this process.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    rustix::net::sockopt::socket_domain(file).ok()
}

#[test]
fn a_hundred_connections_share_one_tcp_connection_each_way() -> Result<()> {
    both(setting(), |worker| {
        let transport = plugin_transport()?;
        let others = files().0;
        // What a process needs once.
        PeerConn::open(worker, &transport, 0)?.close()?;
        let mut deadline = worker.deadline("the end of the first control connections");
        while files().0 != others {
            deadline.idle()?;
        }
        let before = files();
        worker.barrier()?;
        let mut links = Vec::new();
        for _ in 0..100 {
            links.push(PeerConn::open(worker, &transport, 0)?);
        }
        assert_eq!(
            files().0,
            before.0 + 3,
            "a control connection to the peer, one from it, and the port"
        );
        worker.barrier()?;
        let last = links.pop().expect("a hundred");
        links.into_iter().try_for_each(PeerConn::close)?;
        worker.barrier()?;
        assert_eq!(files().0, before.0 + 3, "as long as there is one connection");
        // It goes with the last goodbye of either end.
        worker.barrier()?;
        last.close()?;
        let mut deadline = worker.deadline("the end of the control connections");
        while files() != before {
            deadline.idle()?;
        }
        worker.barrier()
    })
}

fn dead_peers() -> usize {
    let lines = lab::nccl::debug_log::lines();
    lines
        .iter()
        .filter(|l| l.contains("sending to softrnic") && l.contains("the peer's process has died"))
        .count()
}

#[test]
fn all_connections_of_a_killed_peer_end_and_a_new_peer_is_served() -> Result<()> {
    both(setting(), |worker| {
        const COUNT: usize = 10;
        let open = |worker: &mut WorkerCtx| -> Result<Vec<PeerConn>> {
            let transport = plugin_transport()?;
            (0..COUNT).map(|_| PeerConn::open(worker, &transport, worker.rank())).collect()
        };
        if worker.rank() == 0 {
            let links = open(worker)?;
            for link in &links {
                is_reported(worker, &link.send)?;
            }
            assert_eq!(dead_peers(), COUNT, "{:#?}", lab::nccl::debug_log::lines());
            let _new = open(worker)?;
            return worker.barrier();
        }
        in_child_that_dies(|| std::mem::forget(open(worker)));
        let _new = open(worker)?;
        worker.barrier()
    })
}

#[test]
fn a_connection_is_set_up_although_the_control_connection_is_cut_before_that() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        let _kept = connect_through(worker, &transport, &mut relay)?;
        for cuts in 1..3 {
            // That it is cut may not have been noticed.
            relay.close();
            let (send, recv, _listener) = connect_through(worker, &transport, &mut relay)?;
            assert_eq!(relay.clients, 1 + cuts, "a new control connection");
            works(worker, (send, recv))?;
        }
        Ok(())
    })
}

/// A port with too many clients hangs up on some: those try again.
#[test]
fn a_client_that_is_turned_away_calls_again() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        relay.turned_away = 5;
        let begun = Instant::now();
        let (send, recv, _listener) = connect_through(worker, &transport, &mut relay)?;
        assert_eq!((relay.turned_away, relay.clients), (0, 1));
        assert!(begun.elapsed() >= 5 * Duration::from_millis(20), "it pauses after each time");
        works(worker, (send, recv))
    })
}

/// Where a control connection was there before, the port tells whether only that has ended or the
/// process.
#[test]
fn a_peer_that_dies_during_set_up_on_a_shared_control_connection_is_reported() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, _listener) = transport.listen(0)?;
        let mut relay = relay_to(&handle);
        let _first = connect_through(worker, &transport, &mut relay)?;
        let mut handle = through(&relay, &handle);
        assert!(transport.connect(1, &mut handle)?.is_none(), "nobody accepts");
        relay.close();
        relay.refuse();
        let mut deadline = worker.deadline("an error");
        while transport.connect(1, &mut handle).is_ok() {
            deadline.idle()?;
        }
        assert_logged("the listener closed the connection: its process has died");
        Ok(())
    })
}

/// What is known of one listener's token does not help with another's, and an attempt has no effect
/// on others.
#[test]
fn a_refused_connection_leaves_the_others_of_its_control_connection_alive() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        let sockets = files().0;
        let mut wrong = Handle(Address { token: [3; 16], ..address(&handle) }.emit());
        let mut deadline = worker.deadline("a refusal");
        let refusal = loop {
            match transport.connect(1, &mut wrong) {
                Ok(comm) => assert!(comm.is_none(), "nobody knows that token"),
                Err(error) => break error,
            }
            assert!(listener.accept()?.is_none());
            deadline.idle()?;
        };
        assert!(matches!(refusal, Error::Call { code: abi::ncclRemoteError, .. }), "{refusal}");
        assert_logged("the listener refuses: no such listener");
        assert_eq!(files().0, sockets, "it went over the control connection that was there");
        works(worker, pair)
    })
}

#[test]
fn two_threads_connect_and_accept_at_once() -> Result<()> {
    alone(setting(), |worker| {
        const COUNT: usize = 25;
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let first = connect(worker, &transport, &handle, &mut listener)?;
        let sockets = files().0;
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        let transport = plugin_transport()?;
                        let mut pairs = Vec::new();
                        for _ in 0..COUNT {
                            let (handle, mut listener) = transport.listen(0)?;
                            pairs.push(connect(worker, &transport, &handle, &mut listener)?);
                        }
                        made.fetch_add(COUNT, Ordering::Relaxed);
                        while made.load(Ordering::Relaxed) < 2 * COUNT {
                            std::thread::yield_now();
                        }
                        assert_eq!(files().0, sockets, "all over one control connection");
                        pairs.into_iter().try_for_each(|pair| works(worker, pair))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        works(worker, first)
    })
}
