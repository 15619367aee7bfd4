//! Streams that wait for another control connection, and what the driver and the listeners ask.

use super::*;

/// A connection that is lost, and the one that is dialled then. What both ends have is reported
/// already.
fn dialled_again() -> (Two, StreamId, ConnId) {
    let mut two = Two::new(&[TOKEN]);
    let (near, _) = two.established(TOKEN, [1; 16]);
    two.lose();
    two.now = two.near.poll_timeout().expect("it will dial");
    two.near.handle_timeout(two.now);
    let conn = two.events().expect("it dials");
    two.changes(0);
    (two, near, conn)
}

/// A port may have too many clients, and close one before it answers: that is no loss of a
/// connection that stood.
#[test]
fn an_attempt_that_is_closed_before_it_is_answered_is_a_failed_one() {
    let (mut two, near, conn) = dialled_again();
    two.near.handle_connected(two.now, conn);
    two.near.handle_end(two.now, conn, End::Closed);
    two.events();
    assert_eq!(two.changes(0), [(near, PeerChange::Doubted)], "it waits");
    // The first pause is 10 ms, between three and five quarters of it.
    let pause = two.near.poll_timeout().expect("it dials again") - two.now;
    assert!(
        pause >= Duration::from_micros(7500) && pause <= Duration::from_micros(12_500),
        "{pause:?}"
    );
    two.now += pause;
    two.near.handle_timeout(two.now);
    assert!(two.events().is_some());
    assert!(two.near.streams[&near].phase == Phase::Established);
}

/// The peer's process is stopped, and its device is not asked: the connection recovers. It resumes
/// when the process runs again.
#[test]
fn a_port_that_accepts_and_stays_silent_is_no_death_however_long_it_does() {
    for end in [End::Closed, End::Lost("a test".into())] {
        let mut two = Two::new(&[TOKEN]);
        let (near, _) = two.established(TOKEN, [1; 16]);
        let (conn, far_conn) = two.wire.take().expect("it stands");
        two.far.handle_end(two.now, far_conn, end.clone());
        two.near.handle_end(two.now, conn, end.clone());
        two.now = two.near.poll_timeout().expect("it dials again");
        two.near.handle_timeout(two.now);
        two.connect();
        let until = two.now + Duration::from_secs(3600);
        while let Some(due) = two.near.poll_timeout().filter(|due| *due <= until) {
            two.now = due;
            two.near.handle_timeout(due);
            assert_eq!(two.events(), None, "it waits for the answer: {end:?}");
        }
        two.now = until;
        let is_open =
            |change: &PeerChange| matches!(change, PeerChange::Lost(_) | PeerChange::Doubted);
        let changes = two.changes(0);
        assert!(changes.iter().all(|(_, change)| is_open(change)), "{end:?}: {changes:?}");
        two.pass();
        assert_eq!(two.changes(0), [(near, PeerChange::Back)], "{end:?}");
    }
}

/// A stream that was not asked for has no peer any more when its control connection is closed.
#[test]
fn a_stream_whose_control_connection_is_closed_in_order_has_lost_its_peer() {
    let mut two = Two::new(&[TOKEN]);
    let (near, _) = two.established(TOKEN, [1; 16]);
    let (conn, _) = two.wire.expect("it stands");
    two.near.handle_end(two.now, conn, End::Wrong("no frame of Ferrite".into()));
    two.events();
    assert_eq!(two.changes(0), [(near, broken("no frame of Ferrite"))]);
    // While it was asked for: the port may be another program's.
    let (mut two, near, conn) = dialled_again();
    two.near.handle_connected(two.now, conn);
    two.near.handle_end(two.now, conn, End::Wrong("no frame of Ferrite".into()));
    two.events();
    let text = "the peer has closed the connection, or has died (no frame of Ferrite)";
    assert_eq!(two.changes(0), [(near, PeerChange::Unknown(text.into()))]);
}

#[test]
fn the_log_counts_the_connections_that_resume() {
    let mut two = Two::new(&[TOKEN]);
    let secrets = [[1; 16], [2; 16], [3; 16]];
    for secret in secrets {
        two.established(TOKEN, secret);
    }
    two.lose();
    two.now = two.near.poll_timeout().expect("it will dial");
    two.near.handle_timeout(two.now);
    let conn = two.events().expect("it dials");
    two.near.handle_connected(two.now, conn);
    let [one, another, unknown] = secrets;
    let back = |secret| Frame { kind: Kind::Resume, secret, body: Vec::new() };
    let answers = [back(one), Frame::text(Kind::Refuse, unknown, "unknown"), back(another)];
    for answer in answers {
        two.near.handle_bytes(two.now, conn, &answer.emit());
    }
    two.events();
    let told: Vec<_> =
        two.log[0].iter().filter(|(_, text)| text.contains(" resumed over it")).collect();
    assert!(
        matches!(told[..], [(Level::Info, text)] if text.contains("is back: 2 connection(s)")),
        "{told:?}"
    );
}

/// For half a minute the peer is dialled for the goodbye. Then nothing is kept, whatever is under
/// way.
#[test]
fn a_stream_that_was_closed_while_it_waited_is_forgotten_in_time() {
    let (mut two, near, mut conn) = dialled_again();
    let closed = two.now;
    two.near.close(two.now, near);
    loop {
        two.near.handle_end(two.now, conn, End::Unreachable(110));
        two.events();
        two.now = two.near.poll_timeout().expect("it dials again");
        if two.now + Duration::from_secs(2) > closed + FAREWELL {
            break;
        }
        two.near.handle_timeout(two.now);
        conn = two.events().expect("it dials");
    }
    two.near.handle_timeout(two.now);
    assert!(two.events().is_some(), "it is dialled, and does not answer");
    two.near.handle_timeout(closed + FAREWELL);
    assert_eq!((two.near.counts(), two.near.poll_timeout()), ([0; 4], None));
}

