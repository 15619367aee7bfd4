//! Tests of a listener's candidates.

use super::listen::{Candidate, Candidates, MAX_CANDIDATES, fill};
use crate::net::background::periodic::PeriodicTask;
use crate::net::control::driver::ControlDriver;
use crate::net::control::stream::ControlStream;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

fn candidate() -> Candidate {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let driver = ControlDriver::new(Duration::from_secs(20), None).expect("descriptors");
    let stream =
        ControlStream::open(&driver, port.local_addr().expect("its address"), [1; 16], [2; 16]);
    Candidate::new(stream.expect("this is no child"))
}

#[test]
fn a_candidate_is_called_by_its_address_until_it_has_told_its_name() {
    let mut candidate = candidate();
    assert_eq!(candidate.describe(), candidate.stream.peer().to_string());
    candidate.name = Some("softrnic1 of process 5".into());
    assert_eq!(candidate.describe(), "softrnic1 of process 5");
}

#[test]
fn a_listener_takes_in_as_many_as_it_has_room_for_and_leaves_the_others_where_they_wait() {
    let (mut candidates, mut waiting) = (Vec::new(), 0..MAX_CANDIDATES + 5);
    fill(&mut candidates, || waiting.next());
    assert_eq!((candidates.len(), waiting.len()), (MAX_CANDIDATES, 5));
    candidates.truncate(MAX_CANDIDATES - 7);
    fill(&mut candidates, || waiting.next());
    assert_eq!((candidates.len(), waiting.len()), (MAX_CANDIDATES - 2, 0));
}

#[test]
fn candidates_go_with_their_listener_and_a_forked_child_leaves_them_alone() {
    let candidates = Candidates(Mutex::new(vec![candidate()]));
    candidates.end(true);
    assert_eq!(candidates.lock().len(), 1);
    candidates.end(false);
    assert_eq!(candidates.lock().len(), 0);
}

#[test]
fn nothing_is_looked_after_once_there_are_no_candidates() {
    let candidates = Candidates::default();
    assert!(!candidates.run());
    let asked = candidates.lock();
    assert!(candidates.run(), "it cannot be seen just now");
    drop(asked);
}
