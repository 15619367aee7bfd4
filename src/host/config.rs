//! The settings: the environment, parsed once.

use super::gid::{AddressRange, Family};
use super::hca::HcaFilter;
use super::iface::InterfaceFilter;
use super::reader::Reader;
use super::variables::{Reason, ignored_names, ignored_reason};
use crate::error::Result;
use std::collections::BTreeMap;

/// The most queue pairs of one connection.
const MAX_QUEUE_PAIRS: i64 = 32;
/// The meaning of a negative `NCCL_IB_AR_THRESHOLD`: the default of NCCL's built-in transport.
const AR_THRESHOLD: i64 = 8192;
/// The default local acknowledge timeout where an end does not recover from faults: 4.3 s, as in
/// NCCL from 2.23 on. Only the device's retries outlast an outage there. Elsewhere it is that of
/// earlier releases, 1.07 s: after a short outage, devices soon send again, which takes no command
/// and no more time for more connections.
const TIMEOUT_WITHOUT_RECOVERY: u8 = 20;

/// The settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ferrite reports no device.
    pub disabled: bool,
    /// The user asked for Ferrite by name: NCCL stops if it cannot use it.
    pub required: bool,
    /// Path of the libibverbs to load instead of the system's.
    pub verbs_library: Option<String>,
    /// Devices and ports to use.
    pub hca: HcaFilter,
    /// Entry of the GID table to use. `None`: it is chosen automatically.
    pub gid_index: Option<u8>,
    /// Preferred address family of the automatic GID.
    pub gid_family: Family,
    /// Preferred RoCE version of the automatic GID.
    pub roce_version: u8,
    /// Network of the automatic GID.
    pub gid_range: Option<AddressRange>,
    /// Prefix length of IPv4 networks.
    pub subnet_bits: u8,
    /// A connection may use another device, one in the peer's network.
    pub subnet_aware: bool,
    /// InfiniBand: entry of the GID table that other subnets route to.
    pub routable_flid_gid_index: u8,
    /// Connections between networks are logged as warnings.
    pub warn_of_networks: bool,
    /// Retries of connecting a queue pair.
    pub retries: Retries,
    /// Local acknowledge timeout where both ends recover from faults: the exponent n of
    /// 4.096 us · 2^n.
    timeout: u8,
    /// The same where an end does not.
    timeout_without_recovery: u8,
    /// Retries of the device.
    pub retry_count: u8,
    /// Index into the partition key table.
    pub pkey_index: u16,
    /// The partition key to look for in the table. It overrides the index.
    pub pkey: Option<u16>,
    /// Service level. `None`: that of the communicator.
    pub service_level: Option<u8>,
    /// Traffic class. `None`: that of the communicator.
    pub traffic_class: Option<u8>,
    /// Traffic class of clear-to-sends. `None`: as of data.
    pub cts_traffic_class: Option<u8>,
    /// Devices negotiate their vendor's options (ECE).
    pub ece: bool,
    /// Queue pairs per connection and rail.
    pub queue_pairs: u8,
    /// Messages are cut over all queue pairs.
    pub split: bool,
    /// Queue pairs are lanes, each with its own share of each message.
    pub lanes: bool,
    /// A lane that stays slow moves to another path.
    pub new_paths: bool,
    /// Clear-to-sends and short messages of host memory are sent inline, if the device can.
    pub inline_data: bool,
    /// Queues are in thread domains, if the device has them.
    pub thread_domains: bool,
    /// Several writes on one queue pair are posted with one doorbell.
    pub chain_writes: bool,
    /// Under adaptive routing, longer messages have their immediate in a second write.
    pub ar_threshold: u32,
    /// Whether the fabric may reorder packets. `None`: it may on InfiniBand, and not on Ethernet.
    pub adaptive_routing: Option<bool>,
    /// Devices may reorder their writes of payload on the bus.
    pub relaxed_ordering: bool,
    /// Queries the speed of ports, besides the bits of `active_speed`.
    pub query_port_speed: bool,
    /// A fatal asynchronous event of a device ends its connections; otherwise it is only logged.
    pub fail_on_async_error: bool,
    /// Equal ports of one card are one device to NCCL.
    pub merge_nics: bool,
    /// Ports are merged as NCCL asks, even if they are not equal ports of one card.
    pub merge_any: bool,
    /// Devices are in the order of their PCI addresses, if NCCL's own are.
    pub pci_order: bool,
    /// Virtual functions of one card share a PCI path.
    pub merge_vfs: bool,
    /// Received data is flushed to GPU memory.
    pub flush: bool,
    /// Network interface for control connections.
    pub interfaces: InterfaceFilter,
    /// The limit in seconds of each step of connection set-up, except the wait for the peer's
    /// `accept`.
    pub handshake_timeout_s: u64,
    /// A connection recovers when a port or queue pair fails, if the peer agrees.
    pub failover: bool,
    /// Milliseconds without a completion, beyond what the posted messages should take, after which
    /// a connection recovers although no device has reported a failure. 0: never.
    pub stall_ms: u64,
    /// Seconds that the recovery of a connection may take; then the connection fails.
    pub give_up_s: u64,
    /// Seconds that a message may wait before it is reported. 0: never.
    pub hang_s: u64,
    /// [`Self::hang_s`] is set by the user, not the default.
    pub is_hang_set: bool,
    /// Folder for reports.
    pub report_folder: String,
    /// NCCL reports its operations to Ferrite's profiler, so that hang reports name them.
    pub profiler: bool,
    /// The profiler that the user named.
    pub other_profiler: Option<String>,
    /// NCCL uses the network even to set up communicators.
    pub connects_early: bool,
    /// Statistics are in a file, for `ferrite top`.
    pub stats: bool,
    /// The folder of that file. `None`: the usual one.
    pub stats_folder: Option<String>,
    /// One in this many messages is timed; 0: none.
    pub stats_sample: u32,
}

