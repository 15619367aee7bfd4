//! The plugin's log, and changes of the network while it runs.

use super::{dist, setting};
use ferrite::pair::Setting;
use std::process::Command;

/// The usual setting with the plugin's whole log, and `env` beside.
pub(crate) fn talkative(env: &[(&str, &str)]) -> Option<Setting> {
    let setting = setting()?.env("NCCL_DEBUG_SUBSYS", "INIT,NET");
    Some(env.iter().fold(setting, |setting, (name, value)| setting.env(name, value)))
}

/// Whether the plugin has said all of `words` in one line.
pub(crate) fn said(words: &[&str]) -> bool {
    ferrite::nccl_log::lines().iter().any(|line| words.iter().all(|word| line.contains(word)))
}

pub(crate) fn log() -> String {
    ferrite::nccl_log::lines().join("\n")
}

/// Changes the network of this process.
pub(crate) fn softrnic(arguments: &str) {
    let output = Command::new(dist().join("bin/softrnic")).args(arguments.split(' ')).output().expect("softrnic runs");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn set(name: &str, value: &str) {
    // SAFETY: the process has one thread that looks at the environment: this one.
    unsafe { std::env::set_var(name, value) };
}
