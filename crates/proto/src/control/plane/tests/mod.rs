//! What a control plane does at each step, and what has gone wrong before.

mod many;
mod recovery;
mod requests;
mod two;
mod waiting;

use super::*;
use crate::control::acceptor::MAX_PENDING;
use crate::control::conn::MAX_BACKLOG;
use crate::control::refusal::Refusal;
use crate::control::stream::MAX_INBOX;
use crate::frame::Assembler;
use crate::handshake::Resume;
use two::{Two, here, kind};

const REFUSED: i32 = 111;
const TOKEN: Token = [1; 16];

fn broken(why: &str) -> PeerChange {
    PeerChange::Broken(why.into())
}

#[test]
fn a_reply_to_a_hello_that_was_given_up_is_not_taken_for_the_next_ones() {
    let mut two = Two::new(&[TOKEN]);
    let _kept = two.established(TOKEN, [9; 16]);
    let given_up = two.near.open(two.now, here(), TOKEN, [1; 16]);
    two.near.send(given_up, Kind::Hello, TOKEN.to_vec());
    two.pass();
    let (old, _) = two.far.fetch(&TOKEN).expect("it has come");
    // The answer and the goodbye cross.
    two.far.send(old, Kind::Reply, b"old".to_vec());
    two.near.close(two.now, given_up);
    let next = two.near.open(two.now, here(), TOKEN, [2; 16]);
    two.near.send(next, Kind::Hello, TOKEN.to_vec());
    two.pass();
    assert_eq!(two.near.poll_received(next), Received::Nothing);
    let (new, _) = two.far.fetch(&TOKEN).expect("it has come");
    two.far.send(new, Kind::Reply, b"new".to_vec());
    two.pass();
    assert!(matches!(two.near.poll_received(next), Received::Frame(frame) if frame.body == b"new"));
}

/// The commit has been read, or is lost with the connection: that the peer continues shows that it
/// has committed.
#[test]
fn a_connection_that_is_lost_between_commit_and_accept_resumes() {
    for commit_arrives in [true, false] {
        let mut two = Two::new(&[TOKEN]);
        let (near, far) = two.replied(TOKEN, [1; 16]);
        two.near.send(near, Kind::Commit, Vec::new());
        two.near.establish(two.now, near, true);
        if commit_arrives {
            two.pass();
        }
        two.lose();
        assert!(!two.far.is_over(far));
        assert_eq!(
            two.far.poll_timeout().is_none(),
            commit_arrives,
            "one that has committed has no limit"
        );
        two.dial_again();
        assert_eq!(
            two.changes(0).pop(),
            Some((near, PeerChange::Back)),
            "commit arrives: {commit_arrives}"
        );
        assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit));
        two.far.establish(two.now, far, true);
        assert_eq!((two.far.poll_received(far), two.changes(1)), (Received::Nothing, Vec::new()));
    }
}

/// One that never comes back after the reply is not kept for ever.
#[test]
fn a_peer_that_is_lost_before_its_commit_has_as_long_as_a_client_to_come_back() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, [1; 16]);
    two.near.close(two.now, near);
    let conn = *two.far.conns.keys().next().expect("it stands");
    two.far.handle_end(two.now, conn, End::Lost("a test".into()));
    assert!(!two.far.is_over(far));
    let until = two.far.poll_timeout().expect("not for ever");
    assert_eq!(until, two.now + Duration::from_secs(30));
    two.far.handle_timeout(until);
    assert!(
        two.far.is_over(far) && matches!(two.far.poll_received(far), Received::End(End::Lost(_)))
    );
}

#[test]
fn two_refusals_are_no_death_and_a_third_after_a_second_is() {
    let mut two = Two::new(&[TOKEN]);
    let (near, _) = two.established(TOKEN, [1; 16]);
    two.lose();
    two.changes(0);
    let start = two.now;
    let mut refusals = 0;
    while two.changes[0].len() < 2 {
        two.now = two.near.poll_timeout().expect("it dials again");
        two.near.handle_timeout(two.now);
        let conn = two.events().expect("it dials");
        two.near.handle_end(two.now, conn, End::Unreachable(REFUSED));
        two.events();
        refusals += 1;
    }
    assert_eq!(
        two.changes(0),
        [(near, PeerChange::Doubted), (near, broken("the peer's process has died"))]
    );
    assert!(
        refusals >= 3 && two.now - start >= Duration::from_secs(1),
        "{refusals} in {:?}",
        two.now - start
    );
    assert_eq!(two.near.poll_timeout(), None, "nobody dials a dead peer");
}

