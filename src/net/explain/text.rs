//! A report for people.

use super::end::ExplainedEnd;
use super::set_up::SetUp;
use crate::net::peer::recovery_progress::RecoveryProgress;
use crate::proto::control::Time;
use crate::proto::explain::inquiry::{EndId, Finding, Inquiry, WaitingPeer};
use crate::proto::explain::message::{Cause, LeastLead};
use crate::proto::explain::numbers::Numbers;
use crate::proto::explain::operation::{Begun, Operation};
use crate::proto::explain::verdict::Verdict;
use crate::proto::identity::Identity;
use std::time::Duration;

/// The most waits in a report.
pub const MAX_WAITS: usize = 256;

/// Names for an end.
#[derive(Debug, Clone, Default)]
pub struct EndName {
    /// The name of its device.
    pub device: String,
    /// The name of its peer, with device and address.
    pub peer: String,
    /// Why the connection has ended; empty if it has not.
    pub end: String,
    /// The progress of a long recovery, if any.
    pub recovery: Option<RecoveryProgress>,
}

impl EndName {
    /// The names of `end`.
    pub fn of(end: &dyn ExplainedEnd) -> Self {
        let peer = end.peer();
        let (device, recovery) = (end.device().to_owned(), peer.progress());
        Self { device, peer: peer.peer().to_string(), end: peer.reason(), recovery }
    }
}

/// The result of a check of all waits of a process.
#[derive(Debug)]
pub struct Report {
    /// The number of the report in this process, from 1.
    pub number: u32,
    /// This process.
    pub me: Identity,
    /// How long a wait lasts before it is reported.
    pub limit: Duration,
    /// The cause of each wait with the names of its end, for at most [`MAX_WAITS`] ends. The text
    /// is about the first one.
    pub findings: Vec<(Finding, EndName)>,
    /// The number of waiting ends.
    pub waits: usize,
    /// If no cause is known: the process that is furthest behind in sending.
    pub least_lead: Option<LeastLead>,
    /// Waiting set-ups, at most [`MAX_WAITS`]. If no message waits, the text is about the first
    /// one.
    pub set_ups: Vec<SetUp>,
    /// The number of waiting set-ups.
    pub set_ups_in_all: usize,
    /// Whether the user has set the time after which a wait is reported.
    pub is_limit_set: bool,
}

impl Report {
    /// A report in which no message waits.
    pub fn without_messages(me: Identity, number: u32, limit: Duration) -> Self {
        Self {
            number,
            me,
            limit,
            findings: Vec::new(),
            waits: 0,
            least_lead: None,
            set_ups: Vec::new(),
            set_ups_in_all: 0,
            is_limit_set: false,
        }
    }

    /// Adds waiting set-ups, the most important first.
    pub fn with_set_ups(self, mut set_ups: Vec<SetUp>, is_limit_set: bool) -> Self {
        let set_ups_in_all = set_ups.len();
        set_ups.truncate(MAX_WAITS);
        Self { set_ups, set_ups_in_all, is_limit_set, ..self }
    }

    /// A report of what is known now. `name` returns the names of an end.
    pub fn new(
        inquiry: &Inquiry,
        now: Time,
        number: u32,
        limit: Duration,
        name: impl Fn(EndId) -> EndName,
    ) -> Self {
        let mut findings = inquiry.findings(now);
        // The nearest cause first: this process knows more about it than others do.
        let depth =
            |finding: &Finding| finding.cause.as_ref().map_or(u16::MAX, |cause| cause.depth);
        findings.sort_by_key(depth);
        let is_known = findings.first().is_none_or(|finding| finding.cause.is_some());
        let waits = findings.len();
        findings.truncate(MAX_WAITS);
        let names: Vec<_> = findings.iter().map(|finding| name(finding.id)).collect();
        let findings = findings.into_iter().zip(names).collect();
        let least_lead = if is_known { None } else { inquiry.least_lead(now) };
        Self {
            findings,
            waits,
            least_lead,
            ..Self::without_messages(inquiry.me(None), number, limit)
        }
    }

