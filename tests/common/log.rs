//! The plugin's log in this process.

use testkit::wait_until;

/// Whether the plugin has said all of `words` in one line.
pub(crate) fn said(words: &[&str]) -> bool {
    lab::nccl::debug_log::any(|line| words.iter().all(|word| line.contains(word)))
}

/// All of it.
pub(crate) fn log() -> String {
    lab::nccl::debug_log::lines().join("\n")
}

/// The plugin has said `words` in one line.
#[track_caller]
pub(crate) fn assert_logged(words: &str) {
    assert!(said(&[words]), "{words:?} is not in {}", log());
}

/// Waits until the plugin, which has connected, has heard of `changes` changes of the GID table of
/// each of softrnic's `devices`. Until then it may choose from the table that it has read before.
#[track_caller]
pub(crate) fn wait_for_gid_changes(devices: &[usize], changes: usize) {
    for device in devices {
        let words = format!("softrnic{device}:1: the GID table has changed");
        wait_until(format_args!("{changes} times {words:?}"), || {
            log().matches(&words).count() >= changes
        });
    }
}
