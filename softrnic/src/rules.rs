//! Fault rules: what goes wrong, when, and for which messages. The table in the shared file holds
//! the rules in force, so that every process obeys the same ones and a command can change them
//! while traffic runs.
//!
//! As text: `ACTION[=VALUE] [key=value ...]`, several separated by `;` or line ends; `#` begins a
//! comment.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::limits::{DEVICES, MAX_MESSAGE, PATHS, PORTS, RULES};
use crate::network::topology;
use crate::network::topology::{PortId, Topology};
use crate::shm::file::{ControlLock, Failure, SharedFile};
use crate::shm::slots::RuleSlot;

/// One end of a connection: a device, or one port of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleEnd {
    /// Device number, from 0.
    pub(crate) device: usize,
    /// Port number, from 1; `None`: any.
    pub(crate) port: Option<u32>,
}

/// When what goes wrong. `None` and full ranges match everything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultRule {
    /// What happens.
    pub(crate) action: Action,
    /// The sender.
    pub(crate) device: Option<RuleEnd>,
    /// The receiver.
    pub(crate) peer: Option<RuleEnd>,
    /// Number of the connection among those from the sender's port to the receiver's, from 0.
    pub(crate) flow: Option<u32>,
    /// Which of the sender's paths it takes, from 0.
    pub(crate) path: Option<u32>,
    /// Bit n: applies to `ibv_wr_opcode` n.
    pub(crate) opcodes: u32,
    /// Applies to messages that have a packet of more than so many bytes.
    pub(crate) larger: Option<u16>,
    /// Numbers of the messages on the connection, from 1. For calls: the number of the call that
    /// the rule is asked for.
    pub(crate) messages: RangeInclusive<u64>,
    /// Of these every n-th.
    pub(crate) every: u64,
    /// Of these a random part, of 2^32; `None`: all.
    pub(crate) chance: Option<u32>,
    /// Transmissions of each message that are affected, counted from the first.
    pub(crate) attempts: u32,
    /// Most times that the rule applies, in the whole fabric; 0: any number. A rule with this is
    /// only as reproducible as the order of the messages.
    pub(crate) times: u32,
    /// The rule ends so many nanoseconds after it has first applied; 0: it does not.
    pub(crate) lasts: u64,
}

/// All opcodes.
pub(crate) const ANY_OPCODE: u32 = u32::MAX;

impl FaultRule {
    /// A rule that matches everything.
    pub(crate) fn new(action: Action) -> Self {
        Self {
            action,
            device: None,
            peer: None,
            flow: None,
            path: None,
            opcodes: ANY_OPCODE,
            larger: None,
            messages: 1..=u64::MAX,
            every: 1,
            chance: None,
            attempts: 1,
            times: 0,
            lasts: 0,
        }
    }
}

impl fmt::Display for RuleEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}", self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, "/{port}"))
    }
}

/// What goes wrong. The numbers are those in the shared file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ActionKind {
    /// The request is lost on its way.
    Drop = 1,
    /// The request is executed, its acknowledgement is lost.
    DropAck = 2,
    /// The request is held up for so many nanoseconds, and all behind it on its connection.
    Delay = 3,
    /// The request is taken for lost; it arrives after so many nanoseconds, if the responder still
    /// waits for it.
    Late = 4,
    /// The responder says "receiver not ready".
    Rnr = 5,
    /// One bit of the data is turned.
    Corrupt = 6,
    /// The sender's queue pair fails: `LOC_QP_OP_ERR`, event `QP_FATAL`.
    QpError = 7,
    /// The responder denies access: `REM_ACCESS_ERR`.
    AccessError = 8,
    /// The responder cannot carry the request out: `REM_OP_ERR`.
    OperationError = 9,
    /// The sender's send completion queue overruns.
    CqOverrun = 10,
    /// The sender's port goes down; up again after so many nanoseconds, 0: never. See
    /// [`Action::gids`].
    PortDown = 11,
    /// The sender's port comes up.
    PortUp = 12,
    /// The sender's port carries so many bytes per millisecond from now on; 0: no limit.
    Slow = 13,
    /// The sender's device fails; another one is in its place after so many nanoseconds, 0: never.
    /// See [`Action::refuses`].
    DeviceFatal = 14,
    /// The sending process is killed.
    Kill = 15,
    /// `ibv_modify_qp` to RTR fails with this errno.
    ModifyQp = 16,
    /// Registration of memory fails with this errno.
    RegMr = 17,
    /// So many bytes of the request are placed, the rest is lost on its way.
    Cut = 18,
    /// The request is acknowledged, but neither its data nor a completion appears at the responder.
    Forget = 19,
    /// Polling a completion queue fails with this errno.
    PollCq = 20,
    /// Posting a work request to a send queue fails with this errno.
    PostSend = 21,
}

