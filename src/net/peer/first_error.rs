//! The first connection error of this process in the last 60 s. NCCL closes other connections
//! because of it. Their peers get this error, since theirs only follows from it.

use crate::host::{launcher, sysfs};
use crate::proto::identity::Identity;
use crate::stats::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time and text of the error, with the process where it occurred.
static FIRST: Mutex<Option<(Instant, String)>> = Mutex::new(None);
/// Connections closed later than this after an error are not closed because of it.
const LATELY: Duration = Duration::from_secs(60);
/// Separates the error from the reason in the text for a peer.
const MARK: &str = "; the first error there: ";
/// The longest text that is sent, in bytes.
const MOST_BYTES: usize = 400;

/// Records that a connection of this process has failed with `error`. If a peer reported a first
/// error, records that instead.
pub fn record(error: &str) {
    let text = match error.split_once(MARK) {
        Some((_, first)) => first.to_owned(),
        None => format!("{}: {error}", own_name()),
    };
    let end =
        (0..=text.len().min(MOST_BYTES)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    put(&mut lock(), Instant::now(), &text[..end]);
}

/// The `reason` why a connection is closed, with the first error, if there was a recent one.
pub fn with_first(reason: &str) -> String {
    match &*lock() {
        Some((when, text)) if when.elapsed() < LATELY => format!("{reason}{MARK}{text}"),
        _ => reason.to_owned(),
    }
}

fn put(first: &mut Option<(Instant, String)>, now: Instant, text: &str) {
    if first.as_ref().is_none_or(|(when, _)| now.saturating_duration_since(*when) >= LATELY) {
        *first = Some((now, text.to_owned()));
    }
}

fn own_name() -> String {
    let label = launcher::rank().map(|(_, rank)| rank);
    let own = Identity {
        host: sysfs::host_name().to_owned(),
        pid: std::process::id(),
        rank: process::own_rank(),
        label,
    };
    own.to_string()
}

fn lock() -> MutexGuard<'static, Option<(Instant, String)>> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_minute_is_kept() {
        let (mut first, now) = (None, Instant::now());
        put(&mut first, now, "one");
        put(&mut first, now + LATELY / 2, "two");
        assert_eq!(first.as_ref().map(|(_, text)| text.as_str()), Some("one"));
        put(&mut first, now + LATELY, "three");
        assert_eq!(first.as_ref().map(|(_, text)| text.as_str()), Some("three"));
    }

    #[test]
    fn a_first_error_that_a_peer_has_told_is_passed_on_as_it_is_and_not_too_long() {
        *lock() = None;
        assert_eq!(with_first("closed"), "closed");
        let told = format!(
            "sending to rank 4: the peer gave up: closed{MARK}rank 4 on n-7 (pid 9): the port is down"
        );
        record(&told);
        record("another one");
        let expected = format!("closed{MARK}rank 4 on n-7 (pid 9): the port is down");
        assert_eq!(with_first("closed"), expected);
        *lock() = None;
        record(&"é".repeat(1000));
        assert!(
            with_first("").len() <= MARK.len() + MOST_BYTES && with_first("").contains(&own_name())
        );
    }
}
