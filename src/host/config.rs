//! Every environment variable that Ferrite reads: name, range, default and effect in one table.

use super::gid::{Family, Range};
use super::hca::HcaFilter;
use super::iface::InterfaceFilter;
use crate::error::{Error, Result};

/// What a variable may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number between two bounds, and its default.
    Number(i64, i64, i64),
    /// A text.
    Text,
    /// One of these, of which the first is the default.
    Choice(&'static [&'static str]),
}

/// One environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// What it does, with its unit.
    pub effect: &'static str,
}

const fn variable(name: &'static str, kind: Kind, effect: &'static str) -> Variable {
    Variable { name, kind, effect }
}

/// All variables. `NCCL_*` ones mean what they mean to NCCL's built-in IB transport.
pub const VARIABLES: &[Variable] = &[
    variable("NCCL_IB_DISABLE", Kind::Number(0, 1, 0), "1: Ferrite reports no device"),
    variable(
        "NCCL_IB_HCA",
        Kind::Text,
        "devices to use: `[^][=]name[:port],…`; `^` excludes, `=` exact, else by prefix",
    ),
    variable("NCCL_IB_GID_INDEX", Kind::Number(-1, 255, -1), "entry of the GID table; -1: chosen automatically"),
    variable("NCCL_IB_ADDR_FAMILY", Kind::Choice(&["AF_INET", "AF_INET6"]), "preferred family of the automatic GID"),
    variable("NCCL_IB_ROCE_VERSION_NUM", Kind::Number(1, 2, 2), "preferred RoCE version of the automatic GID"),
    variable("NCCL_IB_ADDR_RANGE", Kind::Text, "network that the automatic GID has to be in, such as `10.1.0.0/16`"),
    variable("NCCL_IB_TIMEOUT", Kind::Number(0, 31, 18), "local acknowledge timeout, 4.096 us · 2^n; 0: for ever"),
    variable("NCCL_IB_RETRY_CNT", Kind::Number(0, 7, 7), "how often the device retries before it gives up"),
    variable("NCCL_IB_PKEY", Kind::Number(0, 65535, 0), "index into the partition key table"),
    variable("NCCL_IB_SL", Kind::Number(0, 15, 0), "service level"),
    variable("NCCL_IB_TC", Kind::Number(0, 255, 0), "traffic class (RoCE)"),
    variable(
        "NCCL_IB_QPS_PER_CONNECTION",
        Kind::Number(1, 128, 1),
        "queue pairs per connection and rail, of which 32 in all are used at most; the lesser of both ends",
    ),
    variable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        Kind::Number(0, 1, 0),
        "1: a message is cut over all queue pairs, if both ends say so; 0: messages take turns",
    ),
    variable(
        "NCCL_IB_AR_THRESHOLD",
        Kind::Number(0, 1 << 30, 8192),
        "bytes above which data and notice are posted apart",
    ),
    variable(
        "NCCL_IB_ADAPTIVE_ROUTING",
        Kind::Number(-2, 1, -2),
        "1: the fabric may reorder packets; 0: it does not; -2: yes on InfiniBand, no on RoCE",
    ),
    variable(
        "NCCL_IB_PCI_RELAXED_ORDERING",
        Kind::Number(0, 2, 2),
        "0: the device writes payload in order on the bus; 1, 2: it need not, where libibverbs knows how to say so",
    ),
    variable(
        "NCCL_IB_MERGE_NICS",
        Kind::Number(0, 1, 1),
        "1: like ports of one card are one device, up to 4; 0: each port is a device of its own",
    ),
    variable("NCCL_IB_MERGE_VFS", Kind::Number(0, 1, 1), "1: virtual functions of one card share a PCI path"),
    variable("NCCL_GDR_FLUSH_DISABLE", Kind::Number(0, 1, 0), "1: flushes of GPU memory do nothing"),
    variable(
        "NCCL_SOCKET_IFNAME",
        Kind::Text,
        "interface for connection set-up: `[^][=]name,…`; `^` excludes, `=` exact, else by prefix",
    ),
    variable("NCCL_SOCKET_FAMILY", Kind::Choice(&["", "AF_INET", "AF_INET6"]), "address family for connection set-up"),
    variable("NCCL_IBVERBS_LIB", Kind::Text, "libibverbs to load instead of the system's"),
    variable(
        "FERRITE_HANDSHAKE_TIMEOUT",
        Kind::Number(1, 3600, 60),
        "seconds that connection set-up may take before `connect` fails",
    ),
    variable("NCCL_NET", Kind::Text, "`Ferrite`: NCCL stops when it cannot use Ferrite, and Ferrite warns why"),
];

