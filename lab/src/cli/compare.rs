//! The arguments of `ferrite compare` and `ferrite bench`, and what they print.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::meeting_args::MeetingArgs;
use crate::cli::source_args;
use crate::cli::source_args::{DeviceArgs, SourceArgs, parse_size};
use crate::error::{Error, Result};
use crate::hosts::Role;
use crate::measure::plan::{DEPTH, Scope};
use crate::nccl::library;
use crate::nccl::library::Source;
use crate::report::table;
use crate::report::verdict::{bias, change, conclusion, tails, verdict};
use crate::results::earlier::EarlierRun;
use crate::results::record::{Record, Side};
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
  ferrite compare                               on the software RDMA device, about three minutes
  ferrite compare --quick                       less than a minute, for continuous integration
  ferrite compare --verbs system                on this machine's RDMA devices
  ferrite compare --baseline OLD.so             two builds of the plugin
  ferrite compare --sizes 1M,4M --reps 48       fewer sizes, smaller differences
  ferrite compare --streams 4 --set-a NCCL_IB_QPS_PER_CONNECTION=4
                                                four connections each way at once, and A with four queue pairs each
  ferrite compare --fail-if-worse 5             a loss of less than 5 % is told, and is no failure
  ferrite compare --earlier report/raw.json --report new
                                                and whether B is against A what it was in that run
  ferrite compare --verbs system --serve        over two hosts: it prints the line for the other one
  mpirun -np 2 -H HOST0,HOST1 -x MASTER_ADDR=HOST0 ferrite compare --verbs system --job
                                                the same under a launcher, a process on each host