    /// The wait that the text is about, and the names of its end.
    pub fn main(&self) -> Option<&(Finding, EndName)> {
        self.findings.first()
    }

    /// Whether this process reports something that others do not: it is next to the cause, has rank
    /// 0, or no cause is known.
    pub fn is_for_operators(&self) -> bool {
        if self.findings.is_empty() {
            return self.set_ups.first().is_some_and(|set_up| set_up.is_warning(self.is_limit_set));
        }
        let depth =
            self.main().and_then(|(finding, _)| finding.cause.as_ref()).map(|cause| cause.depth);
        let moves = self.main().is_some_and(|(finding, _)| finding.verdict == Verdict::Moving);
        !moves && (depth.is_none_or(|depth| depth == 1) || self.me.rank == Some(0))
    }

    /// One line.
    pub fn text(&self) -> String {
        let set_up = of_set_ups(&self.set_ups, self.set_ups_in_all);
        let Some((finding, name)) = self.main() else {
            return set_up.unwrap_or_else(|| "no message waits".into());
        };
        let EndName { device, peer, end, .. } = name;
        let is_asked = self.set_ups.first().is_some_and(SetUp::is_asked);
        let set_up =
            set_up.filter(|_| is_asked).map(|text| format!(" Also: {text}.")).unwrap_or_default();
        let age = seconds(finding.age);
        let what = match finding.end.numbers {
            Numbers::Sender { wants: true, .. } => "to be asked for data by",
            Numbers::Sender { .. } => "for acknowledgements of",
            Numbers::Receiver { posted, arrived, .. } if posted == arrived => {
                "for a flush of data of"
            }
            Numbers::Receiver { .. } => "for data of",
        };
        let others = match self.waits - 1 {
            0 => String::new(),
            n => format!(" {n} more connection(s) of this process wait too."),
        };
        let rank = self.me.rank.map(|rank| format!("rank {rank} ")).unwrap_or_default();
        let why = match finding.verdict {
            Verdict::PeerGone => format!("the connection has ended: {end}"),
            _ => self.why(finding, name.recovery.as_ref()),
        };
        let operation = finding
            .operation
            .as_ref()
            .map(|operation| format!("in {operation} "))
            .unwrap_or_default();
        let start = format!("{device}: {rank}has been waiting for {age} s {operation}");
        match (finding.verdict, &finding.cause) {
            // The cause comes first: a log may cut the line.
            (Verdict::PeerWaits, Some(cause)) => {
                let away = cause.depth - 1;
                let cause = cause_text(cause, finding.operation.as_ref());
                format!(
                    "{start}because of others. The cause, {away} connection(s) away: {cause}. This process waits {what} \
                     {peer}, which waits too.{others}{set_up}"
                )
            }
            _ => format!("{start}{what} {peer}: {why}.{others}{set_up}"),
        }
    }

    fn why(&self, finding: &Finding, recovery: Option<&RecoveryProgress>) -> String {
        match (&finding.cause, finding.verdict) {
            (_, Verdict::PeerWaits) => self.circle(),
            (_, Verdict::OrderDiffers) => format!(
                "NCCL there has not launched it, and NCCL here has not launched an operation of another communicator for \
                 which others wait. Probably the two processes use two communicators in different orders: compare \
                 py-spy dump of both{}",
                numbers(finding)
            ),
            (_, Verdict::Recovering) if recovery.is_some() => {
                recovery.map(ToString::to_string).unwrap_or_default() + &numbers(finding)
            }
            (_, verdict) => {
                reason(verdict, finding.operation.as_ref(), finding.begun) + &numbers(finding)
            }
        }
    }

    /// Describes that all processes asked wait for each other.
    fn circle(&self) -> String {
        let least = self.least_lead.as_ref().map(|LeastLead { who, lead }| {
            format!(
                ". Check the GPU of {who} first: it has sent the least, compared with what it has received ({lead:+} messages)"
            )
        });
        format!(
            "that process waits too, and so do all others that could be asked{}. Either a GPU hangs, or ranks launched \
             operations of two communicators in different orders",
            least.unwrap_or_default()
        )
    }
}

