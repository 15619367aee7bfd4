//! Processes that die, and control connections that end while both processes live: each end learns
//! in time which it is, however its control connection has ended.

use crate::common::prelude::*;
use std::collections::HashSet;
use std::process::Command;
use testkit::forked::ForkedChild;
use testkit::relay::Relay;

/// By then a death is known at both ends, which follows some seconds after the last step before. It
/// takes a second or two; while an end that was dialled did not ask, it took minutes.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);

/// The TCP connections of process `pid` that have something which it has not read.
fn unread_connections(pid: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of this test's");
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let inodes: HashSet<String> = links
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let is_unread = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // Established, and bytes in its receive queue.
        words[3] == "01" && !words[4].ends_with(":00000000") && inodes.contains(words[9])
    };
    lines.filter(|line| is_unread(line)).count()
}

/// Rank 1, a child of its, has a connection each way with rank 0, and is killed; before that, if
/// that is asked for, it is stopped until it has left unread what rank 0 asks it: then its kernel
/// resets its connections.
fn a_death_is_known_at_both_ends(is_stopped: bool) -> Result<()> {
    both(talkative(&[("FERRITE_HANG_SECONDS", "1")]), |worker| {
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            let link = PeerConn::open(worker, &transport, 0)?;
            let memory = Arc::new(Buffer::new(64)?);
            let (out, into) = (link.send.register(&memory)?, link.recv.register(&memory)?);
            worker.barrier()?;
            let mut receiving: Option<Request<'_>> = None;
            let mut is_reported = [false; 2];
            let (start, mut deadline) = (Instant::now(), worker.deadline("the news at both ends"));
            while is_reported != [true; 2] {
                // The sender waits to be asked for a message, and the receiver for one.
                is_reported[0] = is_reported[0] || link.send.send(&out, 0, 8, 0).is_err();
                is_reported[1] = is_reported[1]
                    || match &mut receiving {
                        Some(request) => request.test(&mut [0]).is_err(),
                        None => match link.recv.receive(&into, 0, 8, 0) {
                            Ok(request) => {
                                receiving = request;
                                false
                            }
                            Err(_) => true,
                        },
                    };
                deadline.idle()?;
            }
            let time = start.elapsed();
            assert!(time < KNOWN_WITHIN, "known after {time:?}: {}", log());
            assert!(said(&["the peer's process has died"]), "{}", log());
            return worker.barrier();
        }
        let child = ForkedChild::start(|| {
            let Ok(transport) = plugin_transport() else { return };
            let Ok(link) = PeerConn::open(worker, &transport, 1) else { return };
            let _ = worker.barrier();
            std::mem::forget(link);
            // SAFETY: a plain number, and no arguments.
            unsafe {
                if is_stopped {
                    libc::raise(libc::SIGSTOP);
                }
                libc::pause()
            };
        });
        // The child goes through the first barrier.
        match is_stopped {
            true => wait_until("questions that are not read", || {
                (unread_connections(child.pid()) >= 2).then_some(())
            }),
            false => wait_until("the child's pause", || is_paused(child.pid()).then_some(())),
        }
        drop(child);
        worker.barrier()
    })
}

cases! { Result<()>;
    a_death_is_known_at_the_end_that_has_dialled_and_at_the_one_that_was_dialled =>
        a_death_is_known_at_both_ends(false);
    the_death_of_a_peer_that_was_stopped_before_is_known_at_both_ends =>
        a_death_is_known_at_both_ends(true);
}

/// Both processes live, whatever ends their control connection, at both ends or at one: it is
/// dialled again, and all connections resume over another one.
fn another_one_is_dialled(end: fn(&mut Relay)) -> Result<()> {
    alone(talkative(&[]), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        let pairs: Vec<_> = (0..2)
            .map(|_| connect_through(worker, &transport, &mut relay))
            .collect::<Result<_>>()?;
        for round in 1..4 {
            end(&mut relay);
            let mut deadline = worker.deadline("another control connection");
            while log().matches("is back: 2 connection(s) resumed over it").count() < round {
                relay.forward();
                deadline.idle()?;
            }
            assert_eq!(relay.clients, 1 + round, "one control connection for both");
        }
        assert!(!said(&["has died"]), "{}", log());
        pairs.into_iter().try_for_each(|(send, recv, _listener)| works(worker, (send, recv)))
    })
}

#[test]
fn a_control_connection_that_is_closed_between_two_processes_is_dialled_again() -> Result<()> {
    another_one_is_dialled(Relay::close)
}

/// The end that has dialled does not notice: the other one asks it to dial.
#[test]
fn a_control_connection_that_is_closed_at_the_end_that_was_dialled_is_dialled_again() -> Result<()>
{
    another_one_is_dialled(Relay::close_far)
}

#[test]
fn a_control_connection_that_is_reset_at_the_end_that_was_dialled_is_dialled_again() -> Result<()> {
    another_one_is_dialled(Relay::reset_far)
}

/// As a firewall does that is loaded anew, or that refuses for good. Nobody calls either end
/// `meanwhile`: its device is asked all the same.
fn a_port_that_refuses_is_no_death(meanwhile: fn()) -> Result<()> {
    alone(talkative(&[]), |worker| {
        let transport = plugin_transport()?;
        let (first, _first) = transport.listen(0)?;
        let mut relay = relay_to(&first);
        let (send, recv, _listener) = connect_through(worker, &transport, &mut relay)?;
        relay.reset();
        relay.refuse();
        meanwhile();
        relay.listen_again();
        let mut deadline = worker.deadline("another control connection");
        while !said(&["is back: 1 connection(s) resumed over it"]) {
            relay.forward();
            deadline.idle()?;
        }
        works(worker, (send, recv))
    })
}

/// A dead process was missed after 12 s although its device acknowledged.
#[test]
fn a_port_that_refuses_is_no_death_while_the_device_acknowledges() -> Result<()> {
    a_port_that_refuses_is_no_death(|| std::thread::sleep(Duration::from_secs(15)))
}

/// As is one that gets no processor. When it runs again, the last acknowledgement is old.
#[test]
fn a_port_that_refuses_is_no_death_for_a_process_that_was_stopped() -> Result<()> {
    a_port_that_refuses_is_no_death(|| {
        let stops =
            "sleep 2; for n in 1 2 3; do sleep 1; kill -STOP $0; sleep 2; kill -CONT $0; done";
        let mut shell = Command::new("sh");
        shell.args(["-c", stops, &std::process::id().to_string()]);
        assert!(shell.status().expect("a shell").success());
        std::thread::sleep(Duration::from_secs(2));
    })
}

/// Whether the main thread of process `pid` waits for a signal.
fn is_paused(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split_whitespace().next().is_some_and(|number| number.parse() == Ok(libc::SYS_pause))
}