/// When it runs again, it may dial before it has asked the peer's device, and before it has seen
/// what that had acknowledged.
#[test]
fn a_process_that_is_often_stopped_calls_no_peer_dead_whose_device_acknowledges() {
    for stopped in [0, 700, 1000, 2000, 4000, 6000].map(Duration::from_millis) {
        let mut two = Two::new(&[TOKEN]);
        let (near, _) = two.established(TOKEN, [1; 16]);
        two.lose();
        two.changes(0);
        let refuse = |two: &mut Two, stopped: Duration, acknowledges: bool| {
            two.now = two.near.poll_timeout().expect("it dials again");
            if acknowledges && stopped.is_zero() {
                two.near.handle_acknowledged(two.now - Duration::from_millis(1), near);
            }
            two.now += stopped;
            two.near.handle_timeout(two.now);
            let conn = two.events().expect("it dials");
            two.near.handle_end(two.now, conn, End::Unreachable(REFUSED));
            two.events();
            if acknowledges {
                two.near.handle_acknowledged(two.now + Duration::from_millis(1), near);
            }
            two.changes(0)
        };
        assert_eq!(refuse(&mut two, Duration::ZERO, true), [(near, PeerChange::Doubted)]);
        for n in 0..60 {
            assert_eq!(
                refuse(&mut two, stopped * (n % 3 / 2), true),
                [],
                "stopped for {stopped:?}, attempt {n}"
            );
        }
        let (acknowledged, mut changes) = (two.now, Vec::new());
        while changes.is_empty() {
            changes = refuse(&mut two, Duration::ZERO, false);
        }
        assert_eq!(changes, [(near, broken("the peer's process has died"))]);
        assert!(two.now - acknowledged < Duration::from_secs(6), "{:?}", two.now - acknowledged);
    }
}

/// One of two connections is lost later: its device is asked before the peer counts as dead.
#[test]
fn a_connection_that_is_lost_while_the_port_refuses_has_time_to_find_out_that_the_peer_lives() {
    for is_alive in [false, true] {
        let mut two = Two::new(&[TOKEN]);
        let streams = [[1; 16], [2; 16]].map(|secret| two.established(TOKEN, secret).0);
        let (conn, _) = two.wire.take().expect("it stands");
        // As if each had its own.
        let other = two.near.add_conn(here(), Stage::Accepted);
        two.near.streams.get_mut(&streams[1]).expect("it is there").conn = Some(other);
        two.near.conns.get_mut(&conn).expect("it is there").detach(&[2; 16]);
        two.near.conns.get_mut(&other).expect("it is there").attach([2; 16], streams[1]);
        two.near.handle_end(two.now, conn, End::Lost("a test".into()));
        let start = two.now;
        let refuse = |two: &mut Two| {
            two.now = two.near.poll_timeout().expect("it dials again");
            if is_alive && two.now > start + Duration::from_secs(1) {
                two.near.handle_acknowledged(two.now, streams[1]);
            }
            two.near.handle_timeout(two.now);
            let conn = two.events().expect("it dials");
            if two.now > start + Duration::from_secs(1) {
                two.near.handle_end(two.now, other, End::Lost("a test".into()));
            }
            two.near.handle_end(two.now, conn, End::Unreachable(REFUSED));
            two.events();
        };
        while two.now < start + Duration::from_secs(1) {
            refuse(&mut two);
        }
        assert!(
            !two.changes(0).iter().any(|(_, change)| matches!(change, PeerChange::Broken(_))),
            "{is_alive}"
        );
        (0..5).for_each(|_| {
            if two.near.poll_timeout().is_some() {
                refuse(&mut two)
            }
        });
        let ended = two
            .changes(0)
            .iter()
            .filter(|(_, change)| matches!(change, PeerChange::Broken(_)))
            .count();
        assert_eq!(ended, if is_alive { 0 } else { 2 });
    }
}

/// However many connections there were.
#[test]
fn a_thousand_connections_are_dialled_for_once_and_warned_of_once() {
    const MANY: usize = 1000;
    let mut two = Two::new(&[TOKEN]);
    for n in 0..MANY as u32 {
        let mut secret = [7; 16];
        secret[..4].copy_from_slice(&n.to_le_bytes());
        two.established(TOKEN, secret);
    }
    for round in 0..3 {
        two.lose();
        assert_eq!([two.changes(0).len(), two.changes(1).len()], [MANY; 2]);
        assert!(two.near.poll_timeout().expect("it dials again") > two.now, "after a pause");
        // That it dials no more than once is checked where it does.
        two.dial_again();
        assert_eq!([two.changes(0).len(), two.changes(1).len()], [MANY; 2], "they are back");
        assert_eq!(two.near.poll_timeout(), None, "nothing is left to do");
        let back = format!("is back: {MANY} connection(s)");
        let told = two.log[0]
            .iter()
            .filter(|(level, text)| *level == Level::Info && text.contains(&back))
            .count();
        assert_eq!(told, round + 1);
    }
    for side in 0..2 {
        let warnings = two.warnings(side);
        assert!(
            warnings.len() == 1 && warnings[0].contains("Data of 1000 connection(s)"),
            "{warnings:?}"
        );
    }
}

