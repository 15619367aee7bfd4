//! An end that does not dial, and whose control connection has ended.

use super::two::Two;
use super::*;
use crate::control::redial::{DOUBT_LIMIT, LOOKS};
use crate::control::refusal::Refusal;
use crate::handshake::{DialerAddress, Resume};

fn port_of_near() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 8))
}

/// A connection whose accepting end alone has been told that the control connection has ended so,
/// and, if it can, dials: the ends of the stream, the old control connection at the near end, and
/// the new one at the far end.
fn lost_by_the_far_end(end: End) -> (Two, (StreamId, StreamId), ConnId, ConnId) {
    let mut two = Two::new(&[TOKEN]);
    two.near.set_port(Some(port_of_near()));
    let ends = two.established(TOKEN, [1; 16]);
    let (near, far) = two.wire.take().expect("it stands");
    two.far.handle_end(two.now, far, end);
    two.events();
    assert!(matches!(two.changes(1)[..], [(stream, PeerChange::Lost(_))] if stream == ends.1));
    two.now = two.far.poll_timeout().expect("it dials");
    two.far.handle_timeout(two.now);
    let asked = two.events().expect("it dials");
    (two, ends, near, asked)
}

/// The request comes through; the near end's number of that control connection.
fn ask(two: &mut Two, asked: ConnId) -> ConnId {
    let client = two.near.handle_client(two.now, SocketAddr::from(([10, 0, 0, 1], 99)));
    two.far.handle_connected(two.now, asked);
    let request = two.far.poll_transmit(asked).to_vec();
    two.far.handle_transmitted(asked, request.len());
    two.near.handle_bytes(two.now, client, &request);
    let answer = two.near.poll_transmit(client).to_vec();
    two.near.handle_transmitted(client, answer.len());
    two.far.handle_bytes(two.now, asked, &answer);
    two.events();
    client
}

#[test]
fn a_peer_that_lives_dials_when_it_is_asked_to_although_it_has_noticed_no_end() {
    for end in [End::Closed, End::Lost("a test".into())] {
        let (mut two, (near, far), _, asked) = lost_by_the_far_end(end);
        let client = ask(&mut two, asked);
        assert!(matches!(two.changes(0)[..], [(stream, PeerChange::Lost(_))] if stream == near));
        two.dial_again();
        assert_eq!(
            (two.changes(0), two.changes(1)),
            (vec![(near, PeerChange::Back)], vec![(far, PeerChange::Back)])
        );
        assert_eq!(two.far.counts(), [1, 1, 0, 0], "it closes the one over which it has asked");
        two.near.handle_end(two.now, client, End::Closed);
        assert_eq!(two.near.counts(), [1, 1, 1, 0]);
    }
}

#[test]
fn a_peer_that_has_dialled_already_does_not_when_it_is_asked_late() {
    let (mut two, (near, far), old, asked) = lost_by_the_far_end(End::Closed);
    two.near.handle_end(two.now, old, End::Closed);
    two.events();
    two.dial_again();
    assert!(
        two.changes(0).contains(&(near, PeerChange::Back))
            && two.changes(1) == [(far, PeerChange::Back)]
    );
    let client = two.near.handle_client(two.now, here());
    let late = Resume { token: TOKEN, attempt: 0 }.frame(Kind::Redial, [1; 16]);
    two.near.handle_bytes(two.now, client, &late.emit());
    two.events();
    assert_eq!((two.changes(0), two.wire.is_some()), (Vec::new(), true));
    let _ = asked;
}

#[test]
fn a_peer_that_does_not_know_the_connection_says_so_when_it_is_asked() {
    let (mut two, (near, far), _, asked) = lost_by_the_far_end(End::Closed);
    two.near.fail(near, "by itself");
    two.near.close(two.now, near);
    two.events();
    ask(&mut two, asked);
    assert!(matches!(two.changes(1)[..], [(stream, PeerChange::Unknown(_))] if stream == far));
    assert_eq!(two.far.counts()[0], 0, "nothing is asked any more");
}

#[test]
fn a_peer_whose_port_refuses_is_dead_for_the_end_that_was_dialled_too() {
    let (mut two, (_, far), _, mut asked) = lost_by_the_far_end(End::Lost("reset".into()));
    let lost = two.now;
    while !two.changes[1].iter().any(|(_, change)| matches!(change, PeerChange::Broken(_))) {
        two.far.handle_end(two.now, asked, End::Unreachable(REFUSED));
        two.events();
        let Some(due) = two.far.poll_timeout() else { break };
        two.now = due;
        two.far.handle_timeout(two.now);
        asked = two.events().unwrap_or(asked);
    }
    assert_eq!(
        two.changes(1),
        [(far, PeerChange::Doubted), (far, broken("the peer's process has died"))]
    );
    assert!(two.now - lost < Duration::from_secs(3));
}

/// The control connection over which it is asked stands until it has dialled.
#[test]
fn a_peer_that_dies_after_it_was_asked_is_asked_again() {
    let (mut two, (_, far), _, asked) = lost_by_the_far_end(End::Closed);
    ask(&mut two, asked);
    two.events();
    assert_eq!(two.far.poll_timeout(), None);
    two.far.handle_end(two.now, asked, End::Closed);
    two.events();
    two.now = two.far.poll_timeout().expect("it dials");
    two.far.handle_timeout(two.now);
    assert!(two.events().is_some() && two.far.streams[&far].phase == Phase::Established);
}