/// Queue pairs of one connection that are of use.
const MAX_LANES: i64 = 32;

/// Variables of NCCL's built-in IB transport that Ferrite does not honour, and why.
pub const UNHEEDED: &[(&str, &str)] = &[
    ("NCCL_IB_USE_INLINE", "clear-to-sends are always inline"),
    ("NCCL_IB_FIFO_TC", "clear-to-sends have the traffic class of data"),
    ("NCCL_IB_ECE_ENABLE", "enhanced connection establishment is not negotiated"),
    ("NCCL_IB_RETURN_ASYNC_EVENTS", "fatal events always end connections"),
    ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "there is no failover yet"),
];

/// Settings, parsed once from the environment.
#[derive(Debug, Clone)]
pub struct Config {
    /// No device is to be reported.
    pub disabled: bool,
    /// The user has insisted on Ferrite by name.
    pub insisted: bool,
    /// libibverbs to load instead of the system's.
    pub verbs_library: Option<String>,
    /// Which devices and ports to use.
    pub hca: HcaFilter,
    /// Fixed entry of the GID table.
    pub gid_index: Option<u8>,
    /// Preferred family of the automatic GID.
    pub gid_family: Family,
    /// Preferred RoCE version of the automatic GID.
    pub roce_version: u8,
    /// Network of the automatic GID.
    pub gid_range: Option<Range>,
    /// Local acknowledge timeout, exponent.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Index into the partition key table.
    pub pkey_index: u16,
    /// Service level.
    pub service_level: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Queue pairs per connection and rail.
    pub lanes: u8,
    /// Cut messages over all queue pairs.
    pub split: bool,
    /// Bytes above which data and notice are posted apart under adaptive routing.
    pub ar_threshold: u32,
    /// Whether the fabric may reorder; `None`: by link layer.
    pub adaptive_routing: Option<bool>,
    /// Ask for relaxed ordering of payload.
    pub relaxed_ordering: bool,
    /// Like ports of one card are one device.
    pub merge_nics: bool,
    /// Virtual functions of one card share a PCI path.
    pub merge_vfs: bool,
    /// Flushes do something.
    pub flush: bool,
    /// Interface for connection set-up.
    pub interfaces: InterfaceFilter,
    /// Address family for connection set-up.
    pub socket_family: Option<Family>,
    /// Seconds that connection set-up may take.
    pub handshake_timeout_s: u64,
}

impl Config {
    /// What the user has set and Ferrite does not honour, with the reason.
    pub fn unheeded() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        UNHEEDED.iter().filter(|(name, _)| std::env::var_os(name).is_some())
    }

    /// Reads the process environment.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_env() -> Result<Self> {
        Self::parse(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// A value out of range; the text names the variable, the value and what is allowed.
    pub fn parse(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let reader = Reader { lookup };
        let family = |name| {
            reader.choice(name).map(|v| match v.as_str() {
                "AF_INET" => Some(Family::V4),
                "AF_INET6" => Some(Family::V6),
                _ => None,
            })
        };
        Ok(Self {
            disabled: reader.flag("NCCL_IB_DISABLE")?,
            insisted: reader.text("NCCL_NET").is_some_and(|v| v.eq_ignore_ascii_case("Ferrite")),
            verbs_library: reader.text("NCCL_IBVERBS_LIB"),
            hca: HcaFilter::parse(&reader.text("NCCL_IB_HCA").unwrap_or_default())?,
            gid_index: u8::try_from(reader.number("NCCL_IB_GID_INDEX")?).ok(),
            gid_family: family("NCCL_IB_ADDR_FAMILY")?.unwrap_or(Family::V4),
            roce_version: reader.number("NCCL_IB_ROCE_VERSION_NUM")? as u8,
            gid_range: reader.text("NCCL_IB_ADDR_RANGE").map(|text| Range::parse(&text)).transpose()?,
            timeout: reader.number("NCCL_IB_TIMEOUT")? as u8,
            retry_count: reader.number("NCCL_IB_RETRY_CNT")? as u8,
            pkey_index: reader.number("NCCL_IB_PKEY")? as u16,
            service_level: reader.number("NCCL_IB_SL")? as u8,
            traffic_class: reader.number("NCCL_IB_TC")? as u8,
            lanes: reader.number("NCCL_IB_QPS_PER_CONNECTION")?.min(MAX_LANES) as u8,
            split: reader.flag("NCCL_IB_SPLIT_DATA_ON_QPS")?,
            ar_threshold: reader.number("NCCL_IB_AR_THRESHOLD")? as u32,
            adaptive_routing: match reader.number("NCCL_IB_ADAPTIVE_ROUTING")? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
            relaxed_ordering: reader.number("NCCL_IB_PCI_RELAXED_ORDERING")? != 0,
            merge_nics: reader.flag("NCCL_IB_MERGE_NICS")?,
            merge_vfs: reader.flag("NCCL_IB_MERGE_VFS")?,
            flush: !reader.flag("NCCL_GDR_FLUSH_DISABLE")?,
            interfaces: InterfaceFilter::parse(&reader.text("NCCL_SOCKET_IFNAME").unwrap_or_default()),
            socket_family: family("NCCL_SOCKET_FAMILY")?,
            handshake_timeout_s: reader.number("FERRITE_HANDSHAKE_TIMEOUT")? as u64,
        })
    }
}

