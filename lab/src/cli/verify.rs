//! The arguments of `ferrite verify`, and its lines.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use nccl_net::inspect::version;

use crate::cli::exit::Exit;
use crate::cli::source_args::{DeviceArgs, SourceArgs};
use crate::error::{Error, Result};
use crate::measure::verify;
use crate::measure::verify::Check;
use crate::nccl::library::Source;
use crate::nccl::{library, release};
use crate::results::record::LoadedTransport;
use crate::run::compare::{Topology, VerifyRequest};
use crate::run::session::{Runner, Session};
use crate::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints one line per kind and size of message, every byte of which was checked in both directions. \
Each way of connecting runs in two fresh processes. What is named by --over has to be possible; \
without it, what is not possible is said and left out.\n\n\
Exit code 0: every byte is right; 1: one is wrong; 2: it could not be tried; 130: interrupted.")]
pub(super) struct Verify {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// What the connections lie on [default: all that the transport can do here]
    #[arg(long, value_enum, value_delimiter = ',')]
    over: Vec<TopologyName>,
    /// Rank 1 loads this plugin: another build of the one that --plugin names, which then has to
    /// understand it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["stock", "loader"])]
    peer_plugin: Option<PathBuf>,
    /// Instead of all other checks, stream so many messages of 64 KiB each way: time for faults to
    /// happen in
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u64).range(1..))]
    long: Option<u64>,
    /// A worker without output for this time counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopologyName {
    /// One connection each way, rank 0 on dev0 and rank 1 on dev1
    Single,
    /// Two connections each way at once, on the first two devices
    Parallel,
    /// One connection each way over two devices made into one
    Fused,
}

impl From<TopologyName> for Topology {
    fn from(name: TopologyName) -> Self {
        match name {
            TopologyName::Single => Self::Single,
            TopologyName::Parallel => Self::Parallel,
            TopologyName::Fused => Self::Fused,
        }
    }
}

impl Verify {
    pub(super) fn run(self) -> Result<Exit> {
        let runner = Runner::of_this_program(Duration::from_secs(self.timeout), true)?;
        let named = !self.over.is_empty();
        let mut over: Vec<Topology> = self.over.iter().map(|name| Topology::from(*name)).collect();
        if !named {
            over = Topology::ALL
                .into_iter()
                .filter(|over| self.long.is_none() || *over != Topology::Parallel)
                .collect();
        }
        let (verbs, devices) = (self.devices.verbs()?, self.devices.devices());
        let source = self.source.source()?;
        let peer = self.peer_plugin.map(|path| peer_of(&source, path)).transpose()?;
        let request = VerifyRequest { source, peer, verbs, devices, long: self.long };
        // All of them before the first runs.
        let over: Vec<_> = over
            .into_iter()
            .map(|over| Ok((over, over.obstacle(&request.source)?)))
            .collect::<Result<_>>()?;
        if let Some((over, Some(why))) =
            over.iter().find(|(_, obstacle)| named && obstacle.is_some())
        {
            return Err(Error::Usage(format!("{over}: {why}")));
        }
        request.verbs.clean_stale();
        let mut all = Vec::new();
        for (over, obstacle) in over {
            let mut begin = |what: &str| log::debug!("{over}: {what}");
            let ran = match obstacle {
                Some(why) => Err(Error::NotFused(why)),
                None => request.run(over, &runner, &mut begin),
            };
            let session = match ran {
                Err(Error::NotFused(why)) if !named => {
                    output::write_stdout(&format!("{over}: left out; {why}\n"))?;
                    continue;
                }
                ran => ran?,
            };
            let checks = verify::merged(&session.checks);
            output::write_stdout(&lines(over, &session, &checks))?;
            all.extend(checks);
        }
        summary(&all)
    }
}

/// The same interface of another file.
fn peer_of(source: &Source, path: PathBuf) -> Result<Source> {
    let abi = if let Source::Plugin { abi, .. } = source { *abi } else { None };
    library::require_plugin(&path, abi)?;
    if path.canonicalize().ok() == source.file().canonicalize().ok() {
        return Err(Error::Usage(format!(
            "--peer-plugin is the file that --plugin names: {}",
            path.display()
        )));
    }
    Ok(Source::Plugin { path, abi })
}

/// What a transport calls itself, and its version.
fn named(loaded: &LoadedTransport) -> String {
    let version = loaded.identity.nccl_version.map(release::version_text);
    format!(
        "{} {}",
        loaded.identity.name,
        version.or_else(|| loaded.version.clone()).unwrap_or_default()
    )
}

fn lines(over: Topology, session: &Session, checks: &[Check]) -> String {
    let [zero, one] = &session.loaded[0];
    let device = |loaded: &LoadedTransport| loaded.devices[loaded.device].name.clone();
    let on = match over {
        Topology::Parallel => zero
            .devices
            .iter()
            .take(2)
            .map(|device| device.name.clone())
            .collect::<Vec<_>>()
            .join(", "),
        Topology::Single | Topology::Fused => format!("{} and {}", device(zero), device(one)),
    };
    let mut text =
        format!("{over}: {} (interface v{}) on {on}", named(zero), zero.identity.interface);
    if zero.identity.file != one.identity.file {
        text += &format!("; rank 1: {}", named(one));
    }
    text.push('\n');
    for check in checks {
        let verdict = if check.wrong == 0 { "right" } else { "WRONG" };
        let unit = if check.kind == "group" { "messages together" } else { "B" };
        text += &format!(
            "  {verdict}  {:<9} {:>8} {unit:<17} {:>6} checked",
            check.kind, check.bytes, check.messages
        );
        if check.wrong > 0 {
            text += &format!(", {} wrong: {}", check.wrong, check.fault.as_deref().unwrap_or("?"));
        }
        text.push('\n');
    }
    text
}

fn summary(checks: &[Check]) -> Result<Exit> {
    let messages: u64 = checks.iter().map(|check| check.messages).sum();
    let wrong: u64 = checks.iter().map(|check| check.wrong).sum();
    if messages == 0 {
        return Err(Error::Refused("nothing was checked".into()));
    }
    let text = format!("{} checks, {messages} messages checked byte by byte", checks.len());
    if wrong > 0 {
        return Err(Error::Data(format!("{text}, {wrong} of them wrong")));
    }
    output::write_stdout(&format!(
        "valid run, data right: {text}; by ferrite {}\n",
        version::text()
    ))?;
    Ok(Exit::Good)
}
