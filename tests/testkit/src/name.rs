//! The name of the test that runs.

use std::thread;

/// The full name of the test that runs in this thread, as the test program's `--list` shows it.
#[must_use]
pub fn test_name() -> String {
    let current = thread::current();
    match current.name() {
        // libtest starts each test in a thread of that name.
        Some(name) if name != "main" => name.to_owned(),
        _ => named_by_arguments(std::env::args()).expect(
            "test_name() is called in the thread that the test was started in, which has its name",
        ),
    }
}

/// Whether this process was started for one test by its exact name, as cargo-nextest and
/// [`crate::side`] start processes: no thread of another test is in it.
pub(crate) fn is_only_test() -> bool {
    named_by_arguments(std::env::args()).is_some()
}

/// The test that `--exact NAME` selects.
fn named_by_arguments(mut arguments: impl Iterator<Item = String>) -> Option<String> {
    let all: Vec<String> = arguments.by_ref().skip(1).collect();
    let is_exact = all.iter().any(|argument| argument == "--exact");
    all.into_iter().find(|argument| is_exact && !argument.starts_with('-'))
}
