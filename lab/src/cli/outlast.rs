//! The arguments of `ferrite outlast`, and its lines.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::exit::Exit;
use crate::cli::source_args::{SourceArgs, parse_size};
use crate::error::{Error, Result};
use crate::nccl::debug_log::ALL_INFO;
use crate::nccl::library::Source;
use crate::outlast::report;
use crate::outlast::report::Outcome;
use crate::outlast::runner::OutlastRequest;
use crate::outlast::scenario::{
    Fault, Ports, RETRIES, SCENARIOS, Scenario, Step, StreamPlan, parse_time,
};
use crate::system::dist::Dist;
use crate::system::output;
use crate::verbs::{Verbs, control_of};

/// What the failover of NCCL 2.30 needs to be on, and to get through what it can get through
/// (README.md, "Known of NCCL's own"). Its times are scaled as those of the retries are: as they
/// come, an attempt at recovery takes 5 s, and there are five of them.
const SWITCHES: [(&str, &str); 10] = [
    ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY", "1"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", "1"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", "1"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", "20"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", "20"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", "200"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", "200"),
    ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", "100"),
    ("NCCL_IB_RETURN_ASYNC_EVENTS", "0"),
];
/// From the end of the stream until buffers are looked at for the last time; ms.
const SETTLE_MS: u64 = 300;

#[derive(Debug, Args)]
#[command(after_help = "\
Two processes on the software device, one stream of messages from one to the other, and faults at given times. Prints for each run: \
how each end came out of it and when, the longest time between two messages, wrong bytes, bytes sent and resent. Each byte is \
compared when its message arrives; a receive buffer is looked at again before its next use, so that a late write is seen. \
--fault takes a rule of the software device (softrnic/docs/faults.md), or `clear`, `port NAME up|down`, `gid ...`, `fail DEVICE`, \
`kill|stop|continue sender|receiver`, `line cut`, `line silent TIME`; the line is the TCP connection of the set-up.\n\n\
Examples:
  ferrite outlast --scenario flap-sender,late-write --stock 2.30.7 --switches on --reps 3
  ferrite outlast --plugin PATH --fault 'port softrnic0/1 down' --at 300ms --fault 'port softrnic0/1 up' --at 350ms
  ferrite outlast --stock 2.21.5 --own-defaults --limit 60 --lasting 15s --fault 'port softrnic0/1 down' --at 1s --fault 'port softrnic0/1 up' --at 6s
  ferrite outlast --scenario all --plugin PATH --format json > ferrite.jsonl; ferrite outlast --table ferrite.jsonl

