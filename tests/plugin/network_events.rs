//! Events of messages for a profiler of the user's, by the function that `init` is given from
//! version 10 on.

use crate::common::prelude::*;
use lab::nccl::profiler;
use lab::nccl::profiler::{Message, Told};
use lab::transport::comm::MAX_GROUP;
use lab::transport::listener::connect_and_accept;
use std::collections::BTreeSet;

/// As the verbs interface numbers them: a write with immediate data that is posted, and one that is
/// received.
const SENT: i32 = 1;
const RECEIVED: i32 = 129;

fn plugin(version: u32) -> Source {
    Source::plugin_of(dist().join("lib/libnccl-net.so"), version)
}

/// Two ends of a connection in one process, and registered memory at both.
struct Ends {
    send: SendComm,
    recv: RecvComm,
    from: Region,
    to: Region,
}

impl Ends {
    fn new(version: u32, bytes: usize) -> Result<Self> {
        Self::over(&Transport::open_with_profiler(&plugin(version))?, bytes)
    }

    fn over(transport: &Transport, bytes: usize) -> Result<Self> {
        let (mut handle, mut listener) = transport.listen(0)?;
        let mut deadline = Deadline::new("a connection", Duration::from_secs(20));
        let (send, recv) =
            connect_and_accept(transport, 0, &mut handle, &mut listener, &mut deadline, || ())?;
        let (from, to) = (
            send.register(&Arc::new(Buffer::new(bytes)?))?,
            recv.register(&Arc::new(Buffer::new(bytes)?))?,
        );
        Ok(Self { send, recv, from, to })
    }

    /// Sends as many messages as `lengths` has, which one grouped receive takes.
    fn exchange(&self, lengths: &[usize]) -> Result<()> {
        let place = |(tag, len): (usize, &usize)| RecvBuffer {
            region: &self.to,
            offset: 0,
            len: *len,
            tag: tag as i32,
        };
        let places: Vec<_> = lengths.iter().enumerate().map(place).collect();
        let received = self.recv.receive_group(&places)?.expect("room for a receive");
        for (tag, len) in lengths.iter().enumerate() {
            let mut sent = None;
            wait_until("a clear-to-send", || {
                sent = self.send.send(&self.from, 0, *len, tag as i32).expect("it is sent");
                sent.is_some()
            });
            finish(sent.expect("it has begun"));
        }
        finish(received);
        Ok(())
    }
}

fn finish(mut request: Request<'_>) {
    wait_until("the end of a request", || {
        request.test(&mut [0; MAX_GROUP]).expect("it does not fail")
    });
}

/// The events that have begun, with opcode and length; each has ended once, and nothing else has
/// been told.
#[track_caller]
fn ended() -> Vec<(i32, usize)> {
    let told = profiler::take();
    let mut begun = Vec::new();
    let mut open = Vec::new();
    for told in &told {
        match told {
            Told::Start {
                event,
                message: Message { opcode, length, queue_pair, device: 0, .. },
            } => {
                assert!(*queue_pair > 0, "{told:?}");
                open.push(*event);
                begun.push((*opcode, *length));
            }
            Told::Stop(event) => {
                let place =
                    open.iter().position(|open| open == event).expect("an event that has begun");
                open.remove(place);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_empty(), "{told:?}");
    begun
}

/// Each message has an event at either end, by the table of `version`.
fn each_message_is_told(version: u32) -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let ends = Ends::new(version, 1 << 20)?;
        assert!(said(&["the profiler another may receive an event for each message"]), "{}", log());
        ends.exchange(&[8])?;
        assert_eq!(ended(), [(RECEIVED, 8), (SENT, 8)]);
        ends.exchange(&[1 << 20, 0, 100])?;
        let lengths = [1 << 20, 0, 100];
        assert_eq!(
            ended(),
            [lengths.map(|len| (RECEIVED, len)), lengths.map(|len| (SENT, len))].concat()
        );
        for _ in 0..600 {
            ends.exchange(&[64])?;
        }
        assert_eq!(ended().len(), 1200);
        Ok(())
    })
}

