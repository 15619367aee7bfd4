//! Lines for the log that many connections would write at once: the first one is written, and how many more there were.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Log target of messages that NCCL shows without `NCCL_DEBUG_SUBSYS`.
pub const INIT: &str = "init";

/// Lines with the same key are written once in this time.
const QUIET: Duration = Duration::from_secs(1);
/// Lines that tell the same again and again are written once in this time at least.
const LONGEST_QUIET: Duration = Duration::from_secs(10);
/// Keys that are kept.
const MAX_KEYS: usize = 64;

/// What was written last, by key.
#[derive(Debug, Default)]
pub struct Notices {
    lines: Mutex<HashMap<String, Last>>,
    /// What has been said, and is said once.
    once: Mutex<HashSet<&'static str>>,
}

#[derive(Debug)]
struct Last {
    written: Instant,
    /// What it told, without numbers, if lines with its key may repeat each other; and for how long others that tell the same are not
    /// written.
    told: String,
    quiet: Duration,
    /// Lines that have not been written since then.
    more: u32,
}

impl Notices {
    /// Whether it is asked for the first time for `key`, which is then never forgotten.
    pub fn is_first(&self, key: &'static str) -> bool {
        self.once.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    /// The line to be written now for `text`, if any: not within [`QUIET`] of another one with the same `key`. It also tells how many
    /// lines with that key have not been written.
    pub fn line(&self, key: &str, text: &str) -> Option<String> {
        self.line_that_tells(key, text, String::new(), QUIET)
    }

    /// As [`Self::line`]. One that tells the same as the one before, but for numbers, and comes soon after it waits twice as long as that one
    /// has waited, up to [`LONGEST_QUIET`].
    pub fn line_unless_repeated(&self, key: &str, text: &str) -> Option<String> {
        let told = text.chars().filter(|char| !char.is_ascii_digit()).collect();
        self.line_that_tells(key, text, told, LONGEST_QUIET)
    }

    fn line_that_tells(&self, key: &str, text: &str, told: String, longest: Duration) -> Option<String> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if lines.len() >= MAX_KEYS {
            lines.retain(|_, last| now.saturating_duration_since(last.written) < last.quiet);
        }
        let (mut more, mut quiet) = (0, QUIET);
        if let Some(last) = lines.get_mut(key) {
            let (since, is_same) = (now.saturating_duration_since(last.written), last.told == told);
            if since < if is_same { last.quiet } else { QUIET } {
                last.more += 1;
                return None;
            }
            more = last.more;
            if is_same && since < 2 * last.quiet {
                quiet = (2 * last.quiet).min(longest);
            }
        }
        lines.insert(key.to_owned(), Last { written: now, told, quiet, more: 0 });
        Some(if more == 0 { text.to_owned() } else { format!("{text} ({more} more such lines before)") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_once_is_never_said_again() {
        let notices = Notices::default();
        assert_eq!([notices.is_first("a"), notices.is_first("b"), notices.is_first("a")], [true, true, false]);
    }

    #[test]
    fn one_line_of_many_is_written_and_the_others_are_counted() {
        let notices = Notices::default();
        assert_eq!(notices.line("port 1", "first"), Some("first".into()));
        assert_eq!((notices.line("port 1", "second"), notices.line("port 1", "third")), (None, None));
        assert_eq!(notices.line("port 2", "other"), Some("other".into()));
        // As if it had been written long ago.
        let long_ago = Instant::now().checked_sub(QUIET).expect("the machine has been up for longer");
        notices.lines.lock().expect("not poisoned").get_mut("port 1").expect("known").written = long_ago;
        assert_eq!(notices.line("port 1", "fourth"), Some("fourth (2 more such lines before)".into()));
        assert_eq!(notices.line("port 1", "fifth"), None);
        for key in 0..1000 {
            notices.line(&key.to_string(), "x");
        }
    }

    /// A fault each half second, and another one now and then.
    #[test]
    fn a_line_that_is_repeated_is_written_ever_more_seldom_and_another_one_at_once() {
        let notices = Notices::default();
        let mut written = Vec::new();
        for half_seconds in 0..100 {
            // As if the time had passed.
            if let Some(last) = notices.lines.lock().expect("not poisoned").get_mut("fault") {
                last.written -= QUIET / 2;
            }
            if notices.line_unless_repeated("fault", &format!("no data for {half_seconds} ms")).is_some() {
                written.push(half_seconds);
            }
        }
        assert_eq!(written, [0, 2, 6, 14, 30, 50, 70, 90]);
        let long_ago = |notices: &Notices, time| {
            notices.lines.lock().expect("not poisoned").get_mut("fault").expect("known").written -= time;
        };
        long_ago(&notices, QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some(), "another fault");
        long_ago(&notices, QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some());
        assert_eq!(notices.line_unless_repeated("fault", "the port is down"), None);
        long_ago(&notices, 60 * QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some());
        long_ago(&notices, QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some(), "it begins anew after a minute");
    }
}