/// What the value of an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    None,
    /// Nanoseconds.
    Time,
    /// As above; 0 if none is given.
    OptionalTime,
    /// Bytes per millisecond, written in GB/s.
    Pace,
    Errno,
    /// As many as a message may have at most.
    Bytes,
}

/// All actions, with their names and what their values are.
const ACTIONS: [(ActionKind, &str, Value); 21] = [
    (ActionKind::Drop, "drop", Value::None),
    (ActionKind::DropAck, "drop-ack", Value::None),
    (ActionKind::Cut, "cut", Value::Bytes),
    (ActionKind::Forget, "forget", Value::None),
    (ActionKind::Delay, "delay", Value::Time),
    (ActionKind::Late, "late", Value::Time),
    (ActionKind::Rnr, "rnr", Value::None),
    (ActionKind::Corrupt, "corrupt", Value::None),
    (ActionKind::QpError, "qp-error", Value::None),
    (ActionKind::AccessError, "access-error", Value::None),
    (ActionKind::OperationError, "operation-error", Value::None),
    (ActionKind::CqOverrun, "cq-overrun", Value::None),
    (ActionKind::PortDown, "port-down", Value::OptionalTime),
    (ActionKind::PortUp, "port-up", Value::None),
    (ActionKind::Slow, "slow", Value::Pace),
    (ActionKind::DeviceFatal, "device-fatal", Value::OptionalTime),
    (ActionKind::Kill, "kill", Value::None),
    (ActionKind::ModifyQp, "modify-qp", Value::Errno),
    (ActionKind::RegMr, "reg-mr", Value::Errno),
    (ActionKind::PollCq, "poll-cq", Value::Errno),
    (ActionKind::PostSend, "post-send", Value::Errno),
];

const ERRNOS: [(&str, i32); 8] = [
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EINVAL", libc::EINVAL),
    ("ENOMEM", libc::ENOMEM),
    ("EIO", libc::EIO),
    ("EAGAIN", libc::EAGAIN),
    ("EFAULT", libc::EFAULT),
    ("EPERM", libc::EPERM),
    ("ENETUNREACH", libc::ENETUNREACH),
];

/// What goes wrong, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) kind: ActionKind,
    /// Time, bytes, pace or errno, see [`ActionKind`]; 0 where there is none.
    pub(crate) value: u64,
    /// Of [`ActionKind::PortDown`].
    pub(crate) gids: GidReturn,
    /// Of [`ActionKind::DeviceFatal`]: for so many nanoseconds before, the device refuses commands.
    pub(crate) refuses: u64,
}

impl Action {
    /// Concerns calls, not messages.
    pub(crate) fn is_for_calls(self) -> bool {
        matches!(
            self.kind,
            ActionKind::ModifyQp | ActionKind::RegMr | ActionKind::PollCq | ActionKind::PostSend
        )
    }

    /// Reads `NAME` or `NAME=VALUE`. The error is a sentence.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let (name, given) =
            word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let unknown = || format!("there is no action {name:?}; actions are {}", list());
        let (kind, _, value) =
            ACTIONS.into_iter().find(|(_, known, _)| *known == name).ok_or_else(unknown)?;
        let needs =
            || given.ok_or_else(|| format!("{name} needs a value: {name}={}", value.placeholder()));
        let value = match value {
            Value::None => match given {
                Some(value) => {
                    return Err(format!("{name} takes no value, but {value:?} is given"));
                }
                None => 0,
            },
            Value::Time => time(needs()?)?,
            Value::OptionalTime => given.map_or(Ok(0), time)?,
            Value::Pace => pace(needs()?)?,
            Value::Errno => errno(needs()?)? as u64,
            Value::Bytes => bytes(needs()?)?,
        };
        Ok(Self { kind, value, gids: GidReturn::default(), refuses: 0 })
    }
}

impl ActionKind {
    /// The one with this number, if there is one.
    pub(crate) fn decode(number: u32) -> Option<Self> {
        ACTIONS.into_iter().map(|(kind, ..)| kind).find(|kind| *kind as u32 == number)
    }
}

impl Value {
    fn placeholder(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Time | Self::OptionalTime => "TIME",
            Self::Pace => "GB/s",
            Self::Errno => "ERRNO",
            Self::Bytes => "BYTES",
        }
    }
}

/// All actions as they are written.
fn list() -> String {
    let written = ACTIONS.map(|(_, name, value)| match value {
        Value::None => name.to_owned(),
        Value::OptionalTime => format!("{name}[={}]", value.placeholder()),
        _ => format!("{name}={}", value.placeholder()),
    });
    written.join(", ")
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = ACTIONS.into_iter().find(|(kind, ..)| *kind == self.kind);
        let (_, name, value) = known.unwrap_or((self.kind, "?", Value::None));
        match value {
            Value::None => f.write_str(name),
            Value::OptionalTime if self.value == 0 => f.write_str(name),
            Value::Time | Value::OptionalTime => write!(f, "{name}={}ns", self.value),
            Value::Bytes => write!(f, "{name}={}", self.value),
            Value::Pace => write!(f, "{name}={}", self.value as f64 / 1e6),
            Value::Errno => {
                let errno = ERRNOS.iter().find(|(_, code)| *code as u64 == self.value);
                write!(f, "{name}={}", errno.map_or("?", |(errno, _)| errno))
            }
        }
    }
}

