//! Tests that need /sys/class/infiniband to show the software devices as functions of cards.

use super::{dist, namespaces, setting};
use ferrite::error::{Error, Result};
use ferrite::pair::{self, Setting, Turn};
use ferrite::seat::Seat;
use std::process::Command;

/// Set within `softrnic run --faithful`.
const INSIDE: &str = "FERRITE_TEST_FAITHFUL";

/// `dist/bin/softrnic run --faithful --same-card`, with more arguments: two devices each are functions of one card.
pub(crate) fn softrnic_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(dist().join("bin/softrnic"));
    command.args(["run", "--faithful", "--same-card"]).args(arguments).arg("--").env("SOFTRNIC_STRICT", "1");
    command
}

/// As [`pair::run`], where devices look like ports of cards, and the plugin may fuse them.
pub(crate) fn run(
    test: &str,
    arguments: &[&str],
    adapt: impl FnOnce(Setting) -> Setting,
    body: impl FnOnce(&mut Seat) -> Result<()>,
) -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        let Some(setting) = setting() else { return Ok(()) };
        return pair::run(test, &adapt(setting.env("NCCL_IB_MERGE_NICS", "1")), body).map(|_| ());
    }
    if setting().is_none() || !namespaces() {
        return Ok(());
    }
    let _turn = Turn::wait();
    let program = std::env::current_exe().map_err(|e| Error::io("no own binary", e))?;
    let mut command = softrnic_run(arguments);
    command.arg(program).args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.output().map_err(|e| Error::io("dist/bin/softrnic run", e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    Ok(())
}