/// The reason, and what to check. `begun` says whether the peer has begun `operation`.
fn reason(verdict: Verdict, operation: Option<&Operation>, begun: Begun) -> String {
    let text = match verdict {
        Verdict::PeerHasNotSent => {
            let what = "NCCL there has not called isend, and waits for no peer";
            return format!("{what}. {}", owes(operation, begun));
        }
        Verdict::PeerHasNotAsked => {
            let what = "NCCL there has not called irecv, and waits for no peer";
            return format!("{what}. {}", owes(operation, begun));
        }
        Verdict::PeerSilent => {
            "that process does not answer, although its control connection is up. It is stopped, swaps or gets no CPU, or \
             its host is down. If /proc/PID/status has state T, run kill -CONT PID"
        }
        Verdict::PeerGone => {
            "the connection has ended: that process has ended or closed it, or one of the two has failed. Find the first \
             error in both logs"
        }
        Verdict::DataLost => {
            "messages are posted but not acknowledged, and have not arrived: the path loses them. Check ports, cables and \
             switches between the two"
        }
        Verdict::AcknowledgementsLost => {
            "messages have arrived there but are not acknowledged: the path back loses the acknowledgements. Check ports, \
             cables and switches between the two"
        }
        Verdict::Unacknowledged => {
            "messages are posted but not acknowledged, and the control connection is lost: the path or that host is down. \
             Check the host and both networks"
        }
        Verdict::ClearToSendsLost => {
            "the receiver has called irecv, but its clear-to-sends do not arrive at the sender: the path loses them. Check \
             ports, cables and switches between the two"
        }
        Verdict::Flush => {
            "all data has arrived, but the read that flushes it to GPU memory does not complete. Check the GPU and its PCIe \
             path: nvidia-smi, dmesg"
        }
        Verdict::OwnNotTested => {
            "NCCL in this process makes no call, although requests are outstanding: its progress thread has ended or is \
             blocked. Run py-spy dump --native"
        }
        Verdict::PeerNotTested => {
            "NCCL there makes no call, although requests are outstanding: its progress thread has ended or is blocked. Run \
             py-spy dump --native there"
        }
        Verdict::Recovering => {
            "the connection between them is recovering from a fault. Read the log of either process, or run `ferrite hang` \
             there"
        }
        Verdict::Unreachable => {
            "the control connection is lost, so the peer cannot be asked. Ferrite dials it again"
        }
        Verdict::NotAccepted => {
            "NCCL there has not called accept for this connection. Run py-spy dump there"
        }
        Verdict::OtherTags => {
            "the receiver has called irecv with other tags only. This is a bug in Ferrite or in its caller: report it with \
             the JSON files of both"
        }
        Verdict::Moving => "that process makes progress with other messages",
        Verdict::PeerWaits | Verdict::Unknown => "what that process waits for is not known yet",
        Verdict::OrderDiffers => {
            "NCCL there has not launched it, and NCCL in the first has not launched an operation of another communicator for \
             which others wait. Probably the two use two communicators in different orders: compare py-spy dump of both"
        }
        Verdict::NotWaiting | Verdict::OwnHasNotAsked | Verdict::OwnHasNotSent => {
            "it no longer waits"
        }
    };
    text.into()
}

/// What a process that owes a message of `operation` is doing.
fn owes(operation: Option<&Operation>, begun: Begun) -> String {
    let function = operation.map_or("operation", |operation| operation.call.function.name());
    match begun {
        Begun::Unknown => {
            "Either its program does something else (py-spy dump), or a GPU of that host hangs (nvidia-smi)".into()
        }
        Begun::Yes => {
            "NCCL there has launched the operation: a GPU of that host hangs, or is busy with earlier work. Check nvidia-smi \
             and dmesg"
                .into()
        }
        Begun::No(last) => {
            let last = last.map_or_else(|| "none".into(), |last| format!("number {last}"));
            format!(
                "NCCL there has not launched the operation (last {function} of this communicator: {last}). Its program has not \
                 called it, or an earlier launch holds it up: run py-spy dump there"
            )
        }
    }
}