/// GB/s in bytes per millisecond.
fn pace(value: &str) -> Result<u64, String> {
    let pace = value.parse::<f64>().ok().filter(|p| *p == 0.0 || (1e-6..=1e6).contains(p));
    pace.map(|p| (p * 1e6) as u64)
        .ok_or_else(|| format!("slow={value}: must be GB/s from 0.000001; 0 is no limit"))
}

fn bytes(value: &str) -> Result<u64, String> {
    let bytes = value.parse().ok().filter(|n| *n <= u64::from(MAX_MESSAGE));
    bytes.ok_or_else(|| format!("cut={value}: must be a number of bytes from 0 to {MAX_MESSAGE}"))
}

fn errno(value: &str) -> Result<i32, String> {
    let known = ERRNOS.iter().find(|(name, _)| *name == value).map(|(_, code)| *code);
    known.ok_or_else(|| {
        let all: Vec<_> = ERRNOS.iter().map(|(name, _)| *name).collect();
        format!("{value:?} is not among {}", all.join(", "))
    })
}

/// A time with its unit, in nanoseconds. The error is a sentence.
fn time(value: &str) -> Result<u64, String> {
    let split = value.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(value.len());
    let (digits, unit) = value.split_at(split);
    let factor = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => 0.0,
    };
    let ns = digits.parse::<f64>().ok().map(|n| n * factor).filter(|ns| (1.0..=1e13).contains(ns));
    ns.map(|ns| ns as u64)
        .ok_or_else(|| format!("{value:?} is no time; write 50us, 3ms or 2s; at most 10000s"))
}

/// The ports and paths that rules name must be there. The error is a sentence.
pub(crate) fn require(topology: &Topology, rules: &[FaultRule]) -> Result<(), String> {
    let (devices, ports, paths) = (topology.devices(), topology.ports(), topology.paths());
    if let Some(path) = rules.iter().filter_map(|rule| rule.path).find(|path| *path >= paths) {
        return Err(format!(
            "there is no path {path} among {paths}; SOFTRNIC_PATHS says how many there are"
        ));
    }
    let ends = rules.iter().flat_map(|rule| [rule.device, rule.peer]).flatten();
    let mut absent =
        ends.filter(|end| end.device >= devices || end.port.is_some_and(|port| port > ports));
    absent.next().map_or(Ok(()), |end| {
        Err(format!("there is no {end} among {devices} device(s) with {ports} port(s) each"))
    })
}

/// Adds rules behind those in force; returns their numbers. Either all fit or none is added.
pub(crate) fn install(
    file: &SharedFile,
    _control: &ControlLock<'_>,
    rules: &[FaultRule],
) -> Result<Vec<u32>, String> {
    let last = file.rules().iter().map(|slot| slot.id.load(Acquire)).max().unwrap_or(0);
    let free: Vec<_> = file.rules().iter().filter(|slot| slot.id.load(Acquire) == 0).collect();
    if free.len() < rules.len() {
        return Err(format!(
            "{} fault rules do not fit: {} of {RULES} places are free",
            rules.len(),
            free.len()
        ));
    }
    let numbers: Vec<u32> = (last + 1..).take(rules.len()).collect();
    for ((slot, rule), number) in free.iter().zip(rules).zip(&numbers) {
        store(slot, rule);
        slot.id.store(*number, SeqCst);
    }
    file.header().rules_epoch.fetch_add(1, SeqCst);
    Ok(numbers)
}

/// Takes rule `number` away. False if there is none of that number.
pub(crate) fn remove(file: &SharedFile, _control: &ControlLock<'_>, number: u32) -> bool {
    let slot = file.rules().iter().find(|slot| number != 0 && slot.id.load(Acquire) == number);
    if let Some(slot) = slot {
        slot.id.store(0, SeqCst);
        file.header().rules_epoch.fetch_add(1, SeqCst);
    }
    slot.is_some()
}

/// Takes all rules away.
pub(crate) fn clear(file: &SharedFile, _control: &ControlLock<'_>) {
    file.rules().iter().for_each(|slot| slot.id.store(0, SeqCst));
    file.header().rules_epoch.fetch_add(1, SeqCst);
}

/// The rules in force in their order, each with its number and how often it has been applied.
pub(crate) fn list_rules(file: &SharedFile) -> Vec<(u32, FaultRule, u64)> {
    let numbered =
        file.rules().iter().map(|slot| (slot.id.load(Acquire), slot)).filter(|(id, _)| *id != 0);
    let mut rules: Vec<_> =
        numbered.filter_map(|(id, slot)| Some((id, load(slot)?, hits(slot)))).collect();
    rules.sort_by_key(|(id, _, _)| *id);
    rules
}

