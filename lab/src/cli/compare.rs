//! The arguments of `ferrite compare` and `ferrite bench`, and what they print.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::meeting_args::MeetingArgs;
use crate::cli::source_args;
use crate::cli::source_args::{DeviceArgs, SourceArgs, parse_size};
use crate::error::{Error, Result};
use crate::hosts::Role;
use crate::measure::plan::Scope;
use crate::nccl::library;
use crate::nccl::library::Source;
use crate::report::table;
use crate::report::verdict;
use crate::report::verdict::conclusion;
use crate::run::compare::CompareRequest;
use crate::run::other_host::{HostPart, Meeting, OtherHost};
use crate::run::session::Runner;
use crate::run::{compare, other_host};
use crate::system::dist::Dist;
use crate::system::{host, output};
use crate::verbs::Verbs;
use crate::{hosts, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ferrite compare                               on the software RDMA device, a minute or less
  ferrite compare --seconds 300                 smaller differences, or a busier machine
  ferrite compare --verbs system                on this machine's RDMA devices
  ferrite compare --against OLD.so              two builds of the plugin, or any other net plugin
  ferrite compare --sizes 4M --find 2           another message size; 2 % must not be missed
  ferrite compare --streams 4 --set-a NCCL_IB_QPS_PER_CONNECTION=4
                                                four connections each way at once, and A with four queue pairs each
  ferrite compare --fail-if-worse 5             a loss below 5 % is reported, but is no failure
  ferrite compare --verbs system --serve        two hosts: it prints the command for the other one
  mpirun -np 2 -H HOST0,HOST1 -x MASTER_ADDR=HOST0 ferrite compare --verbs system --job
                                                the same under a launcher, a process on each host

Both sides take turns of a millisecond in the same processes. It ends as soon as every group of results is known: better, worse, \
or the same within 2 %.

Exit code 0: B is as good as A or better; 1: B is worse somewhere (see --fail-if-worse), or a byte is wrong; 2: not valid; 3: undecided, \
since a difference as large as --find might have been missed; 130: interrupted, and the report has what was measured. \
With two hosts, rank 0's process has this code and the report; the other one ends with 0 when the comparison is complete.")]
pub(super) struct Compare {
    /// B: the plugin [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// A: any net plugin of versions 8 to 12, instead of the built-in transport
    #[arg(long, value_name = "PLUGIN", alias = "baseline", conflicts_with = "nccl")]
    against: Option<PathBuf>,
    /// libnccl.so.2 of A [default: $FERRITE_NCCL, else NCCL 2.21.5 in the cache or of this
    /// machine's Python, else fetched with pip]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// The difference that must not be missed. A group that may differ by more is undecided
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    find: u32,
    /// Exit with 1 only if B is worse by this number of per cent or more; 0: if it is worse at all
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    fail_if_worse: u32,
    /// A variable for A only, such as NCCL_IB_QPS_PER_CONNECTION=4; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    set_a: Vec<(String, String)>,
    /// A variable for B only
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    set_b: Vec<(String, String)>,
    #[command(flatten)]
    meeting: MeetingArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    devices: DeviceArgs,
    /// The longest time that it may take; s [default: 60; `bench`: 10]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// The most sets: for tests, whose machine may be slow
    #[arg(long, value_name = "N", hide = true, default_value_t = usize::MAX)]
    sets: usize,
    /// Connections that are set up at once, for the time of set-up
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Message sizes of the bandwidth test [default: 64K,256K]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Connections in each direction that carry a stream at once, in equal parts. With more than
    /// one, only bandwidth both ways is measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// A worker without output for this time counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Let the workers run on any CPU instead of one each: for a plugin whose own threads move the
    /// data
    #[arg(long)]
    no_pin: bool,
    /// Folder for report.html, report.md, report.svg and raw.json
    #[arg(long, value_name = "DIR", default_value = "report", alias = "out")]
    report: PathBuf,
}

impl Compare {
    pub(super) fn run(self, command: Vec<String>) -> Result<Exit> {
        let role = self.meeting.role(2, |name| std::env::var(name).ok())?;
        if let Some(Role::Server { hosts, .. } | Role::Host { hosts: Some(hosts), .. }) = role
            && hosts != 2
        {
            return Err(Error::Usage(format!(
                "two hosts are compared over, with one process on each: the launcher has started {hosts}"
            )));
        }
        if let Some(Role::Host { place, token, .. }) = role {
            let pin = !self.common.no_pin;
            let part = self.sides(|common| common.devices.verbs());
            let part = part.map(|(sources, verbs)| HostPart { sources, verbs, pin });
            return other_host::take_part(&place, &token, self.meeting.wait(), part)
                .map(|()| Exit::Good);
        }
        // The other host may come while A is fetched here.
        let listening = match role {
            Some(Role::Server { addresses, token, .. }) => {
                Some((hosts::listen(&addresses)?, token))
            }
            _ => None,
        };
        let (sources, verbs) = self.sides(Common::prepared)?;
        let scope = Scope {
            find_percent: self.find,
            fail_percent: self.fail_if_worse,
            ..self.common.scope()
        };
        let other = listening
            .map(|(listening, token)| self.meet(listening, token, &sources, &verbs))
            .transpose()?;
        let request = self.common.request(sources, verbs, scope, command);
        self.common.run(&CompareRequest { variables: [self.set_a, self.set_b], ..request }, other)
    }

    /// A and B, and their libibverbs. What is here is looked at before A is fetched, verified and
    /// measured.
    fn sides(&self, verbs: impl FnOnce(&Common) -> Result<Verbs>) -> Result<(Vec<Source>, Verbs)> {
        let plugin = self.plugin.clone().map_or_else(|| Dist::find()?.plugin(), Ok)?;
        let is_plugin = |side: &str, path: &Path| {
            library::require_plugin(path, None).map_err(|problem| Error::Side {
                side: format!("{side} = {}", path.display()),
                problem: Box::new(problem),
                so_far: None,
            })
        };
        is_plugin("B", &plugin)?;
        let verbs = verbs(&self.common)?;
        let a = match &self.against {
            Some(path) => is_plugin("A", path).map(|_| Source::plugin(path))?,
            None => Source::stock(source_args::find(self.nccl.as_deref())?),
        };
        Ok((vec![a, Source::plugin(plugin)], verbs))
    }

    fn meet(
        &self,
        (listener, port): (TcpListener, u16),
        token: String,
        sources: &[Source],
        verbs: &Verbs,
    ) -> Result<Arc<OtherHost>> {
        let wait = self.meeting.wait();
        let system = if *verbs == Verbs::System { " --verbs system" } else { "" };
        output::write_stderr(format_args!(
            "on the other host: ferrite compare THIS_HOST:{port} --token {token}{system}    (waiting for it, {})",
            host::seconds(wait)
        ));
        OtherHost::meet(Meeting { listener, token, wait }, sources, verbs).map(Arc::new)
    }
}

impl Bench {
    pub(super) fn run(self, command: Vec<String>) -> Result<Exit> {
        let verbs = self.common.prepared()?;
        let scope = Scope { seconds: self.common.seconds.unwrap_or(10), ..self.common.scope() };
        let request = self.common.request(vec![self.source.source()?], verbs, scope, command);
        self.common.run(&request, None)
    }
}

impl Common {
    /// The libibverbs, after a look at where the report is to go.
    fn prepared(&self) -> Result<Verbs> {
        let verbs = self.devices.verbs()?;
        output::require_writable_in(&self.report, &report::FILES)?;
        Ok(verbs)
    }

    /// What to run: both sides with the same variables.
    fn request(
        &self,
        sources: Vec<Source>,
        verbs: Verbs,
        scope: Scope,
        command: Vec<String>,
    ) -> CompareRequest {
        CompareRequest {
            sources,
            variables: Default::default(),
            verbs,
            devices: self.devices.devices(),
            scope,
            most_sets: self.sets,
            command,
        }
    }

    fn run(&self, request: &CompareRequest, other: Option<Arc<OtherHost>>) -> Result<Exit> {
        let runner = Runner::of_this_program(Duration::from_secs(self.timeout), !self.no_pin)?;
        let runner = Runner { other, ..runner };
        if runner.other.is_none() && host::cpus()?.len() < 2 {
            log::warn!("there is one CPU only: two polling processes share it, times mean little");
        }
        let (record, problem) = compare::run(request, &runner)?;
        // Each is written even if the other cannot be.
        if let Some(words) = table::different_variables(&record) {
            output::write_stderr(format_args!("{words}"));
        }
        let printed = output::write_stdout(&verdict::first_screen(&record));
        report::write(&record, &self.report)?;
        printed?;
        output::write_stdout(&format!("Details: {}\n", self.report.join("report.html").display()))?;
        match problem {
            Some(problem) => Err(problem),
            None if record.complete => Ok(conclusion(&record).into()),
            None => Ok(Exit::Interrupted),
        }
    }

    fn scope(&self) -> Scope {
        let scope = Scope {
            seconds: self.seconds.unwrap_or_else(|| Scope::default().seconds),
            connections: self.connections,
            streams: self.streams,
            ..Scope::default()
        };
        match &self.sizes[..] {
            [] => scope,
            sizes => Scope { bandwidth_sizes: sizes.to_vec(), ..scope },
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err(format!("{text} is not NAME=VALUE")),
    }
}
