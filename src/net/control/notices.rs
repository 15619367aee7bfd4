//! Lines for the log that many connections would write at once: the first one is written, and how many more there were.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Log target of messages that NCCL shows without `NCCL_DEBUG_SUBSYS`.
pub const INIT: &str = "init";

/// Lines with the same key are written once in this time.
const QUIET: Duration = Duration::from_secs(1);
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
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if lines.len() >= MAX_KEYS {
            lines.retain(|_, last| now.saturating_duration_since(last.written) < QUIET);
        }
        let more = match lines.get_mut(key) {
            Some(last) if now.saturating_duration_since(last.written) < QUIET => {
                last.more += 1;
                return None;
            }
            Some(last) => last.more,
            None => 0,
        };
        lines.insert(key.to_owned(), Last { written: now, more: 0 });
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
}
