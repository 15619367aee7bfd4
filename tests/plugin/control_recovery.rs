//! What peers say of recovery over real sockets, without devices.

use crate::common::control_process::*;
use crate::common::prelude::*;
use nccl_net::testing::control::PeerState;
use nccl_net::testing::control::observers::RecoveryEvents;
use nccl_net::testing::control::stream::PeerStream;
use nccl_net::testing::proto::event::PeerChange;
use nccl_net::testing::proto::frame::{Frame, Kind};
use std::io::Write;
use std::sync::Mutex;

/// The events that it gets, as text.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<String>>);

impl RecoveryEvents for Noting {
    fn handle_frame(&self, frame: Frame) {
        self.0.lock().expect("no panic").push(format!(
            "{:?} of {} bytes",
            frame.kind,
            frame.body.len()
        ));
    }
    fn handle_fault(&self, _reason: &str) {}
    fn handle_change(&self, change: &PeerChange) {
        self.0.lock().expect("no panic").push(format!("{change:?}"));
    }
}

impl Noting {
    fn told(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

fn bytes(kind: Kind, length: usize) -> Vec<u8> {
    Frame { kind, secret: [11; 16], body: vec![3; length] }.emit()
}

/// A raw client sends its commit and more in one piece, and long missing lists once it is accepted:
/// the recovery of the connection, from when NCCL has it, hears all of that in order, and then that
/// the caller has gone.
#[test]
fn what_comes_with_the_commit_and_after_is_heard_in_order_by_what_recovers_the_connection() {
    let process = Process::listening(&[[1; 16]]);
    let mut client = process.client();
    client.write_all(&frame(Kind::Hello, [1; 16], [11; 16])).expect("sent");
    let stream = process.fetch([1; 16]);
    is_kind(&stream, Kind::Hello);
    stream.send(Kind::Reply, Vec::new());
    client
        .write_all(
            &[bytes(Kind::Commit, 0), bytes(Kind::Halt, 5), bytes(Kind::Offer, 4096)].concat(),
        )
        .expect("sent");
    is_kind(&stream, Kind::Commit);
    let (peer, noting) =
        (PeerState::new("the peer".into(), stream, true), Arc::new(Noting::default()));
    let handler: Arc<dyn RecoveryEvents> = Arc::clone(&noting) as _;
    peer.on_recovery_events(Arc::downgrade(&handler));
    peer.set_recovering(true);
    client
        .write_all(
            &[bytes(Kind::MissingList, 24 << 10), bytes(Kind::Ready, 4), bytes(Kind::Goodbye, 0)]
                .concat(),
        )
        .expect("sent");
    wait_until("the goodbye", || {
        process.poll();
        peer.is_gone().then_some(())
    });
    let frames = [
        "Halt of 5 bytes", "Offer of 4096 bytes", "MissingList of 24576 bytes", "Ready of 4 bytes",
    ];
    let told = noting.told();
    assert_eq!(told[..4], frames);
    assert!(told[4].starts_with("Closed"), "{told:?}");
    assert!(peer.is_recovering() && !peer.is_broken());
}
