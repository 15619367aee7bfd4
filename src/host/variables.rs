//! Every environment variable that Ferrite reads: name, range, default and effect in one table.

/// The values that a variable may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number: lower bound, upper bound, default.
    Number(i64, i64, i64),
    /// Any text.
    Text,
    /// One of these words. The first is the default.
    Choice(&'static [&'static str]),
}

/// One environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// Possible values.
    pub kind: Kind,
    /// Effect, with the unit.
    pub effect: &'static str,
}

const fn variable(name: &'static str, kind: Kind, effect: &'static str) -> Variable {
    Variable { name, kind, effect }
}

/// All variables. Those called `NCCL_*` have the meaning that they have for NCCL's built-in IB
/// transport.
pub const VARIABLES: &[Variable] = &[
    variable("NCCL_IB_DISABLE", Kind::Number(0, 1, 0), "1: Ferrite reports no device"),
    variable(
        "NCCL_IB_HCA",
        Kind::Text,
        "devices to use: `[^][=]name[:port[:rail:plane]],…`; `^` excludes, `=` matches exactly, else by prefix",
    ),
    variable(
        "NCCL_IB_GID_INDEX",
        Kind::Number(-1, 255, -1),
        "RoCE: index into the GID table; -1: automatic",
    ),
    variable(
        "NCCL_IB_ADDR_FAMILY",
        Kind::Choice(&["AF_INET", "AF_INET6"]),
        "preferred family of the automatic GID",
    ),
    variable(
        "NCCL_IB_ROCE_VERSION_NUM",
        Kind::Number(1, 2, 2),
        "preferred RoCE version of the automatic GID",
    ),
    variable(
        "NCCL_IB_ADDR_RANGE",
        Kind::Text,
        "network of the automatic GID, such as `10.1.0.0/16`",
    ),
    variable(
        "NCCL_IB_TIMEOUT",
        Kind::Number(0, 31, 18),
        "local acknowledge timeout: 4.096 us · 2^n; 0: none. 20 if unset and an end has `FERRITE_FAILOVER=0`. NCCL: 18 up to 2.22, then 20",
    ),
    variable(
        "NCCL_IB_RETRY_CNT",
        Kind::Number(0, 7, 7),
        "retries of the device before a work request fails",
    ),
    variable(
        "NCCL_IB_SUBNET_PREFIX_LEN",
        Kind::Number(1, 32, 24),
        "prefix length of an IPv4 network. Both ends prefer a GID in the peer's network, and pair their ports by network",
    ),
    variable(
        "NCCL_IB_SUBNET_AWARE_ROUTING",
        Kind::Number(0, 1, 0),
        "1: if NCCL's device has a port outside the peer's networks, both ends use another device that has none",
    ),
    variable(
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        Kind::Number(0, 255, 1),
        "InfiniBand: index of the GID for other subnets, if it holds an FLID",
    ),
    variable(
        "NCCL_IB_WARN_RAIL_LOCAL",
        Kind::Number(0, 1, 0),
        "1: warn of connections between different networks",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_ALL",
        Kind::Number(0, 1, 0),
        "1: retry to connect a queue pair after any error",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_CNT",
        Kind::Number(0, 10_000, 34),
        "retries to connect a queue pair when the peer's address cannot be resolved (ETIMEDOUT)",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
        Kind::Number(0, 60_000, 100),
        "milliseconds between these retries",
    ),
    variable("NCCL_IB_PKEY", Kind::Number(0, 65535, 0), "index into the partition key table"),
    variable(
        "NCCL_IB_PKEY_VALUE",
        Kind::Number(-1, 65535, -1),
        "partition key, compared without its highest bit. It overrides NCCL_IB_PKEY; -1: use NCCL_IB_PKEY",
    ),
    variable(
        "NCCL_IB_SL",
        Kind::Number(-1, 15, -1),
        "service level; -1: the communicator's traffic class if it is at most 15, else 0",
    ),
    variable(
        "NCCL_IB_TC",
        Kind::Number(-1, 255, -1),
        "traffic class of packets with a GID (RoCE); -1: the communicator's traffic class, else 0",
    ),
    variable(
        "NCCL_IB_FIFO_TC",
        Kind::Number(-1, 255, -1),
        "traffic class of clear-to-sends; -1: NCCL_IB_TC",
    ),
    variable(
        "NCCL_IB_ECE_ENABLE",
        Kind::Number(0, 1, 1),
        "1: negotiate vendor options (enhanced connection establishment) if both devices can",
    ),
    variable(
        "NCCL_IB_QPS_PER_CONNECTION",
        Kind::Number(1, 128, 1),
        "queue pairs per connection and rail, at most 32 for all rails together. The smaller value of both ends counts",
    ),
    variable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        Kind::Number(0, 1, 0),
        "1: split each message evenly over the queue pairs, 8 KiB or more each, if both ends say so; 0: messages take turns",
    ),
    variable(
        "NCCL_IB_USE_INLINE",
        Kind::Number(0, 1, 1),
        "1: send clear-to-sends inline, and messages of up to 28 bytes of host memory on one rail without lanes; 0: nothing",
    ),
    variable(
        "NCCL_IB_AR_THRESHOLD",
        Kind::Number(-2, 1 << 30, 8192),
        "bytes above which data and immediate are separate writes; -2: 8192",
    ),
    variable(
        "NCCL_IB_ADAPTIVE_ROUTING",
        Kind::Number(-2, 1, -2),
        "1: the fabric may reorder packets; 0: it does not; -2: 1 on InfiniBand, 0 on RoCE",
    ),
    variable(
        "NCCL_IB_PCI_RELAXED_ORDERING",
        Kind::Number(0, 2, 2),
        "0: strict PCIe ordering of payload; 1, 2: relaxed ordering if libibverbs supports it",
    ),
    variable(
        "NCCL_IB_QUERY_PORT_SPEED",
        Kind::Number(0, 1, 1),
        "1: take the port's speed from the device or the kernel, if its speed bits are ambiguous; 0: from the bits alone",
    ),
    variable(
        "NCCL_IB_RETURN_ASYNC_EVENTS",
        Kind::Number(0, 1, 1),
        "1: a fatal device event ends connections that cannot recover; 0: it is only logged",
    ),
    variable(
        "NCCL_IB_MERGE_NICS",
        Kind::Number(0, 1, 1),
        "1: up to four equal ports of one card are one device; 0: each port is a device",
    ),
    variable(
        "NCCL_NET_FORCE_MERGE",
        Kind::Text,
        "NCCL 2.24 and later: devices to merge, such as `mlx5_0,mlx5_1` or `mlx5_0/1,mlx5_0/2` (two ports). Set to any value, it allows ports of different cards or speeds",
    ),
    variable(
        "NCCL_NET_MERGE_LEVEL",
        Kind::Text,
        "NCCL 2.24 and later: topological distance up to which NCCL merges ports. Same effect as NCCL_NET_FORCE_MERGE",
    ),
    variable(
        "NCCL_IB_DEVICE_PCI_ORDER",
        Kind::Number(0, 1, 1),
        "NCCL 2.29.7 and later. 1: sort devices by PCI address; 0: keep the order of libibverbs",
    ),
    variable(
        "NCCL_IB_MERGE_VFS",
        Kind::Number(0, 1, 1),
        "1: virtual functions of one card share a PCI path",
    ),
    variable("NCCL_GDR_FLUSH_DISABLE", Kind::Number(0, 1, 0), "1: do not flush GPU memory"),
    variable(
        "NCCL_SOCKET_IFNAME",
        Kind::Text,
        "interface for connection set-up: `[^][=]name,…`; `^` excludes, `=` matches exactly, else by prefix",
    ),
    variable(
        "NCCL_SOCKET_FAMILY",
        Kind::Choice(&["", "AF_INET", "AF_INET6"]),
        "address family for connection set-up",
    ),
    variable(
        "NCCL_COMM_ID",
        Kind::Text,
        "`ADDRESS:PORT` of NCCL's root. Without NCCL_SOCKET_IFNAME, connection set-up uses the interface in that network, like NCCL's bootstrap",
    ),
    variable("NCCL_IBVERBS_LIB", Kind::Text, "libibverbs to load instead of the system's"),
    variable(
        "FERRITE_HANDSHAKE_TIMEOUT",
        Kind::Number(1, 3600, 60),
        "seconds for each step of set-up: TCP connection, first message, queue pairs. The peer's `accept` may take any time",
    ),
    variable(
        "FERRITE_FAILOVER",
        Kind::Number(0, 1, 1),
        "1: recover connections after a fault, over other ports or when the port is back, if both ends say so",
    ),
    variable(
        "FERRITE_LANES",
        Kind::Number(1, 8, 1),
        "queue pairs per connection and rail that share each large message. The smaller value of both ends counts: [slow.md](slow.md#6-one-path-of-many)",
    ),
    variable(
        "FERRITE_NEW_PATHS",
        Kind::Number(0, 1, 0),
        "1: move a lane that stays slow or gets no acknowledgement to another path (Ethernet)",
    ),
    variable(
        "FERRITE_THREAD_DOMAINS",
        Kind::Number(0, 1, 1),
        "1: the queues of a connection are in thread domains, while the device has some left. mlx5 then takes no locks; 0: none",
    ),
    variable(
        "FERRITE_CHAIN_WRITES",
        Kind::Number(0, 1, 1),
        "1: post several writes of a message with one doorbell; 0: post each by itself, which mlx5 writes to the card",
    ),
    variable(
        "FERRITE_STALL_MS",
        Kind::Number(0, 60_000, 60),
        "milliseconds without an expected completion after which a connection recovers, even if no device reports a failure; 0: never",
    ),
    variable(
        "FERRITE_GIVE_UP",
        Kind::Number(1, 86_400, 120),
        "seconds after which a recovery fails and both ends report an error",
    ),
    variable(
        "FERRITE_HANG_SECONDS",
        Kind::Number(0, 86_400, 10),
        "seconds after which a waiting message is reported; 0: never. If unset, each wait that ends by itself doubles it, up to 120",
    ),
    variable(
        "FERRITE_REPORT_DIR",
        Kind::Text,
        "folder of hang reports as JSON and of the socket for `ferrite hang`; unset: `/tmp`",
    ),
    variable(
        "FERRITE_PROFILER",
        Kind::Number(0, 1, 1),
        "1: NCCL 2.28.3 and later report operations, so that hang reports and `ferrite top` name them; 0: no names",
    ),
    variable(
        "FERRITE_STATS",
        Kind::Number(0, 1, 1),
        "1: keep statistics in shared memory for `ferrite top`; 0: no other process can read them",
    ),
    variable("FERRITE_STATS_DIR", Kind::Text, "folder of that file; unset: `/dev/shm`"),
    variable(
        "FERRITE_SAMPLE",
        Kind::Number(0, 65_536, 256),
        "time one in N messages of a connection, for `ferrite top` and `ferrite trace`; 0: none",
    ),
    variable(
        "RANK",
        Kind::Text,
        "rank in the job, for messages and statistics. Of this and the next three, the first that is set counts",
    ),
    variable("SLURM_PROCID", Kind::Text, "the same, set by Slurm"),
    variable("OMPI_COMM_WORLD_RANK", Kind::Text, "the same, set by Open MPI"),
    variable("PMIX_RANK", Kind::Text, "the same, set by PMIx"),
    variable(
        "NCCL_PROFILER_PLUGIN",
        Kind::Text,
        "a profiler instead of Ferrite's: operations then have no names. If the file is missing, NCCL takes Ferrite's. `none`: no profiler",
    ),
    variable(
        "NCCL_OOB_NET_ENABLE",
        Kind::Text,
        "other than 0: NCCL also sets up communicators over the network. The log then does not mention an unused profiler",
    ),
    variable(
        "NCCL_NET",
        Kind::Text,
        "`Ferrite`: NCCL stops if it cannot use Ferrite, and Ferrite warns why",
    ),
];

