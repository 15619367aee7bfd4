//! What ends say of recovery: to whom it comes, and in which order.

use super::two::{Two, kind};
use super::*;

fn halt(secret: Secret, number: u32) -> PeerChange {
    PeerChange::Frame(Frame { kind: Kind::Halt, secret, body: number.to_le_bytes().to_vec() })
}

fn say(plane: &mut ControlPlane, stream: StreamId, number: u32) {
    plane.send(stream, Kind::Halt, number.to_le_bytes().to_vec());
}

#[test]
fn what_came_before_a_connection_is_established_is_reported_then_and_in_order() {
    let (mut two, secret) = (Two::new(&[TOKEN]), [1; 16]);
    let (near, far) = two.replied(TOKEN, secret);
    // In one piece with the commit, and at the other end before that is established as well.
    two.near.send(near, Kind::Commit, Vec::new());
    (0..3).for_each(|number| say(&mut two.near, near, number));
    two.pass();
    assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit));
    two.far.establish(two.now, far, true);
    (3..6).for_each(|number| say(&mut two.far, far, number));
    two.pass();
    two.near.establish(two.now, near, true);
    say(&mut two.near, near, 6);
    two.pass();
    assert_eq!(two.changes(1), [0, 1, 2, 6].map(|number| (far, halt(secret, number))));
    assert_eq!(two.changes(0), [3, 4, 5].map(|number| (near, halt(secret, number))));
}

/// NCCL asks for the connection hours later.
#[test]
fn of_many_frames_before_accept_the_latest_of_each_kind_is_kept() {
    let (mut two, secret) = (Two::new(&[TOKEN]), [1; 16]);
    let (near, far) = two.replied(TOKEN, secret);
    two.near.send(near, Kind::Commit, Vec::new());
    two.near.establish(two.now, near, true);
    two.near.send(near, Kind::Ports, vec![9]);
    (0..1000).for_each(|number| say(&mut two.near, near, number));
    two.pass();
    assert!(two.far.most_kept()[2] <= MAX_INBOX);
    assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit));
    two.far.establish(two.now, far, true);
    two.pass();
    let told = two.changes(1);
    assert_eq!(told[0].1, PeerChange::Frame(Frame { kind: Kind::Ports, secret, body: vec![9] }));
    assert_eq!(told.last(), Some(&(far, halt(secret, 999))));
}

#[test]
fn a_question_about_a_wait_reaches_the_stream_and_nothing_else_comes_of_it() {
    let (mut two, secret) = (Two::new(&[TOKEN]), [1; 16]);
    let (near, far) = two.established(TOKEN, secret);
    two.near.send(near, Kind::WaitQuestion, vec![7]);
    two.pass();
    let frame = Frame { kind: Kind::WaitQuestion, secret, body: vec![7] };
    assert_eq!(two.changes(1), [(far, PeerChange::Inquiry(frame))]);
    assert_eq!((two.changes(0), two.far.is_over(far)), (Vec::new(), false));
}

#[test]
fn recovery_that_has_not_been_negotiated_is_refused_as_an_unexpected_frame() {
    let mut two = Two::new(&[TOKEN]);
    let (_kept, (near, far)) = (two.established(TOKEN, [1; 16]), two.replied(TOKEN, [2; 16]));
    two.near.send(near, Kind::Commit, Vec::new());
    two.near.establish(two.now, near, false);
    two.pass();
    assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit));
    two.far.establish(two.now, far, false);
    say(&mut two.near, near, 1);
    two.pass();
    assert_eq!(two.changes(1), [(far, broken("the peer sent an unexpected message (halt)"))]);
    assert_eq!(two.changes(0), [(near, broken("the peer gave up: an unexpected message (halt)"))]);
}

/// The peer is lost at one end only, which dials again; the other one reads late what was sent
/// before.
#[test]
fn no_frame_of_a_lost_control_connection_comes_after_the_stream_is_back() {
    let (mut two, secret) = (Two::new(&[TOKEN]), [1; 16]);
    let (near, far) = two.established(TOKEN, secret);
    say(&mut two.near, near, 1);
    let (lost, stale) = two.wire.take().expect("it stands");
    let late = two.near.poll_transmit(lost).to_vec();
    two.near.handle_end(two.now, lost, End::Lost("a test".into()));
    two.dial_again();
    say(&mut two.near, near, 2);
    two.far.handle_bytes(two.now, stale, &late);
    two.pass();
    assert_eq!(two.changes(1), [(far, PeerChange::Back), (far, halt(secret, 2))]);
    // And what is said while there is no control connection comes never.
    two.lose();
    say(&mut two.near, near, 3);
    two.dial_again();
    say(&mut two.near, near, 4);
    two.pass();
    let text = PeerChange::Lost("the control connection was lost before (a test)".into());
    assert_eq!(two.changes(1), [(far, text), (far, PeerChange::Back), (far, halt(secret, 4))]);
}