/// How often a rule has been applied. One that is asked more often than it may be counts on.
fn hits(slot: &RuleSlot) -> u64 {
    let hits = slot.hits.load(Relaxed);
    if action_of(slot).is_some_and(Action::is_for_calls) {
        return applied(slot, hits);
    }
    at_most(slot.times.load(Relaxed), hits)
}

/// How often a rule for calls is applied in the first so many of them.
pub(crate) fn applied(slot: &RuleSlot, calls: u64) -> u64 {
    let (first, every) = (slot.first.load(Relaxed).max(1), slot.every.load(Relaxed).max(1));
    let last = slot.last.load(Relaxed).min(calls);
    at_most(slot.times.load(Relaxed), last.checked_sub(first).map_or(0, |after| after / every + 1))
}

/// `times` is of a rule: 0 is any number.
fn at_most(times: u32, count: u64) -> u64 {
    if times == 0 { count } else { count.min(times.into()) }
}

fn store(slot: &RuleSlot, rule: &FaultRule) {
    let end =
        |end: Option<RuleEnd>| end.map_or((0, 0), |e| (e.device as u32 + 1, e.port.unwrap_or(0)));
    let (device, port) = end(rule.device);
    let (peer, peer_port) = end(rule.peer);
    slot.action.store(rule.action.kind as u32, Relaxed);
    slot.value.store(rule.action.value, Relaxed);
    slot.gid_after.store(rule.action.gids.after, Relaxed);
    slot.gid_change.store(rule.action.gids.change as u16, Relaxed);
    slot.refuses.store(rule.action.refuses, Relaxed);
    slot.device.store(device, Relaxed);
    slot.port.store(port, Relaxed);
    slot.peer.store(peer, Relaxed);
    slot.peer_port.store(peer_port, Relaxed);
    slot.flow.store(rule.flow.map_or(0, |flow| flow + 1), Relaxed);
    slot.path.store(rule.path.map_or(0, |path| path + 1), Relaxed);
    slot.opcodes.store(rule.opcodes, Relaxed);
    slot.larger.store(rule.larger.unwrap_or(0), Relaxed);
    slot.first.store(*rule.messages.start(), Relaxed);
    slot.last.store(*rule.messages.end(), Relaxed);
    slot.every.store(rule.every, Relaxed);
    slot.chance.store(rule.chance.map_or(u64::MAX, u64::from), Relaxed);
    slot.attempts.store(rule.attempts, Relaxed);
    slot.times.store(rule.times, Relaxed);
    slot.lasts.store(rule.lasts, Relaxed);
    slot.ends_at.store(0, Relaxed);
    slot.hits.store(0, Relaxed);
}

fn load(slot: &RuleSlot) -> Option<FaultRule> {
    let end = |device: u32, port: u32| {
        let device = device.checked_sub(1)? as usize;
        Some(RuleEnd { device, port: (port != 0).then_some(port) })
    };
    let (chance, larger) = (slot.chance.load(Relaxed), slot.larger.load(Relaxed));
    Some(FaultRule {
        action: action_of(slot)?,
        device: end(slot.device.load(Relaxed), slot.port.load(Relaxed)),
        peer: end(slot.peer.load(Relaxed), slot.peer_port.load(Relaxed)),
        flow: slot.flow.load(Relaxed).checked_sub(1),
        path: slot.path.load(Relaxed).checked_sub(1),
        opcodes: slot.opcodes.load(Relaxed),
        larger: (larger != 0).then_some(larger),
        messages: slot.first.load(Relaxed)..=slot.last.load(Relaxed),
        every: slot.every.load(Relaxed),
        chance: (chance != u64::MAX).then_some(chance as u32),
        attempts: slot.attempts.load(Relaxed),
        times: slot.times.load(Relaxed),
        lasts: slot.lasts.load(Relaxed),
    })
}

/// The action of a rule in its slot.
pub(crate) fn action_of(slot: &RuleSlot) -> Option<Action> {
    let change = GidChange::decode(slot.gid_change.load(Relaxed).into());
    let gids = GidReturn { after: slot.gid_after.load(Relaxed), change };
    let kind = ActionKind::decode(slot.action.load(Relaxed))?;
    Some(Action {
        kind,
        value: slot.value.load(Relaxed),
        gids,
        refuses: slot.refuses.load(Relaxed),
    })
}

// The rules that concern one connection, as its sender keeps them: whether one applies to a message
// is then found without a lock, and at once where there is none.

/// A connection: its ports, and its number among those between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) flow: u32,
    /// Which of the sender's paths it takes, where paths are modelled.
    pub(crate) path: Option<u32>,
}

