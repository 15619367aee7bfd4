//! The plugin's log in this process.

/// Whether the plugin has said all of `words` in one line.
pub(crate) fn said(words: &[&str]) -> bool {
    ferrite::nccl::debug_log::lines().iter().any(|line| words.iter().all(|word| line.contains(word)))
}

/// All of it.
pub(crate) fn log() -> String {
    ferrite::nccl::debug_log::lines().join("\n")
}

/// The plugin has said `words` in one line.
#[track_caller]
pub(crate) fn assert_logged(words: &str) {
    assert!(said(&[words]), "{words:?} is not in {}", log());
}