Exit code 0: no byte was wrong, however the streams ended; 1: one was, or with --finish a stream did not come to its end; \
2: it could not be tried; 130: interrupted.")]
pub(super) struct Outlast {
    #[command(flatten)]
    source: SourceArgs,
    /// Names of scenarios, or `all`
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = ["fault", "at"])]
    scenario: Vec<String>,
    /// Instead of a scenario: what is done, once or more often, each with its --at
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// When, after the start of the stream, such as 300ms
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Vec<Duration>,
    /// Names all scenarios and does nothing
    #[arg(long, group = "TransportArgs")]
    list: bool,
    /// Prints a Markdown table of what `--format json` wrote into these files, and runs nothing
    #[arg(long, value_name = "FILE", num_args = 1.., group = "TransportArgs")]
    table: Vec<PathBuf>,
    /// The built-in transport's port failover and recovery, which it has from 2.30 on [default:
    /// off]
    #[arg(long, value_enum)]
    switches: Option<Switches>,
    /// The transport's own retries (NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT), which are shortened
    /// otherwise; with a larger --limit
    #[arg(long, conflicts_with = "switches")]
    own_defaults: bool,
    /// Times that each scenario is run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// What is printed; json: an object a line
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// End with 1 unless every stream comes to its end at both ends
    #[arg(long)]
    finish: bool,
    /// An end that gets nowhere for so long has hung; s
    #[arg(long, value_name = "S", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Seed of all random decisions; each repetition adds one
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The size of each message
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = parse_size)]
    size: usize,
    /// From one message to the next
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = parse_time)]
    period: Duration,
    /// With --fault: the name of its row in the table
    #[arg(long, value_name = "NAME", default_value = "own", conflicts_with = "scenario")]
    name: String,
    /// With --fault: how long the stream lasts if nothing goes wrong
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    lasting: Duration,
    /// With --fault: the ports
    #[arg(long, value_enum, default_value = "one")]
    ports: PortsName,
    /// With --fault: when the receiver waits for this message, from 0, it makes no call for the
    /// time of --pause
    #[arg(long, value_name = "MESSAGE", requires = "pause")]
    pause_at: Option<u64>,
    /// See --pause-at
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "pause_at")]
    pause: Option<Duration>,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switches {
    /// NCCL_IB_RESILIENCY_PORT_FAILOVER=1, _PORT_RECOVERY=1 and what these need
    On,
    /// As it comes
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PortsName {
    /// One on each side
    One,
    /// Two on each side, as one device
    Two,
}

/// What is run once a repetition.
struct Trial {
    name: String,
    ports: Ports,
    /// What shortens the retries.
    retries: [(&'static str, &'static str); 2],
    pause: Option<(u64, u64)>,
    /// For [`Scenario::script`]; of an own script, the steps themselves.
    scenario: Option<Scenario>,
    own: (Vec<Step>, Duration),
}

impl Outlast {
    pub(super) fn run(self, command: Vec<String>) -> Result<Exit> {
        if self.list {
            let lines = SCENARIOS
                .iter()
                .map(|scenario| format!("{:<26}  {}\n", scenario.name, scenario.claim));
            return output::write_stdout(&lines.collect::<String>()).map(|()| Exit::Good);
        }
        if !self.table.is_empty() {
            return print_table(&self.table);
        }
        let trials = self.trials()?;
        let (reps, format, finish) = (self.reps, self.format, self.finish);
        let (limit, period, size, seed) = (self.limit, self.period, self.size, self.seed);
        let is_shortened = !self.own_defaults;
        let base = self.request(command)?;
        trials.iter().try_for_each(|trial| base.require_rules(&trial.own.0))?;
        let mut outcomes = Vec::new();
        for trial in &trials {
            for repetition in 1..=reps {
                let seed = seed.wrapping_add(u64::from(repetition - 1));
                let (script, lasting) = match trial.scenario {
                    Some(scenario) => scenario.script(seed)?,
                    None => trial.own.clone(),
                };
                let messages = (lasting.as_micros() / period.as_micros()).max(1) as u64;
                let retries = trial.retries.iter().filter(|_| is_shortened);
                let variables = retries.map(|(name, value)| ((*name).into(), (*value).into()));
                let request = OutlastRequest {
                    scenario: trial.name.clone(),
                    ports: trial.ports,
                    script,
                    seed,
                    stream: StreamPlan {
                        messages,
                        bytes: size,
                        period_us: period.as_micros() as u64,
                        pause: trial.pause,
                        settle_ms: SETTLE_MS,
                        limit_ms: limit * 1000,
                    },
                    variables: base.variables.iter().cloned().chain(variables).collect(),
                    ..base.clone()
                };
                let outcome = request.run(repetition)?;
                output::write_stdout(&match format {
                    Format::Text => report::text(&outcome),
                    Format::Json => serde_json::to_string(&outcome)? + "\n",
                })?;
                outcomes.push(outcome);
            }
        }
        judged(&outcomes, finish)
    }

    /// What is asked for; everything that can be wrong about it is looked at before anything
    /// starts.
    fn trials(&self) -> Result<Vec<Trial>> {
        if self.period < Duration::from_micros(1) {
            return Err(Error::Usage(format!("--period {:?}: it is 1us or more", self.period)));
        }
        if !self.scenario.is_empty() {
            let all = self.scenario.iter().any(|name| name == "all");
            let named = || {
                self.scenario.iter().map(|name| Scenario::named(name)).collect::<Result<Vec<_>>>()
            };
            let scenarios = if all { SCENARIOS.to_vec() } else { named()? };
            return Ok(scenarios.into_iter().map(Trial::of).collect());
        }
        if self.fault.len() != self.at.len() {
            let (faults, times) = (self.fault.len(), self.at.len());
            return Err(Error::Usage(format!(
                "each --fault has one --at: there are {faults} and {times}"
            )));
        }
        if self.fault.is_empty() {
            return Err(Error::Usage(
                "name --scenario, or --fault and --at; --list names the scenarios".into(),
            ));
        }
        let mut steps = Vec::new();
        for (text, at) in self.fault.iter().zip(&self.at) {
            if *at >= self.lasting {
                return Err(Error::Usage(format!(
                    "--fault {text:?}: --at {at:?} is not before --lasting {:?}",
                    self.lasting
                )));
            }
            steps.push(Step { at: *at, fault: Fault::parse(text)? });
        }
        steps.sort_by_key(|step| step.at);
        let name = self.name.clone();
        if SCENARIOS.iter().any(|scenario| scenario.name == name) {
            return Err(Error::Usage(format!(
                "--name {name}: a scenario has this name; --list names them all"
            )));
        }
        let ports = match self.ports {
            PortsName::One => Ports::One,
            PortsName::Two => Ports::Two,
        };
        let pause = self.pause_at.zip(self.pause.map(|pause| pause.as_millis() as u64));
        let own = (steps, self.lasting);
        Ok(vec![Trial { name, ports, retries: RETRIES, pause, scenario: None, own }])
    }

    /// What is the same in all runs.
    fn request(self, command: Vec<String>) -> Result<OutlastRequest> {
        let folder = self.softrnic.map_or_else(|| Dist::find().map(|dist| dist.softrnic()), Ok)?;
        Verbs::softrnic(&folder)?.clean_stale();
        let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
        let control = control_of(&folder)?;
        let source = match self.source.source()? {
            Source::Plugin { path, abi } => {
                let path = std::fs::canonicalize(&path)
                    .map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
                Source::Plugin { path, abi }
            }
            other => other,
        };
        if self.switches.is_some() && !matches!(source, Source::Stock { .. }) {
            return Err(Error::Usage("--switches is about --stock".into()));
        }
        let is_on = self.switches == Some(Switches::On);
        let mut variables = vec![(ALL_INFO.0.to_owned(), ALL_INFO.1.to_owned())];
        variables.extend(
            SWITCHES
                .iter()
                .filter(|_| is_on)
                .map(|(name, value)| ((*name).into(), (*value).into())),
        );
        Ok(OutlastRequest {
            program: std::env::current_exe().map_err(|e| Error::io("no own program", e))?,
            control,
            folder,
            source,
            variables,
            scenario: String::new(),
            ports: Ports::One,
            script: Vec::new(),
            stream: StreamPlan {
                messages: 0,
                bytes: 0,
                period_us: 0,
                pause: None,
                settle_ms: 0,
                limit_ms: 0,
            },
            seed: 0,
            // Without the folder that this program is in.
            command: format!("ferrite {}", command.get(1..).unwrap_or_default().join(" ")),
            suffix: match (is_on, self.own_defaults) {
                (true, _) => " with switches",
                (_, true) => " with own defaults",
                _ => "",
            },
        })
    }
}

impl Trial {
    fn of(scenario: Scenario) -> Self {
        let Scenario { name, ports, retries, pause, .. } = scenario;
        let own = (Vec::new(), Duration::ZERO);
        Self { name: name.into(), ports, retries, pause, scenario: Some(scenario), own }
    }
}

/// The exit code of these runs.
fn judged(outcomes: &[Outcome], finish: bool) -> Result<Exit> {
    let wrong: u64 = outcomes.iter().map(|outcome| outcome.received.wrong_bytes()).sum();
    if wrong > 0 {
        return Err(Error::Data(format!("{wrong} wrong bytes")));
    }
    let unfinished = outcomes.iter().filter(|outcome| !outcome.is_finished()).count();
    if finish && unfinished > 0 {
        output::write_stderr(format_args!(
            "ferrite: {unfinished} of {} streams did not come to their end",
            outcomes.len()
        ));
        return Ok(Exit::Worse);
    }
    Ok(Exit::Good)
}

fn print_table(files: &[PathBuf]) -> Result<Exit> {
    let mut outcomes = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file)
            .map_err(|e| Error::io(format!("cannot read {name}"), e))?;
        outcomes.extend(report::read_lines(&name, &text)?);
    }
    if outcomes.is_empty() {
        return Err(Error::Usage("there is no outcome in the files of --table".into()));
    }
    output::write_stdout(&report::table(&outcomes)).map(|()| Exit::Good)
}