/// A rule in its slot, its identity and its action.
pub(crate) type KnownRule = (&'static RuleSlot, u32, Action);

/// The rules of a connection, in the order in which they were put into force. Kept by its send
/// queue.
#[derive(Debug, Default)]
pub(crate) struct KnownRules {
    /// State of the table that they were found in; 0: not looked for yet.
    epoch: u32,
    rules: Vec<KnownRule>,
}

impl KnownRules {
    /// Whether it is known that no rule concerns the connection, in state `epoch` of the table.
    #[inline]
    pub(crate) fn is_free(&self, epoch: u32) -> bool {
        self.epoch == epoch && self.rules.is_empty()
    }

    /// Looks for them if the table is in another state now.
    pub(crate) fn refresh(&mut self, file: &SharedFile, epoch: u32, connection: Connection) {
        if self.epoch != epoch {
            *self = Self { epoch, rules: find(file, connection) };
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &KnownRule> {
        self.rules.iter()
    }
}

#[cold]
fn find(file: &SharedFile, Connection { from, to, flow, path }: Connection) -> Vec<KnownRule> {
    let concerns = |rule: &&RuleSlot| {
        let is = |field: u32, value: u32| field == 0 || field == value;
        is(rule.device.load(Relaxed), from.device as u32 + 1)
            && is(rule.port.load(Relaxed), from.port)
            && is(rule.peer.load(Relaxed), to.device as u32 + 1)
            && is(rule.peer_port.load(Relaxed), to.port)
            && is(rule.flow.load(Relaxed), flow + 1)
            && is(rule.path.load(Relaxed), path.map_or(u32::MAX, |path| path + 1))
    };
    let rules = file.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).filter(concerns);
    let rules = rules.filter_map(|rule| Some((rule, rule.id.load(Acquire), action_of(rule)?)));
    let mut rules: Vec<_> = rules.filter(|(_, _, action)| !action.is_for_calls()).collect();
    rules.sort_unstable_by_key(|(_, id, _)| *id);
    rules
}

// The rules and the seed in a process's environment. All processes of a job have the same
// environment: the rules of the first one count, those of the others are recognised by the hash of
// their text and left out.

/// Adds what `SOFTRNIC_FAULTS` and `SOFTRNIC_SEED` say, if the fabric does not have it yet.
pub(crate) fn load_env(
    file: &SharedFile,
    control: &ControlLock<'_>,
    topology: &Topology,
    rules: Option<&str>,
    seed: Option<u64>,
) -> Result<(), Failure> {
    let header = file.header();
    if let Some(seed) = seed {
        header.seed.store(seed, SeqCst);
    }
    let Some(rules) = rules else { return Ok(()) };
    let mut hasher = DefaultHasher::new();
    rules.hash(&mut hasher);
    let hash = hasher.finish() | 1;
    if header.rule_texts.iter().any(|known| known.load(Relaxed) == hash) {
        return Ok(());
    }
    let rules = parse_environment(topology, rules).map_err(|what| (what, libc::EINVAL))?;
    install(file, control, &rules).map_err(|what| (named(&what), libc::EINVAL))?;
    if let Some(free) = header.rule_texts.iter().find(|known| known.load(Relaxed) == 0) {
        free.store(hash, Relaxed);
    }
    Ok(())
}

/// The rules in the text of `SOFTRNIC_FAULTS`, which fit this fabric; or a sentence.
pub(crate) fn parse_environment(
    topology: &Topology,
    rules: &str,
) -> Result<Vec<FaultRule>, String> {
    let rules = parse(rules).and_then(|rules| require(topology, &rules).map(|()| rules));
    rules.map_err(|what| named(&what))
}

fn named(what: &str) -> String {
    format!("SOFTRNIC_FAULTS: {what}")
}

/// What a port has after an outage in place of each address that it had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GidChange {
    /// The same, in the same entry of the GID table.
    #[default]
    Same = 0,
    /// The same, in another entry.
    Moved = 1,
    /// Another one, in the same entry.
    Other = 2,
}

/// Names of those that rules can ask for.
const CHANGES: [(GidChange, &str); 2] = [(GidChange::Moved, "move"), (GidChange::Other, "other")];

/// When and how the GIDs of a port return that are no link-local ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GidReturn {
    /// So many nanoseconds after the port has become active; 0: before it does.
    pub(crate) after: u64,
    /// What they are then.
    pub(crate) change: GidChange,
}

impl GidReturn {
    /// Whether the table is as it was during the whole outage.
    pub(crate) fn is_untouched(self) -> bool {
        self == Self::default()
    }
}

impl GidChange {
    /// The one with this number, or else none.
    pub(crate) fn decode(number: u32) -> Self {
        CHANGES
            .into_iter()
            .find(|(change, _)| *change as u32 == number)
            .map_or(Self::Same, |(change, _)| change)
    }

