//! Stock NCCL 2.21.5: its own loader takes the plugin, and its own IB transport runs on the software RDMA device, which is
//! thereby judged by code that was not written here.

mod common;

use common::bench::{Bench, SIZES};
use common::{dist, plugin, setting};
use ferrite::error::{Error, Result};
use ferrite::library::Source;
use ferrite::pair::{self, Setting};
use ferrite::transport::Transport;
use ferrite::wheel;
use std::process::Command;

/// Every size through the transport that `source` names, in two processes that know `library_path` beside the device.
fn carries_everything(test: &str, source: &Source, name: &str, setting: &Setting) -> Result<()> {
    pair::run(test, setting, |seat| {
        let transport = Transport::open(source)?;
        assert_eq!(transport.name(), name);
        let bench = Bench::open(seat, transport, 8 << 20)?;
        for (i, &size) in SIZES.iter().enumerate() {
            bench.exchange(seat, i, size, size)?;
            bench.exchange(seat, i, size, size + 37)?;
            bench.exchange(seat, i, size + 37, size)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn loaded_as(test: &str, value: &str) -> Result<()> {
    let Some(mut setting) = setting() else { return Ok(()) };
    let source = Source::Loader { nccl: wheel::find(None)?, plugin: value.into() };
    source.net_plugin().clone_into(&mut setting.net_plugin);
    let path = format!("{}:{}", dist().join("softrnic").display(), dist().join("lib").display());
    carries_everything(test, &source, "Ferrite", &setting.env("LD_LIBRARY_PATH", path))
}

#[test]
fn nccls_loader_takes_the_plugin_by_absolute_path() -> Result<()> {
    let path = plugin().canonicalize().unwrap_or_default();
    loaded_as("nccls_loader_takes_the_plugin_by_absolute_path", &path.to_string_lossy())
}

#[test]
fn nccls_loader_takes_the_plugin_by_name() -> Result<()> {
    loaded_as("nccls_loader_takes_the_plugin_by_name", "ferrite")
}

#[test]
fn nccls_own_ib_transport_runs_on_the_software_device() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let source = Source::stock(wheel::find(None)?);
    carries_everything("nccls_own_ib_transport_runs_on_the_software_device", &source, "IB", &setting)
}

/// What a user does first, in short: both transports right on every size, and a report.
#[test]
fn the_comparison_is_valid_and_its_data_right() -> Result<()> {
    if setting().is_none() {
        return Ok(());
    }
    let report = std::env::temp_dir().join(format!("ferrite-report-{}", std::process::id()));
    let output = Command::new(dist().join("bin/ferrite"))
        .args(["compare", "--quick", "--report"])
        .arg(&report)
        .output()
        .map_err(|e| Error::io("dist/bin/ferrite compare", e))?;
    let (text, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}\n{log}");
    assert!(text.contains("valid run, data right"), "{text}");
    for file in ["report.md", "report.svg", "raw.json"] {
        assert!(report.join(file).exists(), "{file}");
    }
    std::fs::remove_dir_all(&report).map_err(|e| Error::io("removing the report", e))
}