/// The counters of both ends, in parentheses.
fn numbers(finding: &Finding) -> String {
    let of = |numbers: &Numbers| match numbers {
        Numbers::Sender { seen, sent, acknowledged, .. } => {
            format!("{seen} clear-to-sends seen, {sent} messages sent, {acknowledged} acknowledged")
        }
        Numbers::Receiver { posted, announced, arrived, .. } => {
            format!("{posted} receives posted, {announced} announced, {arrived} arrived")
        }
    };
    let theirs =
        finding.theirs.as_ref().map(|theirs| format!("; there: {}", of(&theirs.end.numbers)));
    format!(" (here: {}{})", of(&finding.end.numbers), theirs.unwrap_or_default())
}

/// The line for a reported wait that has ended by itself.
pub fn wait_ended(after: Duration, next: Duration) -> String {
    format!(
        "the wait ended by itself after {} s. From now on, a wait is reported after {} s",
        seconds(after),
        next.as_secs()
    )
}

/// Describes the first of `set_ups`, and that there are `in_all`; `None` if none waits.
pub fn of_set_ups(set_ups: &[SetUp], in_all: usize) -> Option<String> {
    let first = set_ups.first()?;
    Some(match in_all - 1 {
        0 => first.to_string(),
        n => format!("{first}. {n} more listener(s) and connect(s) of this process wait too"),
    })
}

/// The line for a reported wait before a connection existed that has ended or changed.
pub fn set_up_ended(after: Duration) -> String {
    format!(
        "the wait for a connection ended after {} s: set-up continued, or NCCL gave it up",
        seconds(after)
    )
}

/// The line for a connection that was closed while it waited, by NCCL or after an error. `said` is
/// the earlier report.
pub fn closed(after: Duration, said: &str) -> String {
    format!(
        "the connection was closed after a wait of {} s. The report was: {said}",
        seconds(after)
    )
}

/// The line for a peer that waits for this process.
pub fn owed(owed: &WaitingPeer, EndName { device, peer, .. }: &EndName) -> String {
    let (what, call) = match owed.verdict {
        Verdict::OwnHasNotSent => ("for data of this process", "isend"),
        _ => ("to be asked for data by this process", "irecv"),
    };
    let age = seconds(owed.age);
    let (operation, begun) = match &owed.operation {
        None => (String::new(), ""),
        Some((operation, begun)) => {
            let begun = match begun {
                Begun::Unknown => "",
                Begun::Yes => ". NCCL here has launched the operation",
                Begun::No(_) => ". NCCL here has not launched the operation",
            };
            (format!("in {operation} "), begun)
        }
    };
    format!(
        "{device}: {peer} has been waiting for {age} s {operation}{what}. NCCL here has not called {call}, and waits for no \
         peer{begun}"
    )
}

/// Seconds with one decimal.
fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

/// Describes a cause, which another process may have found. `said` is the operation that the
/// sentence has already named.
pub fn cause_text(cause: &Cause, said: Option<&Operation>) -> String {
    let Cause { verdict, near, far, operation, begun, .. } = cause;
    let is_said = |operation: &&Operation| {
        said.is_some_and(|said| {
            (said.call, said.communicator) == (operation.call, operation.communicator)
        })
    };
    let other = operation.as_ref().filter(|operation| !is_said(operation));
    let within = other.map(|operation| format!(" in {operation}")).unwrap_or_default();
    let why = match verdict {
        Verdict::Recovering if !cause.recovery.is_empty() => {
            format!("the connection between them {}", cause.recovery)
        }
        Verdict::OwnNotTested => "NCCL in the first makes no call, although requests are outstanding: its progress thread has \
             ended or is blocked. Run py-spy dump --native there"
            .into(),
        _ => reason(*verdict, operation.as_ref(), *begun),
    };
    format!("{near} waits{within} for {far}: {why}")
}

