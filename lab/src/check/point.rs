//! What a point is, and all of them.

use std::fmt;

use crate::check::context::Context;
use crate::check::outcome::StepResult;
use crate::error::Result;

/// Something that a transport has to keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// From 1; the same point has the same number for ever.
    pub(crate) number: u32,
    /// For `--only`.
    pub(crate) name: &'static str,
    /// What is claimed.
    pub(crate) claim: &'static str,
    /// How it is tried.
    pub(crate) trial: Trial,
}

/// How a point is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trial {
    /// In these steps, one after the other, until one fails.
    Steps(&'static [Step]),
    /// Not by this tool: it needs this.
    Needs(&'static str),
}

/// One pair of fresh processes.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// What it is like where they are.
    pub(crate) env: Env,
    /// What each of them does.
    pub(crate) run: fn(&mut Context<'_>) -> Result<StepResult>,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("env", &self.env).finish_non_exhaustive()
    }
}

/// A variable and its value.
pub(super) type Variable = (&'static str, &'static str);

/// What it is like where the processes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Env {
    /// Variables of both processes.
    pub(crate) vars: &'static [Variable],
    /// Variables of rank 1, besides.
    pub(crate) rank1_vars: &'static [Variable],
    /// Whether sysfs shows the devices.
    pub(crate) host: Host,
    /// Rank 0 does everything; rank 1 only waits.
    pub(crate) alone: bool,
    /// A process that is silent for so long counts as hung; s.
    pub(crate) timeout_s: u64,
    /// Only with `--long`.
    pub(crate) long: bool,
}

impl Env {
    /// Whether it takes a software device to set it up.
    pub(crate) fn needs_softrnic(&self) -> bool {
        let names_one = |(name, value): &Variable| {
            let is_taste = matches!(*name, "SOFTRNIC_STRICT" | "SOFTRNIC_LINES");
            value.contains("softrnic") || name.starts_with("SOFTRNIC_") && !is_taste
        };
        self.host == Host::Faithful || self.vars.iter().chain(self.rank1_vars).any(names_one)
    }
}

/// What the machine seems to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// Software devices that sysfs does not show, unless there are two rails.
    Plain,
    /// Software devices in sysfs.
    Faithful,
    /// No libibverbs that could be loaded.
    WithoutVerbs,
}

/// Both ranks work.
pub(super) const BOTH_RANKS: Env =
    Env { vars: &[], rank1_vars: &[], host: Host::Plain, alone: false, timeout_s: 20, long: false };
/// Rank 0 works.
pub(super) const RANK0_ONLY: Env = Env { alone: true, ..BOTH_RANKS };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_other_devices_do_not_read_keep_no_point_from_them() {
        let made_up = |vars| Env { vars, ..BOTH_RANKS }.needs_softrnic();
        assert!(!made_up(&[("SOFTRNIC_LINES", "1")]) && !made_up(&[("SOFTRNIC_STRICT", "0")]));
        assert!(made_up(&[("SOFTRNIC_FAULTS", "drop")]) && made_up(&[("NCCL_IB_HCA", "softrnic1")]));
    }
}