/// A process that wants nothing of another one says so once, for all connections.
#[test]
fn a_refusal_for_all_connections_ends_them_all() {
    let mut two = Two::new(&[TOKEN]);
    let (one, _) = two.established(TOKEN, [1; 16]);
    let (other, _) = two.established(TOKEN, [2; 16]);
    let (conn, _) = two.wire.expect("it stands");
    let refuse = Frame::text(Kind::Refuse, ALL_CONNECTIONS, "too many");
    two.near.handle_bytes(two.now, conn, &refuse.emit());
    two.wire = None;
    two.events();
    let all = two.changes(0);
    assert_eq!(all, [one, other].map(|stream| (stream, broken("the peer gave up: too many"))));
}

#[test]
fn a_question_about_a_connection_that_is_not_accepted_is_answered_and_an_answer_is_not() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, [1; 16]);
    let conn = two.far.streams[&far].conn.expect("it stands");
    for (kind, is_answered) in [(Kind::WaitAnswer, false), (Kind::WaitQuestion, true)] {
        let frame = Frame { kind, secret: [1; 16], body: Vec::new() };
        two.far.handle_bytes(two.now, conn, &frame.emit());
        assert_eq!(!two.far.poll_transmit(conn).is_empty(), is_answered, "{kind:?}");
    }
    let _ = near;
}

#[test]
fn a_first_frame_other_than_a_resumption_does_not_say_that_a_stream_is_back() {
    let (mut two, near, conn) = dialled_again();
    two.near.handle_connected(two.now, conn);
    let frame = Frame { kind: Kind::Halt, secret: [1; 16], body: Vec::new() };
    two.near.handle_bytes(two.now, conn, &frame.emit());
    two.events();
    let changes = two.changes(0);
    assert!(!changes.contains(&(near, PeerChange::Back)), "{changes:?}");
    // One that was not asked for is unexpected.
    for kind in [Kind::Resume, Kind::Refuse] {
        let mut two = Two::new(&[TOKEN]);
        let (near, _) = two.established(TOKEN, [1; 16]);
        let (conn, _) = two.wire.expect("it stands");
        let frame = Frame { kind, secret: [1; 16], body: b"x".to_vec() };
        two.near.handle_bytes(two.now, conn, &frame.emit());
        two.events();
        assert_eq!(
            two.changes(0),
            [(near, broken(&format!("the peer sent an unexpected message ({kind})")))]
        );
    }
}

#[test]
fn a_stream_that_has_ended_is_not_resumed() {
    let mut two = Two::new(&[TOKEN]);
    let (near, far) = two.replied(TOKEN, [1; 16]);
    two.near.close(two.now, near);
    two.pass();
    assert!(two.far.is_over(far), "the goodbye has come");
    let client = two.far.handle_client(two.now, here());
    two.far.handle_bytes(
        two.now,
        client,
        &Resume { token: TOKEN, attempt: 9 }.frame(Kind::Resume, [1; 16]).emit(),
    );
    let mut answer = Assembler::default();
    answer.handle_bytes(two.far.poll_transmit(client));
    assert_eq!(
        answer.poll_frame().expect("a frame").map(|frame| frame.kind),
        Some(Kind::Resume),
        "its end is to be heard"
    );
    two.far.establish(two.now, far, true);
    two.events();
    let client = two.far.handle_client(two.now, here());
    two.far.handle_bytes(
        two.now,
        client,
        &Resume { token: TOKEN, attempt: 10 }.frame(Kind::Resume, [1; 16]).emit(),
    );
    assert_ne!(two.far.streams[&far].conn, Some(client));
}

#[test]
fn random_numbers_differ_by_process_and_from_one_to_the_next() {
    let mut planes = [1, 2].map(|seed| ControlPlane::new(Duration::from_secs(30), seed));
    let mut rolled: Vec<u64> =
        planes.iter_mut().flat_map(|plane| [plane.roll(), plane.roll()]).collect();
    rolled.sort_unstable();
    rolled.dedup();
    assert_eq!(rolled.len(), 4);
}

#[test]
fn the_driver_is_reported_of_listeners_and_of_what_there_is_to_send() {
    let mut two = Two::new(&[]);
    assert!(!two.far.has_listeners());
    two.far.register(TOKEN);
    assert!(two.far.has_listeners());
    let (near, _) = two.established(TOKEN, [1; 16]);
    while two.near.poll_dirty().is_some() {}
    two.near.send(near, Kind::Halt, Vec::new());
    let (conn, _) = two.wire.expect("it stands");
    assert_eq!([two.near.poll_dirty(), two.near.poll_dirty()], [Some(conn), None]);
    two.far.deregister(&TOKEN);
    assert!(!two.far.has_listeners());
}

#[test]
fn a_connection_knows_whether_a_frame_has_begun() {
    let mut conn = ControlConn::new(here(), Stage::Accepted);
    assert!(!conn.has_begun());
    conn.handle_bytes(&Frame { kind: Kind::Commit, secret: [1; 16], body: Vec::new() }.emit()[..3]);
    assert!(conn.has_begun());
}

#[test]
fn a_farewell_is_a_goodbye_and_nothing_else() {
    let mut stream = Stream::new(StreamRole::Accepts, TOKEN, [1; 16], here(), ConnId(1));
    for (kind, is_farewell) in [(Kind::Commit, false), (Kind::Goodbye, true)] {
        stream.push(Frame { kind, secret: [1; 16], body: Vec::new() }).expect("room");
        assert_eq!(stream.has_farewell(), is_farewell, "{kind:?}");
    }
}