/// Clients that have ended do not count among those who wait.
#[test]
fn clients_that_have_gone_keep_no_other_from_a_listener() {
    let mut two = Two::new(&[TOKEN]);
    for n in 0..3 * MAX_PENDING as u8 {
        let client = two.near.open(two.now, here(), TOKEN, [n; 16]);
        if two.wire.is_none() {
            two.connect();
        }
        two.near.send(client, Kind::Hello, TOKEN.to_vec());
        two.pass();
        assert_eq!(two.near.poll_received(client), Received::Nothing, "client {n} is not refused");
        two.near.close(two.now, client);
        two.pass();
    }
    assert!(two.far.fetch(&TOKEN).is_none() && two.far.counts() == [0; 4]);
    // Those who stay do.
    let clients: Vec<_> =
        (0..=MAX_PENDING as u8).map(|n| two.near.open(two.now, here(), TOKEN, [n; 16])).collect();
    two.connect();
    clients.iter().for_each(|client| two.near.send(*client, Kind::Hello, TOKEN.to_vec()));
    two.pass();
    let refused = clients
        .iter()
        .filter(|client| kind(two.near.poll_received(**client)) == Some(Kind::Refuse))
        .count();
    assert_eq!(refused, 1);
}

#[test]
fn a_goodbye_is_of_one_connection_and_the_end_of_a_control_connection_of_all_others() {
    let mut two = Two::new(&[[1; 16], [2; 16], [3; 16]]);
    let [one, other, three] = [1, 2, 3].map(|n| two.established([n; 16], [10 + n; 16]));
    two.far.close(two.now, one.1);
    two.far.fail(three.1, "enough");
    two.pass();
    let closed = PeerChange::Closed("the peer has closed the connection".into());
    assert_eq!(two.changes(0), [(one.0, closed), (three.0, broken("the peer gave up: enough"))]);
    // As when the process has died, or something between has closed it: nobody says goodbye.
    let (conn, _) = two.wire.take().expect("it stands");
    two.near.handle_end(two.now, conn, End::Closed);
    two.events();
    let lost = PeerChange::Lost(
        "the control connection was lost before (closed without a goodbye)".into(),
    );
    assert_eq!(two.changes(0)[0], (other.0, lost), "a goodbye is the last word");
    two.near.open(two.now, here(), [2; 16], [20; 16]);
    assert!(two.events().is_some(), "one that has ended is not used again");
}

#[test]
fn what_came_before_a_connection_was_established_is_reported_then() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, [1; 16]);
    two.near.send(near, Kind::Commit, Vec::new());
    two.near.close(two.now, near);
    let (conn, last) = (
        two.wire.expect("it stands").1,
        std::iter::from_fn(|| two.near.poll_event()).collect::<Vec<_>>(),
    );
    let [Event::Close { last, .. }] = last.as_slice() else { panic!("{last:?}") };
    two.far.handle_bytes(two.now, conn, last);
    two.far.handle_end(two.now, conn, End::Closed);
    assert!(!two.far.is_over(far), "it has committed before");
    assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit), "it comes before the goodbye");
    two.far.establish(two.now, far, true);
    two.events();
    assert_eq!(
        two.changes(1),
        [(far, PeerChange::Closed("the peer has closed the connection".into()))]
    );
}

#[test]
fn a_failure_while_there_is_no_control_connection_is_reported_once_there_is_one() {
    let mut two = Two::new(&[TOKEN]);
    let pairs = [1, 2, 3].map(|n| two.established(TOKEN, [n; 16]));
    two.lose();
    two.far.fail(pairs[0].1, "a device is lost");
    two.near.fail(pairs[1].0, "another one");
    two.near.close(two.now, pairs[2].0);
    let _ = (two.changes(0), two.changes(1));
    two.dial_again();
    assert_eq!(
        two.changes(0).pop(),
        Some((pairs[0].0, broken("the peer gave up: a device is lost")))
    );
    let closed = PeerChange::Closed("the peer has closed the connection".into());
    let told = two.changes(1);
    assert!(told.contains(&(pairs[1].1, broken("the peer gave up: another one"))), "{told:?}");
    assert!(told.contains(&(pairs[2].1, closed)), "{told:?}");
}

