//! Rules as text: `ACTION[=VALUE] [key=value ...]`, several separated by `;` or line ends, `#`
//! begins a comment.

use std::fmt;
use std::str::FromStr;

use crate::limits::{DEVICES, PATHS, PORTS};
use crate::network::topology;
use crate::rules::rule;
use crate::rules::rule::{ANY_OPCODE, Action, ActionKind, FaultRule, GidChange, RuleEnd};

/// A rule that could not be read: which, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError(String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

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
///
/// # Errors
/// The first rule that is not well-formed, as a sentence.
pub(crate) fn parse(text: &str) -> Result<Vec<FaultRule>, ParseError> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(|rule| one(rule).map_err(|why| ParseError(format!("fault rule {rule:?}: {why}"))))
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
            "for" => rule.lasts = rule::parse(value).map_err(|why| format!("for: {why}"))?,
            "gid-after" => {
                rule.action.gids.after =
                    rule::parse(value).map_err(|why| format!("gid-after: {why}"))?
            }
            "refuses" => {
                rule.action.refuses = rule::parse(value).map_err(|why| format!("refuses: {why}"))?
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
fn range(value: &str) -> Result<std::ops::RangeInclusive<u64>, String> {
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
    use crate::rules::rule::ActionKind;
    use crate::rules::text::parse;

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
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(says) && error.contains(text), "{error}");
        }
    }

    const PAGE: &str = include_str!("../../docs/faults.md");

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