struct Reader<F> {
    lookup: F,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn kind(name: &str) -> Result<Kind> {
        let found = VARIABLES.iter().find(|v| v.name == name);
        found.map(|v| v.kind).ok_or_else(|| Error::internal(format!("{name} is not in the table of variables")))
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
    }

    fn number(&self, name: &str) -> Result<i64> {
        let Kind::Number(low, high, default) = Self::kind(name)? else {
            return Err(Error::internal(format!("{name} is no number")));
        };
        let Some(value) = self.text(name) else { return Ok(default) };
        parse_number(&value)
            .filter(|n| (low..=high).contains(n))
            .ok_or_else(|| Error::usage(format!("{name}={value}: a whole number from {low} to {high} is expected")))
    }

    fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.number(name)? == 1)
    }

    fn choice(&self, name: &str) -> Result<String> {
        let Kind::Choice(allowed) = Self::kind(name)? else {
            return Err(Error::internal(format!("{name} is no choice")));
        };
        let value = self.text(name).unwrap_or_else(|| allowed.first().copied().unwrap_or_default().to_owned());
        if allowed.contains(&value.as_str()) {
            return Ok(value);
        }
        let allowed = allowed.iter().filter(|a| !a.is_empty()).copied().collect::<Vec<_>>().join(" or ");
        Err(Error::usage(format!("{name}={value}: {allowed} is expected")))
    }
}

/// As C's `strtoll` with base 0, which NCCL uses, but without trailing junk.
fn parse_number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8).ok()?,
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::parse(|n| (n == name).then(|| value.to_owned()))
    }

    #[test]
    fn defaults_are_the_built_in_transports() {
        let config = Config::parse(|_| None).expect("defaults are valid");
        assert_eq!((config.timeout, config.retry_count, config.lanes, config.ar_threshold), (18, 7, 1, 8192));
        assert_eq!((config.gid_index, config.gid_family, config.roce_version), (None, Family::V4, 2));
        assert!(config.relaxed_ordering && config.flush && !config.split && !config.disabled);
    }

    #[test]
    fn values_are_taken() {
        assert_eq!(with("NCCL_IB_GID_INDEX", "3").expect("valid").gid_index, Some(3));
        assert_eq!(with("NCCL_IB_TC", "0x6a").expect("valid").traffic_class, 106);
        assert_eq!(with("NCCL_IB_TC", "0152").expect("valid").traffic_class, 106, "octal, as NCCL reads it");
        assert_eq!(with("NCCL_IB_ADDR_FAMILY", "AF_INET6").expect("valid").gid_family, Family::V6);
        assert_eq!(with("NCCL_IB_ADAPTIVE_ROUTING", "1").expect("valid").adaptive_routing, Some(true));
        assert_eq!(with("NCCL_IB_TIMEOUT", "").expect("empty is unset").timeout, 18);
        assert!(with("NCCL_NET", "ferrite").expect("valid").insisted);
    }

    #[test]
    fn every_bound_is_enforced_with_name_value_and_range() {
        for variable in VARIABLES {
            let wrong = match variable.kind {
                Kind::Number(low, high, _) => {
                    vec![(low - 1).to_string(), (high + 1).to_string(), "12x".into(), "-".into()]
                }
                Kind::Choice(_) => vec!["AF_UNIX".into()],
                Kind::Text => continue,
            };
            for value in wrong {
                let text = with(variable.name, &value).expect_err("out of range").text.clone();
                assert!(text.contains(&format!("{}={value}: ", variable.name)), "{text}");
                assert!(text.contains("expected"), "{text}");
            }
        }
    }
}