/// As that of an earlier release.
#[test]
fn a_peer_that_has_told_no_port_is_dead_in_time_when_it_has_closed_and_its_device_is_silent() {
    for is_alive in [false, true] {
        let mut two = Two::new(&[TOKEN]);
        let (_, far) = two.established(TOKEN, [1; 16]);
        let (_, conn) = two.wire.take().expect("it stands");
        two.far.handle_end(two.now, conn, End::Closed);
        two.events();
        assert!(two.changes(1).contains(&(far, PeerChange::Doubted)));
        let closed = two.now;
        while two.now < closed + DOUBT_LIMIT && two.changes[1].is_empty() {
            two.now = two.far.poll_timeout().expect("it looks again");
            if is_alive {
                two.far.handle_acknowledged(two.now, far);
            }
            two.far.handle_timeout(two.now);
            two.events();
        }
        assert_eq!(two.now, closed + DOUBT_LIMIT);
        let told = two.changes(1);
        assert_eq!(told.is_empty(), is_alive, "{told:?}");
        if is_alive {
            two.far.handle_acknowledged(two.now + Duration::from_secs(499), far);
            two.now += Duration::from_secs(500);
            two.far.handle_timeout(two.now);
            two.events();
            assert_eq!(two.changes(1), [], "its device has acknowledged until now");
            for _ in 0..LOOKS {
                assert_eq!(two.changes(1), []);
                two.now = two.far.poll_timeout().expect("it looks again");
                two.far.handle_timeout(two.now);
                two.events();
            }
            assert_eq!(two.changes(1), [(far, broken("the peer's process has died"))]);
        }
    }
}

#[test]
fn a_process_tells_its_port_once_on_each_control_connection_and_no_nonsense_is_called() {
    let mut two = Two::new(&[TOKEN]);
    for (address, is_taken) in [("0.0.0.0:7", false), ("10.0.0.9:0", false), ("10.0.0.9:7", true)] {
        let (_, far) = two.established(TOKEN, [address.len() as u8 + u8::from(is_taken); 16]);
        let conn = two.far.streams[&far].conn.expect("it stands");
        let caller = DialerAddress { address: address.parse().expect("an address") };
        two.far.handle_bytes(two.now, conn, &caller.frame().emit());
        assert_eq!(
            two.far.conns[&conn].caller,
            Some(caller.address).filter(|_| is_taken),
            "{address}"
        );
    }
}

/// Where a control connection is dialled for several of its connections, the first one may be no
/// more at the peer.
#[test]
fn a_port_that_is_reported_after_a_connection_that_is_no_more_ends_no_other_one() {
    let mut two = Two::new(&[TOKEN]);
    let client = two.far.handle_client(two.now, SocketAddr::from(([10, 0, 0, 1], 99)));
    let gone = Resume { token: TOKEN, attempt: 1 }.frame(Kind::Resume, [9; 16]).emit();
    let told = DialerAddress { address: port_of_near() }.frame().emit();
    two.far.handle_bytes(two.now, client, &[&told[..], &gone, &told].concat());
    let refusal =
        Frame::text(Kind::Refuse, [9; 16], &Refusal::UnknownConnection.to_string()).emit();
    assert_eq!(
        two.far.poll_transmit(client).to_vec(),
        refusal,
        "and nothing that is for all connections"
    );
}

/// Wherever the control connection is cut.
#[test]
fn a_peer_whose_hello_or_resumption_has_come_can_be_called() {
    for resumes in [false, true] {
        let mut two = Two::new(&[TOKEN]);
        if resumes {
            two.established(TOKEN, [1; 16]);
            two.lose();
            two.now = two.near.poll_timeout().expect("it will dial");
        }
        two.near.set_port(Some(port_of_near()));
        if resumes {
            two.near.handle_timeout(two.now);
        } else {
            let near = two.near.open(two.now, here(), TOKEN, [1; 16]);
            two.near.send(near, Kind::Hello, TOKEN.to_vec());
        }
        let conn = two.events().expect("it dials");
        two.near.handle_connected(two.now, conn);
        let client = two.far.handle_client(two.now, SocketAddr::from(([10, 0, 0, 2], 99)));
        let is_known =
            |two: &Two| two.far.streams.values().any(|stream| stream.conn == Some(client));
        for byte in two.near.poll_transmit(conn).to_vec() {
            two.far.handle_bytes(two.now, client, &[byte]);
            if is_known(&two) {
                break;
            }
        }
        let callers: Vec<_> = two.far.streams.values().map(|stream| stream.caller).collect();
        assert_eq!(callers, [Some(port_of_near())], "resumes: {resumes}");
    }
}

/// A process that has no port any more may still be called where it was before.
#[test]
fn a_peer_that_tells_no_port_on_another_control_connection_keeps_the_one_that_is_known() {
    let mut two = Two::new(&[TOKEN]);
    two.near.set_port(Some(port_of_near()));
    let (_, far) = two.established(TOKEN, [1; 16]);
    two.near.set_port(None);
    let conn = two.far.streams[&far].conn;
    // The far end does not notice that the old one is lost.
    let (near, _) = two.wire.take().expect("it stands");
    two.near.handle_end(two.now, near, End::Lost("a test".into()));
    two.dial_again();
    let stream = &two.far.streams[&far];
    assert!(stream.conn.is_some() && stream.conn != conn);
    assert_eq!(stream.caller, Some(port_of_near()));
}