#[test]
fn by_version_10_each_message_is_reported() -> Result<()> {
    each_message_is_told(10)
}

#[test]
fn by_version_11_each_message_is_reported() -> Result<()> {
    each_message_is_told(11)
}

#[test]
fn by_version_12_each_message_is_reported() -> Result<()> {
    each_message_is_told(12)
}

#[test]
fn each_message_is_reported_with_the_queue_pair_of_its_end() -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let mut numbers = BTreeSet::new();
        for ends in [Ends::new(12, 64)?, Ends::new(12, 64)?] {
            ends.exchange(&[8])?;
            numbers.extend(profiler::take().iter().filter_map(|told| match told {
                Told::Start { message, .. } => Some(message.queue_pair),
                _ => None,
            }));
        }
        assert_eq!(
            numbers.len(),
            4,
            "two connections, each with an end of its own in either direction: {numbers:?}"
        );
        Ok(())
    })
}

#[test]
fn an_event_that_the_profiler_does_not_hear_has_no_end() -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let ends = Ends::new(12, 64)?;
        profiler::hear(false);
        ends.exchange(&[8, 8])?;
        let told = profiler::take();
        assert_eq!(told.len(), 4);
        assert!(told.iter().all(|told| matches!(told, Told::Start { event: 0, .. })), "{told:?}");
        profiler::hear(true);
        ends.exchange(&[8, 8])?;
        assert_eq!(ended().len(), 4);
        Ok(())
    })
}

#[test]
fn the_events_of_requests_that_fail_end() -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let Ends { send, recv, from, to } = Ends::new(11, 64)?;
        let mut received = recv.receive(&to, 0, 8, 0)?.expect("room for a receive");
        drop(from);
        send.close()?;
        wait_until("the peer's end", || received.test(&mut [0]).is_err());
        assert_eq!(ended(), [(RECEIVED, 8)]);
        // It is not told again.
        assert!(received.test(&mut [0]).is_err());
        assert_eq!(profiler::take(), []);
        Ok(())
    })
}

/// With this setting no event is reported.
fn nothing_is_told(env: &[(&str, &str)]) -> Result<()> {
    alone(talkative(env), |_| {
        Ends::new(12, 64)?.exchange(&[8, 8])?;
        assert_eq!(profiler::take(), []);
        Ok(())
    })
}

#[test]
fn without_a_profiler_nothing_is_reported() -> Result<()> {
    nothing_is_told(&[])
}

#[test]
fn if_profilers_are_turned_off_nothing_is_reported() -> Result<()> {
    nothing_is_told(&[("NCCL_PROFILER_PLUGIN", "none")])
}

/// As those with which NCCL sets up communicators over the network.
#[test]
fn messages_that_nccl_has_no_handles_of_are_not_told() -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let ends = Ends::new(12, 64)?;
        Ends::over(&Transport::open(&plugin(12))?, 64)?.exchange(&[8, 8])?;
        assert_eq!(profiler::take(), []);
        ends.exchange(&[8])?;
        assert_eq!(ended().len(), 2);
        Ok(())
    })
}

#[test]
fn the_events_of_requests_that_are_outstanding_end_when_the_communicator_is_closed() -> Result<()> {
    alone(talkative(&[("NCCL_PROFILER_PLUGIN", "another")]), |_| {
        let Ends { send: _send, recv, to, .. } = Ends::new(12, 64)?;
        let received = recv.receive(&to, 0, 8, 0)?;
        assert!(received.is_some());
        assert!(matches!(profiler::take()[..], [Told::Start { event: 1, .. }]));
        drop(to);
        recv.close()?;
        assert_eq!(profiler::take(), [Told::Stop(1)]);
        Ok(())
    })
}