/// A variable that Ferrite ignores: of NCCL's built-in IB transport, up to 2.32, or of an earlier
/// Ferrite.
#[derive(Debug, Clone, Copy)]
pub struct Ignored {
    /// Name. A `*` stands for any end.
    pub name: &'static str,
    /// Why, as part of a sentence.
    pub why: &'static str,
    /// What the user loses by that, and the value that asks for none of it.
    pub lost: Option<(&'static str, &'static str)>,
}

const fn replaced(name: &'static str, why: &'static str) -> Ignored {
    Ignored { name, why, lost: None }
}

const fn missing(
    name: &'static str,
    why: &'static str,
    lost: &'static str,
    off: &'static str,
) -> Ignored {
    Ignored { name, why, lost: Some((lost, off)) }
}

/// All variables that Ferrite ignores.
pub const IGNORED: &[Ignored] = &[
    replaced("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "Ferrite always posts receives ahead"),
    replaced(
        "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME",
        "Ferrite always matches messages by identity",
    ),
    missing(
        "NCCL_IB_DATA_DIRECT",
        "Ferrite does not use Data Direct functions",
        "on cards with a Data Direct function, GPU data takes the ordinary PCIe path",
        "0",
    ),
    replaced("NCCL_IB_EVENT_BASED_LB*", "a port's share of a message always follows its speed"),
    replaced(
        "NCCL_IB_WQE_LATENCY_*",
        "`ferrite top`, `ferrite trace` and hang reports show slow messages",
    ),
    missing(
        "NCCL_IB_RAIL_POLICY",
        "NCCL_IB_HCA defines the rails",
        "ConnectX-9 ports have no rail by position; set NCCL_IB_HCA=name:port:rail:plane",
        "NONE",
    ),
    replaced("NCCL_IB_SORT_MERGE_NICS", "Ferrite merges ports in the order that NCCL gives"),
    replaced("NCCL_IB_VR_*", "NCCL_IB_HCA defines the rails"),
    replaced("NCCL_IB_RESILIENCY_*", "Ferrite recovers by default (FERRITE_FAILOVER)"),
    replaced(
        "NCCL_GIN_IB_TC",
        "GPU-initiated transfers use NCCL's built-in transport, which honours it",
    ),
    replaced(
        "NCCL_RMA_IB_WR_BATCHSIZE",
        "one-sided transfers use NCCL's built-in transport, which honours it",
    ),
    missing(
        "NCCL_IB_OOO_RQ",
        "Ferrite does not use out-of-order receive queues",
        "Ethernet that spreads packets needs NCCL_IB_ADAPTIVE_ROUTING=1",
        "0",
    ),
    missing(
        "FERRITE_SPARE",
        "a connection uses only the ports of its own device",
        "a connection waits until one of its ports works; NCCL_NET_FORCE_MERGE makes one device of several cards",
        "0",
    ),
    replaced("FERRITE_LANES_*", "Ferrite has no automatic lanes; FERRITE_LANES sets their number"),
    replaced("NCCL_SOCKET_RETRY_CNT", "Ferrite retries until FERRITE_HANDSHAKE_TIMEOUT"),
    replaced("NCCL_SOCKET_RETRY_SLEEP_MSEC", "Ferrite retries until FERRITE_HANDSHAKE_TIMEOUT"),
];

/// The variables that Ferrite ignores, as far as the table has their whole names.
pub fn ignored_names() -> impl Iterator<Item = &'static str> {
    IGNORED.iter().map(|ignored| ignored.name).filter(|name| !name.ends_with('*'))
}

