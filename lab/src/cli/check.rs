//! The arguments of `ferrite check`, and its lines.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::check::runner::{CheckRequest, DeviceConfig, SoftrnicPaths};
use crate::check::{points, report};
use crate::cli::exit::Exit;
use crate::cli::source_args::{SourceArgs, VerbsName};
use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::nccl::release::NcclRelease;
use crate::nccl::{library, release};
use crate::system::dist::Dist;
use crate::system::{host, output};
use crate::verbs::{Verbs, control_of};

#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(super) struct Check {
    #[command(flatten)]
    source: SourceArgs,
    /// Which libibverbs the transport gets; on the machine's own devices less can be told
    #[arg(long, value_enum, default_value = "softrnic")]
    verbs: VerbsName,
    /// What the software device's links are
    #[arg(long, value_enum, default_value = "roce")]
    link: LinkName,
    /// Devices that the transport has to fuse into one, two on each side; needs a mount namespace
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    rails: u8,
    /// Undefined memory holds arbitrary bytes, and data is read as late as a device may
    #[arg(long)]
    strict: bool,
    /// Check the one-sided operations (`ncclPutSignal`) of NCCL's built-in transport instead,
    /// 2.29.7 or later: what they do and cost; no plugin gets them; needs --stock
    #[arg(long)]
    one_sided: bool,
    /// Only these, by number or name
    #[arg(long, value_name = "NAME|NUMBER", value_delimiter = ',')]
    only: Vec<String>,
    /// Checks that run at the same time [default: one per CPU, 8 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// With the checks that take minutes
    #[arg(long)]
    long: bool,
    /// Names all checks and what they claim, and does nothing
    #[arg(long, group = "TransportArgs")]
    list: bool,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
    /// Write JUnit XML as well
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkName {
    /// RoCE
    Roce,
    /// InfiniBand
    Ib,
}

impl Check {
    pub(super) fn run(self) -> Result<Exit> {
        let all = if self.one_sided { points::one_sided() } else { points::all() };
        let count = all.len();
        let points = points::selected(all, &self.only)?;
        if self.list {
            let lines =
                points.iter().map(|p| format!("{:>2}  {:<26}  {}\n", p.number, p.name, p.claim));
            return output::write_stdout(&lines.collect::<String>()).map(|()| Exit::Good);
        }
        let (only, junit, json, jobs) =
            (!self.only.is_empty(), self.junit.clone(), self.json.clone(), self.jobs);
        [&junit, &json]
            .into_iter()
            .flatten()
            .try_for_each(|path| output::require_writable(path))?;
        let request = self.request()?;
        let title = title(&request);
        let jobs = jobs.map_or_else(jobs_of_this_machine, usize::from);
        let outcomes = request
            .run_all(&points, jobs, |outcome| output::write_stdout(&report::line(outcome)))?;
        output::write_stdout(&report::summary(&title, &outcomes))?;
        if let Some(path) = junit {
            output::write_file(&path, &report::xml(&title, &outcomes))?;
        }
        if let Some(path) = json {
            output::write_file(&path, &report::json(&title, &outcomes)?)?;
        }
        let [_, failed, _] = report::counts(&outcomes);
        if outcomes.len() < points.len() {
            output::write_stderr(format_args!(
                "ferrite: {} of {} checks were made",
                outcomes.len(),
                points.len()
            ));
            return Ok(Exit::Interrupted);
        }
        if failed == 0 {
            return Ok(Exit::Good);
        }
        let all = if only { "the checks that were named" } else { &format!("{count} checks") };
        output::write_stderr(format_args!("ferrite: {failed} of {all} failed"));
        Ok(Exit::Worse)
    }