    /// What a rule calls it; `None`: nothing.
    pub(crate) fn name(self) -> Option<&'static str> {
        CHANGES.into_iter().find(|(change, _)| *change == self).map(|(_, name)| name)
    }

    /// Reads a name. The error is a sentence.
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        let known = CHANGES.into_iter().find(|(_, name)| *name == value);
        known.map(|(change, _)| change).ok_or_else(|| format!("gid={value}: must be move or other"))
    }
}

const KEYS: &str = "device, peer, flow, path, opcode, larger, message, every, chance, attempts, times, for, gid-after, gid, refuses";
const OPCODES: [(&str, u32); 9] = [
    ("write", 1 << 0),
    ("write-imm", 1 << 1),
    ("send", 1 << 2),
    ("send-imm", 1 << 3),
    ("read", 1 << 4),
    ("cmp-swap", 1 << 5),
    ("fetch-add", 1 << 6),
    ("atomic", 3 << 5),
    ("any", ANY_OPCODE),
];

/// Reads rules.
pub(crate) fn parse(text: &str) -> Result<Vec<FaultRule>, String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(|rule| one(rule).map_err(|why| format!("fault rule {rule:?}: {why}")))
        .collect()
}

fn one(text: &str) -> Result<FaultRule, String> {
    let mut words = text.split_whitespace();
    let mut rule = FaultRule::new(Action::parse(words.next().unwrap_or_default())?);
    for word in words {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not key=value; keys are {KEYS}"))?;
        match key {
            "device" => rule.device = Some(end(key, value)?),
            "peer" => rule.peer = Some(end(key, value)?),
            "flow" => rule.flow = Some(number(key, value, 0, u32::MAX - 1)?),
            "path" => rule.path = Some(number(key, value, 0, PATHS as u32 - 1)?),
            "opcode" => rule.opcodes = opcodes(value)?,
            "larger" => rule.larger = Some(number(key, value, 1, 4096)?),
            "message" => rule.messages = range(value)?,
            "every" => rule.every = number(key, value, 1, u64::MAX)?,
            "chance" => rule.chance = chance(value)?,
            "attempts" if value == "all" => rule.attempts = u32::MAX,
            "attempts" => rule.attempts = number(key, value, 1, u32::MAX)?,
            "times" => rule.times = number(key, value, 1, u32::MAX)?,
            "for" => rule.lasts = time(value).map_err(|why| format!("for: {why}"))?,
            "gid-after" => {
                rule.action.gids.after = time(value).map_err(|why| format!("gid-after: {why}"))?
            }
            "refuses" => {
                rule.action.refuses = time(value).map_err(|why| format!("refuses: {why}"))?
            }
            "gid" => rule.action.gids.change = GidChange::parse(value)?,
            _ => return Err(format!("there is no key {key:?}; keys are {KEYS}")),
        }
    }
    let Action { kind, value, gids, refuses } = rule.action;
    let returns = kind == ActionKind::PortDown && value != 0;
    match () {
        () if !returns && !gids.is_untouched() => {
            Err("gid-after and gid need port-down=TIME".to_owned())
        }
        () if kind != ActionKind::DeviceFatal && refuses != 0 => {
            Err("refuses needs device-fatal".to_owned())
        }
        () if rule.action.is_for_calls() => without_keys_of_messages(rule),
        () => Ok(rule),
    }
}

/// Of a rule for calls.
fn without_keys_of_messages(rule: FaultRule) -> Result<FaultRule, String> {
    let any = FaultRule::new(rule.action);
    let is_of_ports = rule.action.kind == ActionKind::ModifyQp;
    let keys = [
        ("flow", rule.flow.is_some()),
        ("path", rule.path.is_some()),
        ("opcode", rule.opcodes != any.opcodes),
        ("larger", rule.larger.is_some()),
        ("chance", rule.chance.is_some()),
        ("attempts", rule.attempts != any.attempts),
        ("peer", !is_of_ports && rule.peer.is_some()),
        ("a port", !is_of_ports && rule.device.is_some_and(|end| end.port.is_some())),
    ];
    match keys.iter().find(|(_, is_given)| *is_given) {
        Some((key, _)) => {
            let peer = if is_of_ports { "peer, " } else { "" };
            Err(format!(
                "{key} is not for this action: keys are device, {peer}message, every, times, for"
            ))
        }
        None => Ok(rule),
    }
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    key: &str,
    value: &str,
    low: T,
    high: T,
) -> Result<T, String> {
    let parsed = value.parse::<T>().ok().filter(|n| *n >= low && *n <= high);
    parsed.ok_or_else(|| format!("{key}={value}: must be a number from {low} to {high}"))
}

