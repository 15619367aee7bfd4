//! Software RDMA devices (softrnic) for a test, each set on a fabric of its own.

use crate::peer::Peer;
use crate::process::Process;
use crate::side;
use crate::unique::unique_name;
use std::path::Path;

/// The variable that names the fabric of a process.
const FABRIC: &str = "SOFTRNIC_FABRIC";

/// How the devices of a fabric are to be. Processes that are started here share the fabric; those
/// of another test do not.
#[derive(Debug, Clone)]
pub struct Softrnic {
    fabric: String,
    env: Vec<(String, String)>,
}

impl Softrnic {
    /// What softrnic does by itself, on a fabric that nobody else uses, without its report at the
    /// end.
    #[must_use]
    pub fn new() -> Self {
        // A side of the test is where the test has put it.
        let inherited = std::env::var(FABRIC).ok().filter(|_| side::is_one());
        let fabric = inherited.unwrap_or_else(|| unique_name("test"));
        Self { fabric, env: Vec::new() }.env("SOFTRNIC_QUIET", "1")
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// With more variables.
    #[must_use]
    pub fn envs(self, all: &[(&str, &str)]) -> Self {
        all.iter().fold(self, |this, (name, value)| this.env(name, value))
    }

    /// So many devices.
    #[must_use]
    pub fn devices(self, count: usize) -> Self {
        self.env("SOFTRNIC_DEVICES", count)
    }

    /// So many ports on each.
    #[must_use]
    pub fn ports(self, count: usize) -> Self {
        self.env("SOFTRNIC_PORTS", count)
    }

    /// The link layers, as `SOFTRNIC_LINK` has them: `ib`, `roce,softrnic1/1=ib`.
    #[must_use]
    pub fn link(self, layers: &str) -> Self {
        self.env("SOFTRNIC_LINK", layers)
    }

    /// The contents of GID tables, as `SOFTRNIC_GIDS` has them: `rich`.
    #[must_use]
    pub fn gids(self, tables: &str) -> Self {
        self.env("SOFTRNIC_GIDS", tables)
    }

    /// Faults, as `SOFTRNIC_FAULTS` has them.
    #[must_use]
    pub fn faults(self, rules: &str) -> Self {
        self.env("SOFTRNIC_FAULTS", rules)
    }

    /// Nothing is done earlier or better than the specification promises.
    #[must_use]
    pub fn strict(self) -> Self {
        self.env("SOFTRNIC_STRICT", 1)
    }

    /// The name of the fabric.
    #[must_use]
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The environment of a process on the fabric.
    #[must_use]
    pub fn vars(&self) -> Vec<(&str, &str)> {
        let mut all = vec![(FABRIC, self.fabric.as_str())];
        all.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all
    }

    /// Runs `body` in a process of its own on the fabric, which must leave nothing behind.
    #[track_caller]
    pub fn alone(&self, body: impl FnOnce()) {
        side::alone(&self.vars(), body);
        self.assert_clean();
    }

    /// Runs `body` in two processes on the fabric, which must leave nothing behind. They have a
    /// socket between them.
    #[track_caller]
    pub fn pair(&self, body: impl FnOnce(usize, Peer)) {
        side::pair(&self.vars(), body);
        self.assert_clean();
    }

    /// Starts this test once more on the fabric, as [`Process::start`] does, with more variables.
    #[must_use]
    pub fn start(&self, side: usize, more: &[(&str, &str)]) -> (Process, Peer) {
        let mut env = self.vars();
        env.extend_from_slice(more);
        Process::start(side, &env)
    }

    /// The fabric's file is gone: the last process removes it.
    #[track_caller]
    pub fn assert_clean(&self) {
        if side::is_one() {
            return;
        }
        let folder = self
            .env
            .iter()
            .rev()
            .find(|(name, _)| name == "SOFTRNIC_SHM_DIR")
            .map(|(_, folder)| folder);
        let file = Path::new(folder.map_or("/dev/shm", String::as_str)).join(&self.fabric);
        assert!(!file.exists(), "{} was left behind", file.display());
    }
}

impl Default for Softrnic {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    #[should_panic(expected = "was left behind")]
    fn a_file_that_is_left_is_noticed() {
        let folder = Scratch::new();
        let softrnic = Softrnic::new().env("SOFTRNIC_SHM_DIR", folder.display());
        folder.write(softrnic.fabric(), "");
        softrnic.assert_clean();
    }
}