    fn request(self) -> Result<CheckRequest> {
        let infiniband = self.link == LinkName::Ib;
        let device_config =
            DeviceConfig { infiniband, rails: self.rails.into(), strict: self.strict };
        let softrnic = match self.verbs {
            VerbsName::Softrnic => Some(software_device(self.softrnic)?),
            VerbsName::System
                if self.softrnic.is_some() || infiniband || self.rails != 1 || self.strict =>
            {
                let words = "--softrnic, --link, --rails and --strict are about the software device, not --verbs system";
                return Err(Error::Usage(words.into()));
            }
            VerbsName::System => None,
        };
        let source = absolute(self.source.source()?)?;
        if self.rails != 1 && interface(&source)? != 8 {
            let words = "--rails 2 is about version 8, whose transports merge ports by themselves; later ones: merged-devices";
            return Err(Error::Usage(words.into()));
        }
        if self.one_sided && !has_one_sided(&source)? {
            let words = "--one-sided needs --stock 2.29.7 or later: NCCL passes one-sided operations to no plugin";
            return Err(Error::Usage(words.into()));
        }
        let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
        let built_in = release::cached(NcclRelease::DEFAULT).ok().filter(|path| path.exists());
        let (long, one_sided) = (self.long, self.one_sided);
        Ok(CheckRequest { program, source, built_in, softrnic, device_config, long, one_sided })
    }
}

fn software_device(folder: Option<PathBuf>) -> Result<SoftrnicPaths> {
    let folder = folder.map_or_else(|| Dist::find().map(|dist| dist.softrnic()), Ok)?;
    // Says it if there is none, and tidies up after runs that were killed.
    Verbs::softrnic(&folder)?.clean_stale();
    let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
    let control = control_of(&folder)?;
    Ok(SoftrnicPaths { folder, control })
}

/// Whether it has a table of one-sided operations that is known here.
fn has_one_sided(source: &Source) -> Result<bool> {
    match source {
        Source::Stock { nccl } => release::verify(nccl).map(|found| found.one_sided().is_some()),
        _ => Ok(false),
    }
}

/// The version of the interface that the transport is called by.
fn interface(source: &Source) -> Result<u32> {
    match source {
        Source::Plugin { path, abi } => library::require_plugin(path, *abi),
        Source::Stock { nccl } | Source::Loader { nccl, .. } => {
            release::verify(nccl).map(|release| release.interface)
        }
    }
}

/// Processes of a point may be in another folder.
fn absolute(source: Source) -> Result<Source> {
    match source {
        Source::Plugin { path, abi } => std::fs::canonicalize(&path)
            .map(|path| Source::Plugin { path, abi })
            .map_err(|e| Error::io(format!("cannot open {}", path.display()), e)),
        other => Ok(other),
    }
}

fn title(request: &CheckRequest) -> String {
    let what = match &request.source {
        Source::Plugin { path, abi } => {
            let name = path
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            abi.map_or_else(|| name.clone(), |abi| format!("{name} (interface v{abi})"))
        }
        Source::Stock { nccl } => match release::verify(nccl) {
            Ok(release) if request.one_sided => {
                format!("one-sided operations of NCCL {release}")
            }
            Ok(release) => format!("the IB transport of NCCL {release}"),
            Err(_) => "a built-in IB transport".into(),
        },
        Source::Loader { plugin, .. } => format!("NCCL_NET_PLUGIN={plugin}"),
    };
    if request.softrnic.is_none() {
        return format!("{what} on the devices of this machine");
    }
    let DeviceConfig { infiniband, rails, strict } = request.device_config;
    let link = if infiniband { "InfiniBand" } else { "RoCE" };
    let rails = if rails == 2 { ", two rails" } else { "" };
    let strict = if strict { ", strict" } else { "" };
    format!("{what} on softrnic, {link}{rails}{strict}")
}

/// Each check has two processes that poll, but many of them wait for most of their time.
fn jobs_of_this_machine() -> usize {
    host::cpus().map_or(1, |cpus| cpus.len()).clamp(1, 8)
}

fn after_help() -> String {
    format!(
        "\
Tries NCCL's contract for a network transport, {} points, each in two fresh processes on a software RDMA device of their \
own. Prints a line for each: number, name, pass, FAIL or `skipped: why`, and what was seen. What a point means is in \
docs/conformance.md.\n\n\
Exit code 0: none failed; 1: some failed; 2: they could not be tried; 130: interrupted.",
        points::all().len()
    )
}