/// `softrnic0`, `softrnic0/1`; also `rnic0` and `0`.
fn end(key: &str, value: &str) -> Result<RuleEnd, String> {
    let bad = || {
        format!(
            "{key}={value}: must be softrnic0 to softrnic{}, with /1 to /{PORTS} for a port",
            DEVICES - 1
        )
    };
    if !value.contains('/') {
        return topology::parse_device(value)
            .map(|device| RuleEnd { device, port: None })
            .ok_or_else(bad);
    }
    topology::parse_name(value)
        .map(|(device, port)| RuleEnd { device, port: Some(port) })
        .ok_or_else(bad)
}

fn opcodes(value: &str) -> Result<u32, String> {
    value.split(',').try_fold(0, |bits, name| {
        let known = OPCODES.iter().find(|(known, _)| *known == name);
        known.map(|(_, bit)| bits | bit).ok_or_else(|| {
            let all: Vec<_> = OPCODES.iter().map(|(name, _)| *name).collect();
            format!("opcode={value}: opcodes are {}", all.join(", "))
        })
    })
}

/// `N`, `N..M` (both included), `N..`
fn range(value: &str) -> Result<RangeInclusive<u64>, String> {
    let bad = || format!("message={value}: must be N, N..M or N.. with 1 <= N <= M");
    let (low, high) = value.split_once("..").unwrap_or((value, value));
    let low: u64 = low.parse().map_err(|_| bad())?;
    let high = if high.is_empty() { u64::MAX } else { high.parse().map_err(|_| bad())? };
    if low == 0 || low > high { Err(bad()) } else { Ok(low..=high) }
}

fn chance(value: &str) -> Result<Option<u32>, String> {
    let part = value.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p));
    let part = part.ok_or_else(|| format!("chance={value}: must be a number from 0 to 1"))?;
    Ok((part < 1.0).then_some((part * 4_294_967_296.0) as u32))
}

/// The shortest decimal fraction that is read as `part`.
fn chance_text(part: u32) -> String {
    let exact = f64::from(part) / 4_294_967_296.0;
    // The next value that is read as another part lies 2^-32 above: twelve digits tell them apart.
    let tried = (0..=12).map(|digits| format!("{exact:.digits$}"));
    let shortest = tried.into_iter().find(|text| chance(text) == Ok(Some(part)));
    shortest.unwrap_or_else(|| exact.to_string())
}

impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if self.action.gids.after != 0 {
            write!(f, " gid-after={}ns", self.action.gids.after)?;
        }
        if self.action.refuses != 0 {
            write!(f, " refuses={}ns", self.action.refuses)?;
        }
        self.action.gids.change.name().map_or(Ok(()), |name| write!(f, " gid={name}"))?;
        self.device.map_or(Ok(()), |end| write!(f, " device={end}"))?;
        self.peer.map_or(Ok(()), |end| write!(f, " peer={end}"))?;
        self.flow.map_or(Ok(()), |flow| write!(f, " flow={flow}"))?;
        self.path.map_or(Ok(()), |path| write!(f, " path={path}"))?;
        if self.opcodes != ANY_OPCODE {
            let single =
                OPCODES.iter().filter(|(_, bit)| bit.is_power_of_two() && bit & self.opcodes != 0);
            let names: Vec<_> = single.map(|(name, _)| *name).collect();
            write!(f, " opcode={}", names.join(","))?;
        }
        self.larger.map_or(Ok(()), |bytes| write!(f, " larger={bytes}"))?;
        match (*self.messages.start(), *self.messages.end()) {
            (1, u64::MAX) => {}
            (low, u64::MAX) => write!(f, " message={low}..")?,
            (low, high) if low == high => write!(f, " message={low}")?,
            (low, high) => write!(f, " message={low}..{high}")?,
        }
        if self.every != 1 {
            write!(f, " every={}", self.every)?;
        }
        if let Some(part) = self.chance {
            write!(f, " chance={}", chance_text(part))?;
        }
        match self.attempts {
            1 => {}
            u32::MAX => f.write_str(" attempts=all")?,
            n => write!(f, " attempts={n}")?,
        }
        if self.times != 0 {
            write!(f, " times={}", self.times)?;
        }
        if self.lasts == 0 { Ok(()) } else { write!(f, " for={}ns", self.lasts) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: [&str; 23] = [
        "drop",
        "drop-ack device=softrnic0/1 peer=softrnic1 flow=3 opcode=write,read message=10..20 every=2 attempts=all",
        "delay=1500000ns message=7.. chance=0.25",
        "slow=0.5 device=softrnic0 path=7",
        "drop chance=0.1",
        "drop chance=0",
        "rnr chance=0.000000001",
        "corrupt chance=0.333333333",
        "corrupt chance=0.9999999998",
        "modify-qp=ETIMEDOUT device=softrnic0/1 peer=softrnic1/2 times=3",
        "poll-cq=EIO device=softrnic0 message=3..7 every=2 for=1000000000ns",
        "post-send=ENOMEM device=softrnic0 message=3..7 every=2 times=2",
        "slow=0.5 message=4",
        "port-down=20000ns",
        "cut=4096 opcode=write",
        "forget",
        "device-fatal",
        "device-fatal=5000000000ns device=softrnic1",
        "device-fatal=20000ns refuses=30000ns device=softrnic1",
        "port-down=20000ns gid-after=30000ns gid=move device=softrnic0",
        "port-down=20000ns gid=other",
        "drop attempts=all times=9 for=300000000ns",
        "drop larger=1024 attempts=all",
    ];

    #[test]
    fn what_is_written_is_read_back() {
        for text in WRITTEN {
            let rules = parse(text).expect(text);
            assert_eq!(rules.len(), 1);
            assert_eq!(rules[0].to_string(), text);
        }
    }

    /// Each beginning of a rule, and each with one character in place of another: it is refused, or
    /// a rule that is read as it is written.
    #[test]
    fn any_text_is_refused_or_read_as_it_is_written() {
        let check = |text: &str| {
            for rule in parse(text).unwrap_or_default() {
                let written = rule.to_string();
                let again = parse(&written)
                    .unwrap_or_else(|why| panic!("{text:?} is written as {written:?}: {why}"));
                assert_eq!(
                    again.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    [written.as_str()],
                    "{text:?}"
                );
            }
        };
        for text in WRITTEN {
            (0..text.len()).for_each(|length| check(&text[..length]));
            for at in 0..text.len() {
                " =/.,;#-+019eEnmus\t\u{e9}"
                    .chars()
                    .for_each(|one| check(&format!("{}{one}{}", &text[..at], &text[at + 1..])));
            }
        }
    }

    #[test]
    fn rules_are_separated_by_semicolons_and_lines_and_comments_are_left_out() {
        let rules = parse("drop; rnr # why not; kill\n\n late=2ms;").expect("rules");
        let actions: Vec<_> = rules.iter().map(|r| (r.action.kind, r.action.value)).collect();
        assert_eq!(
            actions,
            [(ActionKind::Drop, 0), (ActionKind::Rnr, 0), (ActionKind::Late, 2_000_000)]
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (text, says) in [
            ("dorp", "no action \"dorp\""),
            ("drop device=mlx5_0", "device=mlx5_0: must be softrnic0"),
            ("drop device=softrnic8", "softrnic7"),
            ("drop device=softrnic0/3", "/2"),
            ("drop path=8", "path=8: must be a number from 0 to 7"),
            ("drop larger=0", "larger=0: must be a number from 1 to 4096"),
            ("reg-mr=EIO larger=1", "larger is not for this action"),
            ("drop nth=3", "no key \"nth\""),
            ("drop message=0", "1 <= N"),
            ("drop message=5..4", "1 <= N"),
            ("drop chance=2", "from 0 to 1"),
            ("delay", "delay=TIME"),
            ("delay=5", "no time"),
            ("drop gid=move", "need port-down=TIME"),
            ("port-down gid-after=1ms", "need port-down=TIME"),
            ("port-down=1ms refuses=1ms", "needs device-fatal"),
            ("port-down=1ms gid=stay", "must be move or other"),
            ("cut=1k", "a number of bytes from 0 to 1073741824"),
            ("drop=1", "takes no value"),
            ("modify-qp=EWHAT", "ETIMEDOUT"),
            ("modify-qp=EIO flow=1", "flow is not for this action: keys are device, peer, message"),
            ("reg-mr=EIO path=0", "path is not for this action"),
            ("poll-cq=EIO opcode=write", "opcode is not for this action"),
            ("poll-cq=EIO chance=0.5", "chance is not for this action: keys are device, message"),
            ("poll-cq=EIO attempts=2", "attempts is not for this action"),
            ("poll-cq=EIO peer=softrnic0", "peer is not for this action"),
            ("post-send=EIO peer=softrnic0", "peer is not for this action"),
            ("reg-mr=EIO device=softrnic0/1", "a port is not for this action"),
            ("drop opcode=tso", "fetch-add"),
            ("drop quickly", "not key=value"),
            ("drop for=3", "for: \"3\" is no time"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says) && error.contains(text), "{error}");
        }
    }

    const PAGE: &str = include_str!("../docs/faults.md");

    #[test]
    fn every_example_is_read() {
        let blocks: Vec<_> =
            PAGE.split("```faults\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(blocks.len() >= 6, "{} blocks: too few to believe", blocks.len());
        for block in blocks {
            let rules = parse(block).unwrap_or_else(|e| panic!("{e}"));
            assert!(rules.len() >= block.lines().count(), "{block}");
        }
        let commands = ["softrnic run --faults '", "softrnic inject '"];
        let quoted = commands
            .map(|command| PAGE.split(command).nth(1).and_then(|rest| rest.split('\'').next()));
        for rule in quoted {
            assert_eq!(
                parse(rule.expect("an example")).map(|rules| rules.len()),
                Ok(1),
                "{rule:?}"
            );
        }
    }
}
