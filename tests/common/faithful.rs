//! Tests that need /sys/class/infiniband to show the software devices as functions of cards.

use super::process;
use super::setting::{mount_namespaces, setting};
use lab::error::Result;
use lab::pair::PairPermit;
use lab::pair::Setting;
use lab::pair::WorkerCtx;
use std::process::Command;
use testkit::{dist, program, require, test_name};

/// Set within `softrnic run --faithful`.
const INSIDE: &str = "FERRITE_TEST_FAITHFUL";

/// `dist/bin/softrnic run --faithful --same-card`, with more arguments: two devices each are
/// functions of one card.
pub(crate) fn softrnic_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(dist::dist().join("bin/softrnic"));
    command
        .args(["run", "--faithful", "--same-card"])
        .args(arguments)
        .arg("--")
        .env("SOFTRNIC_STRICT", "1");
    command
}

/// Runs `body` in two processes where devices look like ports of cards, and the plugin may fuse
/// them.
pub(crate) fn run(
    arguments: &[&str],
    adapt: impl FnOnce(Setting) -> Setting,
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    let setting = require!(setting());
    if std::env::var_os(INSIDE).is_some() {
        process::pair(&adapt(setting.env("NCCL_IB_MERGE_NICS", "1")), body)?;
        return Ok(());
    }
    require!(dist::softrnic_program());
    require!(mount_namespaces());
    let _turn = PairPermit::wait();
    let mut command = softrnic_run(arguments);
    command.arg(std::env::current_exe().expect("the path of this program"));
    command.args([&test_name(), "--exact", "--nocapture"]).env(INSIDE, "1");
    let printed = program::run(&mut command);
    assert!(printed.status.success() && printed.stdout.contains("1 passed"), "{printed}");
    assert!(
        !printed.stderr.contains("skipped: "),
        "what is there outside is there inside: {printed}"
    );
    Ok(())
}