/// The peer may have closed it in good order.
#[test]
fn a_connection_that_the_peer_does_not_know_is_closed() {
    let mut two = Two::new(&[TOKEN]);
    let (one, other) = (two.established(TOKEN, [1; 16]), two.established(TOKEN, [2; 16]));
    two.lose();
    two.far.close(two.now, other.1);
    two.changes(0);
    two.dial_again();
    let unknown = PeerChange::Unknown(unknown(&Refusal::UnknownConnection.to_string()));
    assert_eq!(two.changes(0), [(one.0, PeerChange::Back), (other.0, unknown)]);
}

/// Who does not know a connection's secret and its listener's token, or repeats what was said
/// before, changes nothing.
#[test]
fn unknown_clients_do_not_take_over_connections() {
    let mut two = Two::new(&[TOKEN]);
    let (_, far) = two.established(TOKEN, [1; 16]);
    two.lose();
    two.dial_again();
    two.changes(1);
    let carried = two.far.streams[&far].conn;
    let cases =
        [([5; 16], TOKEN, 9, true), ([1; 16], [2; 16], 9, true), ([1; 16], TOKEN, 1, false)];
    for (secret, token, attempt, is_refused) in cases {
        let client = two.far.handle_client(two.now, here());
        two.far.handle_bytes(
            two.now,
            client,
            &Resume { token, attempt }.frame(Kind::Resume, secret).emit(),
        );
        while two.far.poll_event().is_some() {}
        let mut answer = Assembler::default();
        answer.handle_bytes(two.far.poll_transmit(client));
        let answer = answer.poll_frame().expect("a frame").map(|frame| frame.body_text());
        assert_eq!(answer, is_refused.then(|| Refusal::UnknownConnection.to_string()));
        assert_eq!(two.far.streams[&far].conn, carried);
    }
    // Who knows it is the peer.
    let client = two.far.handle_client(two.now, here());
    two.far.handle_bytes(
        two.now,
        client,
        &Resume { token: TOKEN, attempt: 9 }.frame(Kind::Resume, [1; 16]).emit(),
    );
    assert_eq!(two.far.streams[&far].conn, Some(client));
}

#[test]
fn frames_for_nobody_cost_nothing_and_harm_nobody() {
    let mut two = Two::new(&[TOKEN]);
    let (_, far) = two.established(TOKEN, [1; 16]);
    let conn = two.far.streams[&far].conn.expect("it stands");
    for n in 0..20_000u32 {
        let mut secret = [9; 16];
        secret[..4].copy_from_slice(&n.to_le_bytes());
        let kinds =
            [Kind::Hello, Kind::Commit, Kind::Goodbye, Kind::Reply, Kind::Refuse, Kind::Resume];
        let frame = Frame { kind: kinds[n as usize % 6], secret, body: vec![7; 100] };
        two.far.handle_bytes(two.now, conn, &frame.emit());
        while two.far.poll_event().is_some() {}
        assert_eq!(two.far.counts(), [1, 1, 0, 0]);
        let most = two.far.conns[&conn].max_backlog() + 2 * MAX_BACKLOG;
        assert!(two.far.poll_transmit(conn).len() < most, "nobody reads the answers");
    }
    let mut answer = Assembler::default();
    answer.handle_bytes(two.far.poll_transmit(conn));
    let first = answer.poll_frame().expect("a frame").expect("a refusal");
    assert_eq!((first.kind, first.body_text()), (Kind::Refuse, Refusal::UnknownToken.to_string()));
    assert!(first.body_text().contains("no such listener"), "{}", first.body_text());
    assert!(two.changes(1).is_empty());
    assert!(two.far.is_backlogged(conn), "nothing more is to be read");
    let all = two.far.poll_transmit(conn).len();
    two.far.handle_transmitted(conn, all);
    assert!(!two.far.is_backlogged(conn));
}

#[test]
fn a_peer_that_says_too_much_loses_its_control_connection() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, [1; 16]);
    (0..=MAX_INBOX).for_each(|_| two.near.send(near, Kind::Commit, Vec::new()));
    two.pass();
    (0..MAX_INBOX).for_each(|_| assert_eq!(kind(two.far.poll_received(far)), Some(Kind::Commit)));
    assert!(matches!(two.far.poll_received(far), Received::End(End::Wrong(_))));
}

#[test]
fn an_attempt_at_a_connection_ends_after_five_seconds() {
    let mut two = Two::new(&[]);
    let stream = two.near.open(two.now, here(), TOKEN, [1; 16]);
    assert_eq!(two.near.poll_timeout(), Some(two.now + Duration::from_secs(5)));
    two.near.handle_timeout(two.now + Duration::from_secs(5));
    assert_eq!(two.near.poll_connected(stream), Err(110));
}