#[cfg(test)]
mod tests {
    use super::super::json::json;
    use super::*;
    use crate::log_line::{self, DEVICE, HOST};
    use crate::net::peer::recovery_progress::RailStanding;
    use crate::proto::explain::message::Standing;
    use crate::proto::explain::numbers::End;
    use crate::proto::explain::operation::{Call, Function, PeerRank};
    use crate::proto::explain::snapshot::{CheckedEnd, Contact, EndCheck, EndSnapshot};
    use std::cell::Cell;
    use std::time::Instant;

    /// The words for each cause, as a process that is further away has them.
    #[test]
    fn what_the_log_says_of_each_cause() {
        let who =
            |rank| Identity { host: "n-0007".into(), pid: 4711, rank: Some(rank), label: None };
        let call = Call { function: Function::AllReduce, number: Some(7) };
        let operation =
            Operation { call, communicator: 1, name: "dp".into(), peer: PeerRank::Known(3) };
        let recovery = RecoveryProgress {
            since: Instant::now(),
            attempts: 21,
            cause: "no acknowledgement on rail(s) 0".into(),
            waits_for: "New queue pairs are being connected and tested".into(),
            rails: vec![RailStanding {
                number: 0,
                port: "mlx5_0:1".into(),
                is_usable: true,
                is_usable_by_peer: true,
            }],
        };
        let cause = |verdict, begun| Cause {
            verdict,
            near: who(6),
            far: who(3),
            depth: 2,
            age_ms: 0,
            waited_ms: 10_000,
            operation: Some(operation.clone()),
            begun,
            recovery: recovery.summary(),
        };
        let mut text = String::new();
        for verdict in ALL {
            text += &format!(
                "{verdict:?}: {}\n",
                cause_text(&cause(verdict, Begun::No(Some(6))), None)
            );
        }
        text +=
            &format!("begun: {}\n", cause_text(&cause(Verdict::PeerHasNotSent, Begun::Yes), None));
        text += &format!("own recovery: {recovery}\n");
        testkit::snapshot!("hang_causes", &text);
    }

    /// The line of a process that waits in the longest operation, for a peer with the longest names.
    fn line(verdict: Verdict, cause: Option<Cause>, recovery: Option<RecoveryProgress>) -> String {
        let (peer, me) = (log_line::identity(131_070), log_line::identity(131_072));
        let numbers = Numbers::Receiver {
            posted: 4_000_000_000,
            announced: 4_000_000_000,
            flushes: false,
            arrived: 3_999_999_999,
        };
        let end = End { numbers, recovers: false, is_untested: false, still_ms: 10_000 };
        let standing = Standing {
            end,
            me: peer.clone(),
            is_busy: false,
            waits_for: Some(me.clone()),
            cause: None,
            least_lead: None,
            begun: Begun::Unknown,
            crossing: None,
        };
        let finding = Finding {
            id: 1,
            age: Duration::from_secs(12_345),
            end,
            verdict,
            peer,
            theirs: Some(standing),
            cause,
            operation: Some(operation()),
            begun: Begun::No(Some(239_845_910)),
        };
        let name = EndName {
            device: DEVICE.into(),
            peer: log_line::peer().to_string(),
            end: "the peer's process has died".into(),
            recovery,
        };
        let mut report = Report::without_messages(me, 8, Duration::from_secs(10));
        (report.findings, report.waits) = (vec![(finding, name)], 32);
        report.least_lead = Some(LeastLead { lead: -100, who: log_line::identity(131_069) });
        format!("report /tmp/ferrite-hang.{HOST}.4194303.8.json: {}", report.text())
    }

    fn operation() -> Operation {
        let call = Call { function: Function::ReduceScatter, number: Some(239_845_911) };
        let name = "tensor_and_pipeline_parallel_17".into();
        Operation { call, communicator: 1, name, peer: PeerRank::Known(3) }
    }