/// How often and how soon an operation is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Retries after every failure, not only after temporary ones.
    pub all: bool,
    /// Number of retries.
    pub count: u32,
    /// Pause before each retry, in milliseconds.
    pub pause_ms: u64,
}

impl Retries {
    /// None.
    pub const NONE: Self = Self { all: false, count: 0, pause_ms: 0 };

    /// Whether to retry after a failure with this errno, while attempts are left.
    pub fn apply_to(self, errno: Option<i32>) -> bool {
        self.all || errno == Some(libc::ETIMEDOUT)
    }
}

impl Config {
    /// How many lanes a connection has.
    const LANES: &str = "FERRITE_LANES";
    const NEW_PATHS: &str = "FERRITE_NEW_PATHS";
    /// NCCL's variables for queue pairs. If set, they override `FERRITE_LANES`.
    const QUEUE_PAIRS: [&str; 2] = ["NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS"];

    /// The variables that the user set and Ferrite ignores, in order, with the reasons. Names in no
    /// table are found only in the environment.
    pub fn ignored(lookup: impl Fn(&str) -> Option<String>) -> BTreeMap<String, Reason> {
        let is_set = |name: &str| lookup(name).is_some_and(|value| !value.is_empty());
        let counts_queue_pairs = Self::QUEUE_PAIRS.into_iter().any(is_set);
        let lanes = lookup(Self::LANES).filter(|_| !counts_queue_pairs).unwrap_or_default();
        let of_lanes = [
            (
                Self::LANES,
                counts_queue_pairs,
                "NCCL_IB_QPS_PER_CONNECTION or NCCL_IB_SPLIT_DATA_ON_QPS is set",
            ),
            (
                Self::NEW_PATHS,
                matches!(lanes.trim(), "" | "1"),
                "connections have no lanes (FERRITE_LANES)",
            ),
        ];
        let of_lanes =
            of_lanes.into_iter().filter(|(name, has_no_effect, _)| *has_no_effect && is_set(name));
        let of_lanes = of_lanes.map(|(name, _, why)| (name.to_owned(), Reason::of_no_effect(why)));
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let names = names.chain(ignored_names().map(str::to_owned));
        let set = names.filter_map(|name| {
            lookup(&name).filter(|value| !value.is_empty()).map(|value| (name, value))
        });
        let reasons = set
            .filter_map(|(name, value)| ignored_reason(&name, &value).map(|reason| (name, reason)));
        reasons.chain(of_lanes).collect()
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
    /// A value is out of range. The text names the variable, the value and the range.
    pub fn parse(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let reader = Reader::new(lookup);
        let family = |name| {
            reader.choice(name).map(|v| match v.as_str() {
                "AF_INET" => Some(Family::V4),
                "AF_INET6" => Some(Family::V6),
                _ => None,
            })
        };
        // NCCL's own settings of queue pairs have the same meaning as there.
        let are_counted = Self::QUEUE_PAIRS.iter().any(|name| reader.text(name).is_some());
        let lanes = Some(reader.number(Self::LANES)?).filter(|_| !are_counted).unwrap_or(1);
        let timeout = reader.number("NCCL_IB_TIMEOUT")? as u8;
        let if_set = |name| reader.number(name).map(|number| u8::try_from(number).ok());
        Ok(Self {
            disabled: reader.flag("NCCL_IB_DISABLE")?,
            required: reader.text("NCCL_NET").is_some_and(|v| v.eq_ignore_ascii_case("Ferrite")),
            verbs_library: reader.text("NCCL_IBVERBS_LIB"),
            hca: HcaFilter::parse(&reader.text("NCCL_IB_HCA").unwrap_or_default())?,
            gid_index: u8::try_from(reader.number("NCCL_IB_GID_INDEX")?).ok(),
            gid_family: family("NCCL_IB_ADDR_FAMILY")?.unwrap_or(Family::V4),
            roce_version: reader.number("NCCL_IB_ROCE_VERSION_NUM")? as u8,
            gid_range: reader
                .text("NCCL_IB_ADDR_RANGE")
                .map(|text| AddressRange::parse(&text))
                .transpose()?,
            subnet_bits: reader.number("NCCL_IB_SUBNET_PREFIX_LEN")? as u8,
            subnet_aware: reader.flag("NCCL_IB_SUBNET_AWARE_ROUTING")?,
            routable_flid_gid_index: reader.number("NCCL_IB_ROUTABLE_FLID_GID_INDEX")? as u8,
            warn_of_networks: reader.flag("NCCL_IB_WARN_RAIL_LOCAL")?,
            retries: Retries {
                all: reader.flag("NCCL_IB_MQP_RETRY_ALL")?,
                count: reader.number("NCCL_IB_MQP_RETRY_CNT")? as u32,
                pause_ms: reader.number("NCCL_IB_MQP_RETRY_SLEEP_MSEC")? as u64,
            },
            timeout,
            timeout_without_recovery: match reader.text("NCCL_IB_TIMEOUT") {
                Some(_) => timeout,
                None => TIMEOUT_WITHOUT_RECOVERY,
            },
            retry_count: reader.number("NCCL_IB_RETRY_CNT")? as u8,
            pkey_index: reader.number("NCCL_IB_PKEY")? as u16,
            pkey: u16::try_from(reader.number("NCCL_IB_PKEY_VALUE")?).ok(),
            service_level: if_set("NCCL_IB_SL")?,
            traffic_class: if_set("NCCL_IB_TC")?,
            cts_traffic_class: if_set("NCCL_IB_FIFO_TC")?,
            ece: reader.flag("NCCL_IB_ECE_ENABLE")?,
            queue_pairs: reader
                .number("NCCL_IB_QPS_PER_CONNECTION")?
                .max(lanes)
                .min(MAX_QUEUE_PAIRS) as u8,
            split: reader.flag("NCCL_IB_SPLIT_DATA_ON_QPS")? || lanes > 1,
            lanes: lanes > 1,
            new_paths: reader.flag(Self::NEW_PATHS)? && lanes > 1,
            inline_data: reader.flag("NCCL_IB_USE_INLINE")?,
            thread_domains: reader.flag("FERRITE_THREAD_DOMAINS")?,
            chain_writes: reader.flag("FERRITE_CHAIN_WRITES")?,
            ar_threshold: match reader.number("NCCL_IB_AR_THRESHOLD")? {
                n if n < 0 => AR_THRESHOLD as u32,
                n => n as u32,
            },
            adaptive_routing: match reader.number("NCCL_IB_ADAPTIVE_ROUTING")? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
            relaxed_ordering: reader.number("NCCL_IB_PCI_RELAXED_ORDERING")? != 0,
            query_port_speed: reader.flag("NCCL_IB_QUERY_PORT_SPEED")?,
            fail_on_async_error: reader.flag("NCCL_IB_RETURN_ASYNC_EVENTS")?,
            merge_nics: reader.flag("NCCL_IB_MERGE_NICS")?,
            merge_any: ["NCCL_NET_FORCE_MERGE", "NCCL_NET_MERGE_LEVEL"]
                .into_iter()
                .any(|name| reader.text(name).is_some()),
            pci_order: reader.flag("NCCL_IB_DEVICE_PCI_ORDER")?,
            merge_vfs: reader.flag("NCCL_IB_MERGE_VFS")?,
            flush: !reader.flag("NCCL_GDR_FLUSH_DISABLE")?,
            interfaces: InterfaceFilter::parse(
                &reader.text("NCCL_SOCKET_IFNAME").unwrap_or_default(),
                family("NCCL_SOCKET_FAMILY")?,
                &reader.text("NCCL_COMM_ID").unwrap_or_default(),
            ),
            handshake_timeout_s: reader.number("FERRITE_HANDSHAKE_TIMEOUT")? as u64,
            failover: reader.flag("FERRITE_FAILOVER")?,
            stall_ms: reader.number("FERRITE_STALL_MS")? as u64,
            give_up_s: reader.number("FERRITE_GIVE_UP")? as u64,
            hang_s: reader.number("FERRITE_HANG_SECONDS")? as u64,
            is_hang_set: reader.text("FERRITE_HANG_SECONDS").is_some(),
            report_folder: reader.text("FERRITE_REPORT_DIR").unwrap_or_else(|| "/tmp".into()),
            profiler: reader.flag("FERRITE_PROFILER")?,
            other_profiler: reader.text("NCCL_PROFILER_PLUGIN"),
            connects_early: reader.text("NCCL_OOB_NET_ENABLE").is_some_and(|value| value != "0"),
            stats: reader.flag("FERRITE_STATS")?,
            stats_sample: reader.number("FERRITE_SAMPLE")? as u32,
            stats_folder: reader.text("FERRITE_STATS_DIR"),
        })
    }

    /// The local acknowledge timeout of queue pairs to a peer that `recovers` from faults, or not.
    pub fn timeout_to(&self, recovers: bool) -> u8 {
        if self.failover && recovers { self.timeout } else { self.timeout_without_recovery }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::variables::{Kind, VARIABLES};

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::parse(|n| (n == name).then(|| value.to_owned()))
    }

    #[test]
    fn defaults_are_those_of_the_built_in_transport_except_what_recovery_makes_better() {
        let config = Config::parse(|_| None).expect("defaults are valid");
        assert_eq!(
            (config.timeout_to(false), config.retry_count, config.queue_pairs, config.ar_threshold),
            (20, 7, 1, 8192)
        );
        assert_eq!(config.timeout_to(true), 18);
        assert_eq!(
            (config.gid_index, config.gid_family, config.roce_version),
            (None, Family::V4, 2)
        );
        assert!(config.relaxed_ordering && config.flush && !config.split && !config.disabled);
        assert!(!config.lanes && !config.new_paths, "nothing changes queue pairs but faults");
        assert!(config.inline_data && !with("NCCL_IB_USE_INLINE", "0").expect("valid").inline_data);
    }

    #[test]
    fn settings_that_are_ignored_are_named_wherever_they_come_from() {
        let set = |names: &[&str]| {
            let ignored = Config::ignored(|name| names.contains(&name).then(|| "1".to_owned()));
            ignored.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(set(&["NCCL_IB_DATA_DIRECT", "NCCL_IB_TIMEOUT"]), ["NCCL_IB_DATA_DIRECT"]);
        assert_eq!(set(&["FERRITE_LANES", "NCCL_IB_QPS_PER_CONNECTION"]), ["FERRITE_LANES"]);
        assert_eq!(set(&["FERRITE_NEW_PATHS"]), ["FERRITE_NEW_PATHS"]);
        let with_lanes = |lanes: &str| {
            let value = |name: &str| match name {
                "FERRITE_LANES" => Some(lanes.to_owned()),
                "FERRITE_NEW_PATHS" => Some("1".to_owned()),
                _ => None,
            };
            Config::ignored(value).into_keys().collect::<Vec<_>>()
        };
        assert_eq!((with_lanes("1").len(), with_lanes("4").len()), (1, 0));
        assert!(
            set(&["FERRITE_LANES"]).is_empty()
                && Config::ignored(|_| Some(String::new())).is_empty()
        );
    }

    #[test]
    fn values_are_parsed() {
        assert_eq!(with("NCCL_IB_GID_INDEX", "3").expect("valid").gid_index, Some(3));
        assert_eq!(with("NCCL_IB_TC", "0x6a").expect("valid").traffic_class, Some(106));
        for junk in
            ["0x-6", "-0x-8000000000000000", "0+7", "--1", "1-", "0x", "9223372036854775808"]
        {
            assert!(with("NCCL_IB_TC", junk).is_err(), "{junk}");
        }
        assert_eq!(
            with("NCCL_IB_TC", "0152").expect("valid").traffic_class,
            Some(106),
            "octal, as NCCL reads it"
        );
        assert_eq!(with("NCCL_IB_ADDR_FAMILY", "AF_INET6").expect("valid").gid_family, Family::V6);
        assert_eq!(
            with("NCCL_IB_ADAPTIVE_ROUTING", "1").expect("valid").adaptive_routing,
            Some(true)
        );
        let timeout_to = |name, value| with(name, value).expect("valid").timeout_to(true);
        assert_eq!(timeout_to("NCCL_IB_TIMEOUT", ""), 18, "empty is unset");
        assert_eq!(
            [timeout_to("NCCL_IB_TIMEOUT", "22"), timeout_to("FERRITE_FAILOVER", "0")],
            [22, 20]
        );
        assert_eq!(with("NCCL_IB_AR_THRESHOLD", "-2").expect("valid").ar_threshold, 8192);
        let classes =
            |name, value| with(name, value).map(|c| (c.traffic_class, c.cts_traffic_class));
        assert_eq!(classes("NCCL_IB_TC", "106").expect("valid"), (Some(106), None));
        assert_eq!(classes("NCCL_IB_FIFO_TC", "184").expect("valid"), (None, Some(184)));
        assert!(with("NCCL_NET", "ferrite").expect("valid").required);
        let recovery =
            |name, value| with(name, value).map(|c| (c.failover, c.stall_ms, c.give_up_s));
        assert_eq!(recovery("", "").expect("valid"), (true, 60, 120));
        assert_eq!(recovery("FERRITE_FAILOVER", "0").expect("valid"), (false, 60, 120));
        assert_eq!(recovery("FERRITE_STALL_MS", "0").expect("valid"), (true, 0, 120));
        assert_eq!(recovery("FERRITE_GIVE_UP", "86400").expect("valid"), (true, 60, 86400));
    }

    #[test]
    fn lanes_are_split_queue_pairs_unless_nccl_s_variables_say_how_many_there_are() {
        let of = |env: &[(&str, &str)]| {
            let value = |name: &str| {
                env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            };
            let config = Config::parse(value).expect("valid");
            (config.queue_pairs, config.split, config.lanes)
        };
        let lanes = ("FERRITE_LANES", "4");
        assert_eq!(of(&[lanes]), (4, true, true));
        assert_eq!(of(&[("FERRITE_LANES", "1")]), (1, false, false));
        assert_eq!(of(&[]), (1, false, false), "the default");
        assert_eq!(of(&[lanes, ("NCCL_IB_QPS_PER_CONNECTION", "2")]), (2, false, false));
        assert_eq!(
            of(&[lanes, ("NCCL_IB_QPS_PER_CONNECTION", "")]),
            (4, true, true),
            "empty is unset"
        );
        assert_eq!(of(&[lanes, ("NCCL_IB_SPLIT_DATA_ON_QPS", "0")]), (1, false, false));
        let split = [("NCCL_IB_QPS_PER_CONNECTION", "2"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
        assert_eq!(of(&split), (2, true, false), "even shares");
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
                let text = with(variable.name, &value).expect_err("out of range").text();
                assert!(text.contains(&format!("{}={value}: ", variable.name)), "{text}");
                assert!(text.contains("expected"), "{text}");
            }
        }
    }
}
