//! The error for a failed work request: which one, between which ends, and the likely cause.

use super::wr_id::WrId;
use crate::error::Error;
use crate::net::peer::state::PeerState;
use crate::verbs::status::Status;
use crate::verbs::work::Completion;

/// The settings for the time after which a device reports a peer that does not acknowledge.
const RETRY_SETTINGS: &str = "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say how long to wait";

/// The error for a failed completion on port `on`, between the two ends in `between`, with the
/// state of `peer`.
#[cold]
#[inline(never)]
pub(super) fn failure(completion: &Completion, on: &str, between: &str, peer: &PeerState) -> Error {
    let (status, vendor_error) = (completion.status(), completion.vendor_error());
    let circumstances = circumstances(status, &peer.reason(), peer.is_lost());
    let operation = WrId::from_bits(completion.id()).operation();
    let name = peer.peer();
    Error::remote(format!(
        "{operation} on {on}: {status}, vendor error {vendor_error}; {between}, peer {name}{circumstances}"
    ))
}

/// The end of the error's text: the state of the peer, and the likely cause. `reason` is why the
/// connection cannot continue or that its control connection is lost (`is_lost`). It is empty while
/// the control connection exists.
fn circumstances(status: Status, reason: &str, is_lost: bool) -> String {
    let has_no_answer = status == Status::RETRY_EXCEEDED;
    let peer = match reason {
        "" if has_no_answer => {
            "; the peer's control connection still stands, so its process lives and the path is at fault".into()
        }
        "" => String::new(),
        reason => format!("; {reason}"),
    };
    let death = if has_no_answer && is_lost { "the peer has died, or " } else { "" };
    match status.cause() {
        // The peer has failed: the path is not the cause.
        _ if has_no_answer && !reason.is_empty() && !is_lost => peer,
        "" => peer,
        cause if has_no_answer => format!("{peer}; likely: {death}{cause}; {RETRY_SETTINGS}"),
        cause => format!("{peer}; likely: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text never says both that the peer lives and that it has died.
    #[test]
    fn the_likely_cause_agrees_with_the_state_of_the_peer() {
        let lives = circumstances(Status::RETRY_EXCEEDED, "", false);
        assert!(
            lives.contains("its process lives") && lives.contains("likely: a link or switch"),
            "{lives}"
        );
        assert!(!lives.contains("died"), "{lives}");
        let unknown =
            circumstances(Status::RETRY_EXCEEDED, "the control connection was lost before", true);
        assert!(unknown.contains("lost before; likely: the peer has died, or a link"), "{unknown}");
        let dead = circumstances(Status::RETRY_EXCEEDED, "the peer's process has died", false);
        assert_eq!(dead, "; the peer's process has died");
        assert!(circumstances(Status(10), "", false).starts_with("; likely: "));
    }
}
