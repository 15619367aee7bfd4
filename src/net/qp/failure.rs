//! The error for a failed work request: which one, between which ends, and the likely cause.

use super::wr_id::WrId;
use crate::error::Error;
use crate::net::peer::name::PeerName;
use crate::net::peer::state::PeerState;
use crate::verbs::status::Status;
use crate::verbs::work::Completion;

/// The settings for the time after which a device reports a peer that does not acknowledge.
const RETRY_SETTINGS: &str =
    "; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set how long the device retries";

/// The error for a failed completion on a port, between two ends, whose addresses may have a
/// `trouble`, with the state of `peer`. The addresses come last: a log may cut the line.
#[cold]
#[inline(never)]
pub(super) fn failure(
    completion: &Completion,
    (on, between): &(String, String),
    trouble: Option<String>,
    peer: &PeerState,
) -> Error {
    let status = completion.status();
    let circumstances = circumstances(status, &peer.reason(), peer.is_lost(), trouble.as_deref());
    let operation = WrId::from_bits(completion.id()).operation();
    let work = (operation, status, completion.vendor_error());
    Error::remote(text(work, (on, between), peer.peer(), &circumstances))
}

fn text(
    (operation, status, vendor_error): (&str, Status, u32),
    (on, between): (&str, &str),
    peer: &PeerName,
    circumstances: &str,
) -> String {
    let is_of_path = status == Status::RETRY_EXCEEDED && circumstances.contains("; likely: ");
    let retries = if is_of_path { RETRY_SETTINGS } else { "" };
    format!(
        "{operation} on {on}: {status}, vendor error {vendor_error}; peer {peer}{circumstances}; {between}{retries}"
    )
}

/// The end of the error's text: the state of the peer, and the likely cause. `reason` is why the
/// connection cannot continue or that its control connection is lost (`is_lost`). It is empty while
/// the control connection exists.
fn circumstances(status: Status, reason: &str, is_lost: bool, trouble: Option<&str>) -> String {
    let has_no_answer = status == Status::RETRY_EXCEEDED;
    let peer = match reason {
        "" if has_no_answer => {
            "; its control connection is up, so its process lives and the path is at fault".into()
        }
        "" => String::new(),
        reason => format!("; {reason}"),
    };
    let death = if has_no_answer && is_lost { "the peer has died, or " } else { "" };
    match status.cause() {
        // The peer has failed: the path is not the cause.
        _ if has_no_answer && !reason.is_empty() && !is_lost => peer,
        "" => peer,
        cause if has_no_answer => {
            let trouble = trouble.map(|trouble| format!("{trouble}, or ")).unwrap_or_default();
            format!("{peer}; likely: {death}{trouble}{cause}")
        }
        cause => format!("{peer}; likely: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_line::{self, DEVICE, HOST, shown};

    /// The text never says both that the peer lives and that it has died.
    #[test]
    fn the_likely_cause_agrees_with_the_state_of_the_peer() {
        let lives = circumstances(Status::RETRY_EXCEEDED, "", false, None);
        assert!(
            lives.contains("its process lives") && lives.contains("likely: a link or switch"),
            "{lives}"
        );
        assert!(!lives.contains("died"), "{lives}");
        let unknown = circumstances(
            Status::RETRY_EXCEEDED,
            "the control connection was lost before",
            true,
            None,
        );
        assert!(unknown.contains("lost before; likely: the peer has died, or a link"), "{unknown}");
        let trouble = Some("the two are in different networks");
        let dead =
            circumstances(Status::RETRY_EXCEEDED, "the peer's process has died", false, trouble);
        assert_eq!(dead, "; the peer's process has died");
        assert!(circumstances(Status(10), "", false, None).starts_with("; likely: "));
    }

    #[test]
    fn what_the_log_says_of_a_failed_work_request() {
        let between = "local GID 10.3.4.7 (index 3) LID 0 queue pair 8192, remote GID 10.3.4.12 LID 0 queue pair 8193 of mlx5_3";
        let trouble = "the two are in different networks";
        let mut said = String::new();
        for (status, reason, is_lost) in [
            (Status::RETRY_EXCEEDED, "", false),
            (Status::RETRY_EXCEEDED, "the control connection was lost before (reset)", true),
            (Status::RETRY_EXCEEDED, "the peer's process has died", false),
            (Status(4), "", false),
            (Status(10), "", false),
            (Status(13), "", false),
        ] {
            let circumstances = circumstances(status, reason, is_lost, Some(trouble));
            let peer =
                PeerName::from("rank 118 on n-0412 (pid 3021; mlx5_3 port 1, 10.3.4.12:40211)");
            said +=
                &text(("sending data", status, 136), ("mlx5_0", between), &peer, &circumstances);
            said += "\n";
        }
        testkit::snapshot!("failed_work_requests", &said);
    }

    #[test]
    fn a_log_with_long_names_shows_the_status_the_peer_the_cause_and_both_addresses() {
        let gid = "fd00:1234:5678:9abc:def0:1234:5678:9abc";
        let end = |of: &str| format!("{of} GID {gid} (index 255) LID 0 queue pair 16777215");
        let between = format!("{}, {} of {DEVICE} port 1", end("local"), end("remote"));
        let trouble = "the two are in different networks, and no router joins them";
        let circumstances = circumstances(Status::RETRY_EXCEEDED, "", false, Some(trouble));
        let work = ("sending a clear-to-send", Status::RETRY_EXCEEDED, 136);
        let line = shown(&text(work, (DEVICE, &between), &log_line::peer(), &circumstances));
        for part in
            ["(status 12)", HOST, "its process lives", trouble, "too small an MTU", "local GID"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(line.matches(gid).count(), 2, "{line}");
    }
}
