//! How a pair of processes is started.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::pair::pages::Pages;
use crate::verbs::libibverbs::Verbs;

/// How to start a pair.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The libibverbs of both processes.
    pub verbs: Verbs,
    /// `NCCL_NET_PLUGIN` of both processes.
    pub net_plugin: String,
    /// Whether each process keeps to a CPU of its own, where there are two.
    pub pin: bool,
    /// How long a process may be silent before it counts as hung.
    pub silence: Duration,
    /// What each rank takes its buffers from instead of fresh memory.
    pub pages: Option<[Pages; 2]>,
    /// More environment, for both alike.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the other process is on another host.
    pub between_hosts: bool,
}

impl Setting {
    /// The usual: pinned, hung after 60 s of silence, `NCCL_NET_PLUGIN=none`.
    pub fn new(verbs: Verbs) -> Self {
        let silence = Duration::from_secs(60);
        Self {
            verbs,
            net_plugin: "none".into(),
            pin: true,
            silence,
            pages: None,
            env: Vec::new(),
            between_hosts: false,
        }
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// What starts a process of the pair that works on `fabric`.
    pub(crate) fn command(&self, program: &Path, arguments: &[OsString], fabric: &str) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        let verbs = &self.verbs;
        let settings = if self.between_hosts { verbs.settings_between_hosts() } else { verbs.settings() };
        verbs.apply_with(settings, &mut command, fabric);
        command.env("NCCL_NET_PLUGIN", &self.net_plugin);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}
