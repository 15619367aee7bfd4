//! Many streams over one control connection that is lost: each is answered, and by one attempt.

use super::two::{Two, here, kind};
use super::*;

fn secret(number: u32) -> Secret {
    let mut secret = [7; 16];
    secret[..4].copy_from_slice(&number.to_le_bytes());
    secret
}

/// So many streams, whose control connection is then lost.
fn lost(two: &mut Two, count: u32) -> Vec<(StreamId, StreamId)> {
    let pairs = (0..count).map(|number| two.established(TOKEN, secret(number))).collect();
    two.lose();
    let _ = (two.changes(0), two.changes(1));
    pairs
}

#[test]
fn streams_that_the_peer_has_closed_cost_the_others_no_attempt() {
    let mut two = Two::new(&[TOKEN]);
    let pairs = lost(&mut two, 64);
    pairs[..63].iter().for_each(|(_, far)| two.far.close(two.now, *far));
    two.dial_again();
    let told = two.changes(0);
    assert_eq!(
        told.iter().filter(|(_, change)| matches!(change, PeerChange::Unknown(_))).count(),
        63
    );
    assert!(told.contains(&(pairs[63].0, PeerChange::Back)));
    assert_eq!(two.changes(1), [(pairs[63].1, PeerChange::Back)]);
}

#[test]
fn a_farewell_behind_a_stream_that_the_peer_has_closed_is_heard() {
    let mut two = Two::new(&[TOKEN]);
    let pairs = lost(&mut two, 2);
    two.far.close(two.now, pairs[0].1);
    pairs.iter().for_each(|(near, _)| two.near.close(two.now, *near));
    two.dial_again();
    let closed = PeerChange::Closed("the peer has closed the connection".into());
    assert_eq!(two.changes(1).pop(), Some((pairs[1].1, closed)));
    assert_eq!(two.near.counts(), [0; 4]);
}

/// Reads as the driver does: 4 KiB at a time, and nothing while too much waits to be sent.
#[test]
fn a_thousand_streams_that_the_peer_has_closed_are_all_answered() {
    let mut two = Two::new(&[TOKEN]);
    let pairs = lost(&mut two, 1000);
    pairs[1..].iter().for_each(|(_, far)| two.far.close(two.now, *far));
    two.now = two.near.poll_timeout().expect("it will dial");
    two.near.handle_timeout(two.now);
    two.connect();
    let (near, far) = two.wire.expect("it stands");
    let out = two.near.poll_transmit(near).to_vec();
    two.near.handle_transmitted(near, out.len());
    for chunk in out.chunks(4096) {
        // The kernel takes it piece by piece.
        while two.far.is_backlogged(far) {
            let back = two.far.poll_transmit(far)[..1000].to_vec();
            two.far.handle_transmitted(far, back.len());
            two.near.handle_bytes(two.now, near, &back);
        }
        two.far.handle_bytes(two.now, far, chunk);
    }
    two.pass();
    assert_eq!(two.changes(0).len(), 1000);
    assert!(two.near.streams.values().all(|stream| !stream.is_resuming));
}

#[test]
fn a_commit_that_the_owner_has_taken_is_not_implied_again() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, secret(1));
    two.near.send(near, Kind::Commit, Vec::new());
    two.near.establish(two.now, near, true);
    two.pass();
    assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit));
    two.lose();
    two.dial_again();
    two.far.establish(two.now, far, true);
    two.pass();
    assert_eq!(
        (two.changes(0).pop(), two.changes(1)),
        (Some((near, PeerChange::Back)), Vec::new())
    );
}

#[test]
fn an_unexpected_frame_ends_the_stream_at_both_ends() {
    let mut two = Two::new(&[TOKEN]);
    let (_kept, (near, far)) =
        (two.established(TOKEN, secret(1)), two.established(TOKEN, secret(2)));
    two.near.send(near, Kind::Hello, Vec::new());
    two.pass();
    assert_eq!(two.changes(1), [(far, broken("the peer sent an unexpected message (hello)"))]);
    assert_eq!(two.changes(0), [(near, broken("the peer gave up: an unexpected message (hello)"))]);
}

#[test]
fn a_client_that_knows_no_connection_is_dismissed_in_time() {
    let mut two = Two::new(&[TOKEN]);
    let client = two.far.handle_client(two.now, here());
    two.far.handle_bytes(
        two.now,
        client,
        &Resume { token: TOKEN, attempt: 1 }.frame(Kind::Resume, secret(1)).emit(),
    );
    assert_eq!(two.far.counts(), [1, 0, 0, 0]);
    two.far.handle_timeout(two.far.poll_timeout().expect("it has a deadline"));
    assert_eq!(two.far.counts(), [0; 4]);
}