Exit code 0: B is as good as A or better; 1: B is worse somewhere (see --fail-if-worse), or a byte is wrong; 2: not valid; 3: undecided, \
since the machine is too noisy or the runs are too few, see --find; 130: interrupted, and the report holds what had been measured. With --earlier, 1 is also that B has become worse against A, and 3 \
that a change might have been missed. Of two hosts rank 0's has that code and the report; the other one's is 0 when the comparison has \
come to its end.")]
pub(super) struct Compare {
    /// B: the plugin [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// A: another plugin instead of the built-in transport
    #[arg(long, value_name = "PLUGIN", conflicts_with = "nccl")]
    baseline: Option<PathBuf>,
    /// libnccl.so.2 of A [default: $FERRITE_NCCL, else NCCL 2.21.5 in the cache or of this
    /// machine's Python, else fetched with pip]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// Exit with 3 unless a difference of so many per cent could have been found in each group of
    /// rows
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    find: u32,
    /// Exit with 1 only where B is found to be worse by so many per cent or more; 0: wherever it is
    /// worse
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    fail_if_worse: u32,
    /// Compare with an earlier comparison too, by its raw.json: what B is against A, now and then.
    /// Another A, processor or form of measurement is refused; another host, kernel, device or
    /// variable is told
    #[arg(long, value_name = "RAW_JSON")]
    earlier: Option<PathBuf>,
    /// A variable that A's processes alone get, such as NCCL_IB_QPS_PER_CONNECTION=4; may be given
    /// several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    set_a: Vec<(String, String)>,
    /// The same for B
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
    /// Repetitions, each in fresh processes, best a multiple of 6 [default: 24, with --quick 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    reps: Option<u16>,
    /// Fewer sizes and repetitions: less than a minute instead of three
    #[arg(long)]
    quick: bool,
    /// Connections of the many-at-once set-up [default: 100, with --quick 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Option<u32>,
    /// Message sizes of the bandwidth test [default: 8,64,512,4K,16K,64K,256K,1M,4M, with --quick
    /// 8,4K,64K,1M,4M]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Connections each way that a stream is over at once, with as much over each; more than one:
    /// bandwidth both ways is all that is measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Time of each measurement; ms [default: 40, with --quick 20]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: Option<u64>,
    /// A worker that is silent for so long counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Let the workers run on any CPU instead of one each
    #[arg(long)]
    no_pin: bool,
    /// Where report.md, report.svg and raw.json go
    #[arg(long, value_name = "DIR", default_value = "report")]
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
        let earlier = self.earlier.as_deref().map(EarlierRun::read).transpose()?;
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
        self.common
            .run(&CompareRequest { variables: [self.set_a, self.set_b], earlier, ..request }, other)
    }

    /// A and B, and their libibverbs. What is here is looked at before A is fetched, verified and
    /// measured.
    fn sides(&self, verbs: impl FnOnce(&Common) -> Result<Verbs>) -> Result<(Vec<Source>, Verbs)> {
        let plugin = self.plugin.clone().map_or_else(|| Dist::find()?.plugin(), Ok)?;
        library::require_plugin(&plugin, None)?;
        let verbs = verbs(&self.common)?;
        let a = match &self.baseline {
            Some(path) => library::require_plugin(path, None).map(|_| Source::plugin(path))?,
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
        let scope = self.common.scope();
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

    /// What to run: both sides with the same variables, compared with no earlier run.
    fn request(
        &self,
        sources: Vec<Source>,
        verbs: Verbs,
        scope: Scope,
        command: Vec<String>,
    ) -> CompareRequest {
        let devices = self.devices.devices();
        CompareRequest {
            sources,
            variables: Default::default(),
            verbs,
            devices,
            scope,
            earlier: None,
            command,
        }
    }

    fn run(&self, request: &CompareRequest, other: Option<Arc<OtherHost>>) -> Result<Exit> {
        let runner = Runner::of_this_program(Duration::from_secs(self.timeout), !self.no_pin)?;
        let runner = Runner { other, ..runner };
        if runner.other.is_none() && host::cpus()?.len() < 2 {
            log::warn!("there is one CPU only: two polling processes share it, times mean little");
        }
        let record = compare::run(request, &runner)?;
        // Each is told whether or not the other can be written.
        let printed = output::write_stdout(&summary(&record));
        report::write(&record, &self.report)?;
        printed?;
        output::write_stdout(&format!(
            "{0}/report.md  {0}/report.svg  {0}/raw.json\n",
            self.report.display()
        ))?;
        Ok(if record.complete { conclusion(&record).into() } else { Exit::Interrupted })
    }

    fn scope(&self) -> Scope {
        let mut scope = if self.quick { Scope::quick() } else { Scope::standard() };
        scope.streams = self.streams;
        if let Some(reps) = self.reps {
            scope.repetitions = reps.into();
        }
        if let Some(connections) = self.connections {
            scope.connections = connections;
        }
        if let Some(slice) = self.slice {
            scope.slice_ms = slice;
        }
        if !self.sizes.is_empty() {
            scope.bandwidth_sizes.clone_from(&self.sizes);
        }
        scope
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err(format!("{text} is not NAME=VALUE")),
    }
}

/// What a user sees at the end.
fn summary(record: &Record) -> String {
    let mut text = String::new();
    for side in &record.sides {
        text += &format!("{} = {}{}\n", side.label, side.title(), table::variables(side));
    }
    let Some(Side { devices: [zero, one], cpus, .. }) = record.sides.first() else {
        return text;
    };
    let cpus = match cpus {
        [Some(zero), Some(one)] => format!("CPUs {zero} and {one}"),
        _ => "any CPU".into(),
    };
    text += &format!(
        "rank 0 on {}{}, rank 1 on {}{}, {cpus}; {}, {:.0} s; streams keep {DEPTH} in flight{}\n",
        table::host_of(record, 0),
        zero.name,
        table::host_of(record, 1),
        one.name,
        table::repetitions(record),
        record.seconds,
        table::over_connections(&record.scope)
    );
    for warning in table::warnings(record) {
        text += &format!("{warning}\n");
    }
    text += "\n";
    for table in table::tables(record) {
        text += &format!("{}\n", table.text());
    }
    if let Some(bias) = bias(record) {
        text += &format!("{bias}\n");
    }
    if let Some(tails) = tails(record) {
        text += &format!("{tails}\n");
    }
    for table in table::changes(record).into_iter().take(1) {
        text += &format!("{}\n", table.text());
    }
    let change = change(record).map_or_else(String::new, |change| format!("{change}\n"));
    text + &format!("{}\n{change}", verdict(record))
}
