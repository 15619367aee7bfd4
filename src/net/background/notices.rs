//! Log lines that many connections would write at once: writes the first one, and how many more
//! there were.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Log target of messages that NCCL shows without `NCCL_DEBUG_SUBSYS`.
pub const INIT: &str = "init";

/// Lines with the same key are written once in this time.
const QUIET: Duration = Duration::from_secs(1);
/// Repetitions of the same line are written at most once in this time.
const LONGEST_QUIET: Duration = Duration::from_secs(10);
/// The most keys that are kept.
const MAX_KEYS: usize = 64;

/// The latest lines, by key.
#[derive(Debug, Default)]
pub struct Notices {
    lines: Mutex<HashMap<String, Last>>,
    /// One-time messages that were logged.
    once: Mutex<HashSet<&'static str>>,
}

#[derive(Debug)]
struct Last {
    written: Instant,
    /// The line without its numbers, if lines with its key may repeat each other.
    wording: String,
    quiet: Duration,
    /// Lines suppressed since then.
    more: u32,
}

impl Notices {
    /// Whether this is the first call for `key`, which is then never forgotten.
    pub fn is_first(&self, key: &'static str) -> bool {
        self.once.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    /// The line to write now for `text`, if any: at most one per [`QUIET`] and `key`. It includes
    /// the number of suppressed lines.
    pub fn line(&self, key: &str, text: &str) -> Option<String> {
        self.line_worded(key, text, String::new(), QUIET)
    }

    /// [`Self::line`] with a back-off: a line that repeats the previous one, except for numbers,
    /// waits twice as long as that one, up to [`LONGEST_QUIET`].
    pub fn line_unless_repeated(&self, key: &str, text: &str) -> Option<String> {
        let wording = text.chars().filter(|char| !char.is_ascii_digit()).collect();
        self.line_worded(key, text, wording, LONGEST_QUIET)
    }

    fn line_worded(
        &self,
        key: &str,
        text: &str,
        wording: String,
        longest: Duration,
    ) -> Option<String> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if lines.len() >= MAX_KEYS {
            lines.retain(|_, last| now.saturating_duration_since(last.written) < last.quiet);
        }
        let (mut more, mut quiet) = (0, QUIET);
        if let Some(last) = lines.get_mut(key) {
            let (since, is_same) =
                (now.saturating_duration_since(last.written), last.wording == wording);
            if since < if is_same { last.quiet } else { QUIET } {
                last.more += 1;
                return None;
            }
            more = last.more;
            if is_same && since < 2 * last.quiet {
                quiet = (2 * last.quiet).min(longest);
            }
        }
        lines.insert(key.to_owned(), Last { written: now, wording, quiet, more: 0 });
        Some(if more == 0 {
            text.to_owned()
        } else {
            format!("{text} ({more} similar line(s) suppressed)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_once_is_never_said_again() {
        let notices = Notices::default();
        assert_eq!(
            [notices.is_first("a"), notices.is_first("b"), notices.is_first("a")],
            [true, true, false]
        );
    }

    #[test]
    fn one_line_of_many_is_written_and_the_others_are_counted() {
        let notices = Notices::default();
        assert_eq!(notices.line("port 1", "first"), Some("first".into()));
        assert_eq!(
            (notices.line("port 1", "second"), notices.line("port 1", "third")),
            (None, None)
        );
        assert_eq!(notices.line("port 2", "other"), Some("other".into()));
        // As if it had been written long ago.
        let long_ago =
            Instant::now().checked_sub(QUIET).expect("the machine has been up for longer");
        notices.lines.lock().expect("not poisoned").get_mut("port 1").expect("known").written =
            long_ago;
        assert_eq!(
            notices.line("port 1", "fourth"),
            Some("fourth (2 similar line(s) suppressed)".into())
        );
        assert_eq!(notices.line("port 1", "fifth"), None);
        for key in 0..1000 {
            notices.line(&key.to_string(), "x");
        }
    }

    /// A fault each half second, and another one from time to time.
    #[test]
    fn a_line_that_is_repeated_is_written_ever_more_seldom_and_another_one_at_once() {
        let notices = Notices::default();
        let mut written = Vec::new();
        for half_seconds in 0..100 {
            // As if the time had passed.
            if let Some(last) = notices.lines.lock().expect("not poisoned").get_mut("fault") {
                last.written -= QUIET / 2;
            }
            if notices
                .line_unless_repeated("fault", &format!("no data for {half_seconds} ms"))
                .is_some()
            {
                written.push(half_seconds);
            }
        }
        assert_eq!(written, [0, 2, 6, 14, 30, 50, 70, 90]);
        let long_ago = |notices: &Notices, time| {
            notices.lines.lock().expect("not poisoned").get_mut("fault").expect("known").written -=
                time;
        };
        long_ago(&notices, QUIET);
        assert!(
            notices.line_unless_repeated("fault", "the port is down").is_some(),
            "another fault"
        );
        long_ago(&notices, QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some());
        assert_eq!(notices.line_unless_repeated("fault", "the port is down"), None);
        long_ago(&notices, 60 * QUIET);
        assert!(notices.line_unless_repeated("fault", "the port is down").is_some());
        long_ago(&notices, QUIET);
        assert!(
            notices.line_unless_repeated("fault", "the port is down").is_some(),
            "it begins anew after a minute"
        );
    }
}