/// What is to be said of a variable that is set and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Why it has none, and whether anything is lost by that.
    pub text: String,
    /// Whether something is.
    pub is_loss: bool,
}

impl Reason {
    /// A variable of Ferrite's own, or of nobody.
    pub fn of_no_effect(why: &str) -> Self {
        Self { text: why.to_owned(), is_loss: false }
    }
}

/// Why Ferrite ignores the variable `name`, which has this value. `None`: it does not, or the
/// variable is not one for InfiniBand.
pub fn ignored_reason(name: &str, value: &str) -> Option<Reason> {
    const OURS: [&str; 1] = ["NCCL_IB_"];
    let is_named = |ignored: &str| match ignored.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == ignored,
    };
    if let Some(Ignored { why, lost, .. }) = IGNORED.iter().find(|ignored| is_named(ignored.name)) {
        return Some(match lost {
            Some((lost, off)) if value.trim() != *off => {
                Reason { text: format!("{why}: {lost}"), is_loss: true }
            }
            _ => Reason::of_no_effect(&format!("nothing is lost: {why}")),
        });
    }
    let is_known = VARIABLES.iter().any(|v| v.name == name);
    let is_unknown = !is_known && OURS.iter().any(|prefix| name.starts_with(prefix));
    is_unknown.then(|| Reason::of_no_effect("there is no such variable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_is_in_one_table_once() {
        let all: Vec<_> = VARIABLES
            .iter()
            .map(|v| v.name)
            .chain(IGNORED.iter().map(|ignored| ignored.name))
            .collect();
        for name in &all {
            assert_eq!(all.iter().filter(|n| n == &name).count(), 1, "{name}");
        }
    }

    #[test]
    fn an_ignored_variable_has_a_reason_that_says_whether_something_is_lost() {
        let said =
            |name, value| ignored_reason(name, value).map(|reason| (reason.text, reason.is_loss));
        let (text, is_loss) = said("NCCL_IB_DATA_DIRECT", "1").expect("ignored");
        assert!(
            is_loss && text.starts_with("Ferrite does not use Data Direct functions: on cards"),
            "{text}"
        );
        for (name, value, why) in [
            ("NCCL_IB_DATA_DIRECT", "0", "Ferrite does not use Data Direct functions"),
            (
                "NCCL_IB_RESILIENCY_PORT_FAILOVER",
                "1",
                "Ferrite recovers by default (FERRITE_FAILOVER)",
            ),
            (
                "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT",
                "5",
                "Ferrite recovers by default (FERRITE_FAILOVER)",
            ),
        ] {
            assert_eq!(
                said(name, value),
                Some((format!("nothing is lost: {why}"), false)),
                "{name}={value}"
            );
        }
        assert_eq!(
            said("NCCL_IB_TIMOUT", "1"),
            Some(("there is no such variable".to_owned(), false))
        );
        for name in ["NCCL_IB_TIMEOUT", "NCCL_DEBUG", "PATH"] {
            assert_eq!(said(name, "1"), None, "{name}");
        }
    }
}