#[test]
fn a_long_missing_list_is_accepted_only_where_a_stream_has_been_established() {
    for length in [4096, 4097, 24 << 10] {
        let mut two = Two::new(&[TOKEN]);
        let (near, far) = two.replied(TOKEN, [1; 16]);
        two.near.send(near, Kind::MissingList, vec![1; length]);
        two.pass();
        match two.far.poll_received(far) {
            Received::Frame(frame) => assert_eq!((frame.body.len(), length), (4096, 4096)),
            Received::End(End::Wrong(why)) => {
                assert_eq!(why, format!("a control message of {length} bytes; 4096 are allowed"))
            }
            other => panic!("{length}: {other:?}"),
        }
        let mut two = Two::new(&[TOKEN]);
        let (_, far) = two.established(TOKEN, [1; 16]);
        let (near, other) = two.established(TOKEN, [2; 16]);
        two.near.send(near, Kind::MissingList, vec![1; length]);
        // Both ends of the connection have gone when it comes: that is no harm to others.
        two.far.close(two.now, far);
        two.pass();
        let told = two.changes(1).pop().expect("a frame");
        assert!(
            matches!(&told, (at, PeerChange::Frame(frame)) if *at == other && frame.body.len() == length),
            "{told:?}"
        );
    }
}

#[test]
fn a_long_missing_list_of_a_stream_that_is_closed_already_is_no_harm_to_others() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.established(TOKEN, [1; 16]);
    let (_, waiting) = two.replied(TOKEN, [2; 16]);
    two.near.send(near, Kind::MissingList, vec![1; 20_000]);
    two.far.close(two.now, far);
    two.pass();
    assert_eq!(two.far.poll_received(waiting), Received::Nothing, "its control connection stands");
}

#[test]
fn a_peer_that_waits_to_be_dialled_again_is_dialled_at_once_when_a_port_comes_up() {
    let mut two = Two::new(&[TOKEN]);
    two.established(TOKEN, [1; 16]);
    two.lose();
    assert!(two.near.poll_timeout() > Some(two.now));
    two.near.handle_network_change(two.now);
    assert_eq!(two.near.poll_timeout(), Some(two.now));
    two.dial_again();
    assert!(matches!(two.changes(0).pop(), Some((_, PeerChange::Back))));
}

/// Bytes that the sockets of one direction hold.
const SOCKET_BYTES: usize = 32 << 10;

/// One end of a TCP connection with sockets of bounded size, driven as the driver does: it sends
/// what there is room for, and reads 4 KiB at a time unless too much waits to be sent. Whether
/// anything has moved.
fn drive(
    plane: &mut ControlPlane,
    conn: ConnId,
    incoming: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
) -> bool {
    let count = plane.poll_transmit(conn).len().min(SOCKET_BYTES - outgoing.len());
    outgoing.extend_from_slice(&plane.poll_transmit(conn)[..count]);
    plane.handle_transmitted(conn, count);
    if plane.is_backlogged(conn) || incoming.is_empty() {
        return count > 0;
    }
    let read: Vec<_> = incoming.drain(..incoming.len().min(4096)).collect();
    plane.handle_bytes(Duration::from_secs(1), conn, &read);
    true
}

#[test]
fn two_processes_with_a_missing_list_of_each_connection_for_each_other_keep_reading() {
    const CONNECTIONS: u32 = 128;
    let mut two = Two::new(&[TOKEN]);
    let secret =
        |number: u32| [&number.to_le_bytes()[..], &[7; 12]].concat().try_into().expect("16 bytes");
    let pairs: Vec<_> =
        (0..CONNECTIONS).map(|number| two.established(TOKEN, secret(number))).collect();
    for (near, far) in &pairs {
        two.near.send(*near, Kind::MissingList, vec![1; 17 << 10]);
        two.far.send(*far, Kind::MissingList, vec![2; 17 << 10]);
    }
    let (near, far) = two.wire.expect("it stands");
    let (mut there, mut back) = (Vec::new(), Vec::new());
    // Both have more to send than a control connection without streams may have waiting.
    while drive(&mut two.near, near, &mut back, &mut there)
        | drive(&mut two.far, far, &mut there, &mut back)
    {}
    two.events();
    let counts = [two.changes(0).len(), two.changes(1).len()];
    assert_eq!(counts, [CONNECTIONS as usize; 2], "missing lists that have come to either end");
}