    const ALL: [Verdict; 16] = [
        Verdict::PeerHasNotSent,
        Verdict::PeerHasNotAsked,
        Verdict::PeerSilent,
        Verdict::PeerGone,
        Verdict::PeerNotTested,
        Verdict::OwnNotTested,
        Verdict::DataLost,
        Verdict::AcknowledgementsLost,
        Verdict::ClearToSendsLost,
        Verdict::Unacknowledged,
        Verdict::Unreachable,
        Verdict::Recovering,
        Verdict::NotAccepted,
        Verdict::OtherTags,
        Verdict::Flush,
        Verdict::OrderDiffers,
    ];

    /// The cause, and the process to look at, are in what NCCL shows of the line.
    #[test]
    fn a_log_with_long_names_shows_the_cause_of_a_wait() {
        let rail = |number| RailStanding {
            number,
            port: format!("{DEVICE}:{number}"),
            is_usable: true,
            is_usable_by_peer: true,
        };
        let recovery = RecoveryProgress {
            since: Instant::now(),
            attempts: 21,
            cause: "no acknowledgement on rail(s) 0, 1, 2, 3".into(),
            waits_for: "The peer has not answered".into(),
            rails: [0, 1, 2, 3].map(rail).into(),
        };
        for verdict in ALL {
            let far = log_line::identity(99_999);
            let cause = Cause {
                verdict,
                near: log_line::identity(88_888),
                far,
                depth: 1234,
                age_ms: 0,
                waited_ms: 10_000,
                operation: Some(operation()),
                begun: Begun::No(Some(239_845_910)),
                recovery: recovery.summary(),
            };
            let why = match verdict {
                Verdict::Recovering => "switches, routes, access lists".into(),
                Verdict::PeerGone => "the connection has ended: ".into(),
                Verdict::PeerHasNotSent | Verdict::PeerHasNotAsked => {
                    "has not launched the operation (last ReduceScatter".into()
                }
                verdict => reason(verdict, None, Begun::Unknown),
            };
            let far = cause.far.to_string();
            for line in [
                line(verdict, None, Some(recovery.clone())),
                line(Verdict::PeerWaits, Some(cause), None),
            ] {
                let shown = log_line::shown(&line);
                let why = match verdict {
                    Verdict::OrderDiffers => "use two communicators in different orders",
                    Verdict::OwnNotTested => "makes no call",
                    _ => &why,
                };
                assert!(shown.contains(why), "{verdict:?}: {shown}");
                assert!(!line.contains("The cause") || shown.contains(&far), "{shown}");
            }
        }
        let circle = log_line::shown(&line(Verdict::PeerWaits, None, None));
        assert!(
            circle.contains("Check the GPU of rank 131069 ")
                && circle.contains("two communicators"),
            "{circle}"
        );
    }

    #[test]
    fn a_report_of_many_waits_lists_some_and_tells_how_many_there_are() {
        let who = Identity { host: "n-0007".into(), pid: 7, rank: None, label: None };
        let numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };
        let (contact, sender_rank) = (Contact::Lost, None);
        let look = EndSnapshot {
            numbers,
            refusals: 0,
            calls: 0,
            has_requests: true,
            recovers: false,
            contact,
            sender_rank,
        };
        let checked_end = |id| CheckedEnd {
            id,
            found: EndCheck::Snapshot(look.clone()),
            peer: who.clone(),
            operation: None,
            recovery: String::new(),
        };
        let (mut inquiry, named) = (Inquiry::new(who.clone()), Cell::new(0));
        inquiry.handle_checked_ends(Time::ZERO, (0..300).map(checked_end).collect(), Vec::new());
        let name = |_| {
            named.update(|named| named + 1);
            EndName::default()
        };
        let report = Report::new(&inquiry, Duration::from_secs(2), 1, Duration::ZERO, name);
        let json: serde_json::Value =
            serde_json::from_str(&json(&report, "n-0007")).expect("an object");
        assert_eq!(
            (named.get(), json["waits"].as_array().map(Vec::len)),
            (MAX_WAITS, Some(MAX_WAITS))
        );
        assert_eq!(json["waits_in_all"], 300);
        assert_eq!(json["version"], crate::version::text());
        assert!(
            report.text().contains(" 299 more connection(s) of this process wait too."),
            "{}",
            report.text()
        );
    }
}
