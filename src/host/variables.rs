//! Every environment variable that Ferrite reads: name, range, default and effect in one table.

/// The values that a variable may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number: lower bound, upper bound, default.
    Number(i64, i64, i64),
    /// This word, or a whole number: lower bound, upper bound, default.
    WordOr(&'static str, i64, i64, i64),
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
        "devices to use: `[^][=]name[:port[:rail:plane]],…`; `^` excludes, `=` exact, else by prefix",
    ),
    variable(
        "NCCL_IB_GID_INDEX",
        Kind::Number(-1, 255, -1),
        "RoCE: entry of the GID table; -1: chosen automatically",
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
        "network that the automatic GID has to be in, such as `10.1.0.0/16`",
    ),
    variable(
        "NCCL_IB_TIMEOUT",
        Kind::Number(0, 31, 20),
        "local acknowledge timeout, 4.096 us · 2^n; 0: for ever. 20, as since NCCL 2.23: a link may be away for some 30 s",
    ),
    variable(
        "NCCL_IB_RETRY_CNT",
        Kind::Number(0, 7, 7),
        "how often the device retries before it gives up",
    ),
    variable(
        "NCCL_IB_SUBNET_PREFIX_LEN",
        Kind::Number(1, 32, 24),
        "leading bits by which IPv4 addresses of one network agree; both ends prefer a GID in the peer's network, and pair their ports by network",
    ),
    variable(
        "NCCL_IB_SUBNET_AWARE_ROUTING",
        Kind::Number(0, 1, 0),
        "1: if a port of NCCL's device is in none of the peer's networks, a connection uses another device, all of whose ports are; both ends do so",
    ),
    variable(
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        Kind::Number(0, 255, 1),
        "InfiniBand: entry of the GID table for other subnets, where it holds an FLID",
    ),
    variable(
        "NCCL_IB_WARN_RAIL_LOCAL",
        Kind::Number(0, 1, 0),
        "1: warn of connections between networks",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_ALL",
        Kind::Number(0, 1, 0),
        "1: connecting a queue pair is tried again whatever failed",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_CNT",
        Kind::Number(0, 10_000, 34),
        "how often connecting a queue pair is tried again when the peer's address cannot be resolved (ETIMEDOUT)",
    ),
    variable(
        "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
        Kind::Number(0, 60_000, 100),
        "milliseconds between these attempts",
    ),
    variable("NCCL_IB_PKEY", Kind::Number(0, 65535, 0), "index into the partition key table"),
    variable(
        "NCCL_IB_PKEY_VALUE",
        Kind::Number(-1, 65535, -1),
        "partition key, which is looked for in the table without its highest bit, and counts more than NCCL_IB_PKEY; -1: NCCL_IB_PKEY",
    ),
    variable(
        "NCCL_IB_SL",
        Kind::Number(-1, 15, -1),
        "service level; -1: the communicator's traffic class, if it has one up to 15, else 0",
    ),
    variable(
        "NCCL_IB_TC",
        Kind::Number(-1, 255, -1),
        "traffic class, where packets carry GIDs (RoCE); -1: the communicator's, if it has one, else 0",
    ),
    variable(
        "NCCL_IB_FIFO_TC",
        Kind::Number(-1, 255, -1),
        "traffic class of clear-to-sends; -1: as NCCL_IB_TC",
    ),
    variable(
        "NCCL_IB_ECE_ENABLE",
        Kind::Number(0, 1, 1),
        "1: devices agree on their maker's options (enhanced connection establishment), if both ends can",
    ),
    variable(
        "NCCL_IB_QPS_PER_CONNECTION",
        Kind::Number(1, 128, 1),
        "queue pairs per connection and rail; a connection has 32 in all at most, on all of its rails together; the lesser of both ends",
    ),
    variable(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        Kind::Number(0, 1, 0),
        "1: a message is cut evenly over all queue pairs, if both ends say so: one stripe for each 8 KiB begun, at most as many as there are queue pairs; 0: messages take turns",
    ),
    variable(
        "NCCL_IB_USE_INLINE",
        Kind::Number(0, 1, 1),
        "1: clear-to-sends, and on connections of one rail without lanes messages of host memory of 28 bytes or fewer, are sent inline, where the device can; 0: the device reads them from memory",
    ),
    variable(
        "NCCL_IB_AR_THRESHOLD",
        Kind::Number(-2, 1 << 30, 8192),
        "bytes above which data and immediate are two writes; -2: 8192",
    ),
    variable(
        "NCCL_IB_ADAPTIVE_ROUTING",
        Kind::Number(-2, 1, -2),
        "1: the fabric may reorder packets; 0: it does not; -2: yes on InfiniBand, no on RoCE",
    ),
    variable(
        "NCCL_IB_OOO_RQ",
        Kind::Number(0, 1, 0),
        "1: the fabric spreads packets, so that with FERRITE_LANES=auto connections keep one queue pair; out-of-order receive queues themselves are not used",
    ),
    variable(
        "NCCL_IB_PCI_RELAXED_ORDERING",
        Kind::Number(0, 2, 2),
        "0: the device writes payload in order on the bus; 1, 2: it need not, where libibverbs knows how to say so",
    ),
    variable(
        "NCCL_IB_QUERY_PORT_SPEED",
        Kind::Number(0, 1, 1),
        "1: the speed is what the device says, where libibverbs can ask, else what the kernel says of a port whose bits cannot tell it; 0: what its bits say",
    ),
    variable(
        "NCCL_IB_RETURN_ASYNC_EVENTS",
        Kind::Number(0, 1, 1),
        "1: a fatal event of a device ends its connections that do not recover; 0: it is logged",
    ),
    variable(
        "NCCL_IB_MERGE_NICS",
        Kind::Number(0, 1, 1),
        "1: equal ports of one card are one device, up to 4; 0: each port is a device of its own",
    ),
    variable(
        "NCCL_NET_FORCE_MERGE",
        Kind::Text,
        "NCCL 2.24 and later: devices that NCCL merges; set to anything, Ferrite lets NCCL merge ports that are not equal ports of one card",
    ),
    variable(
        "NCCL_NET_MERGE_LEVEL",
        Kind::Text,
        "NCCL 2.24 and later: how near ports are that NCCL merges; else as NCCL_NET_FORCE_MERGE",
    ),
    variable(
        "NCCL_IB_DEVICE_PCI_ORDER",
        Kind::Number(0, 1, 1),
        "NCCL 2.29.7 and later. 1: devices in the order of their PCI addresses; 0: in the order of libibverbs",
    ),
    variable(
        "NCCL_IB_MERGE_VFS",
        Kind::Number(0, 1, 1),
        "1: virtual functions of one card share a PCI path",
    ),
    variable(
        "NCCL_GDR_FLUSH_DISABLE",
        Kind::Number(0, 1, 0),
        "1: flushes of GPU memory do nothing",
    ),
    variable(
        "NCCL_SOCKET_IFNAME",
        Kind::Text,
        "interface for connection set-up: `[^][=]name,…`; `^` excludes, `=` exact, else by prefix",
    ),
    variable(
        "NCCL_SOCKET_FAMILY",
        Kind::Choice(&["", "AF_INET", "AF_INET6"]),
        "address family for connection set-up",
    ),
    variable(
        "NCCL_COMM_ID",
        Kind::Text,
        "`ADDRESS:PORT` of NCCL's root. If NCCL_SOCKET_IFNAME is not set, connection set-up uses an interface in that network, as NCCL's bootstrap does",
    ),
    variable("NCCL_IBVERBS_LIB", Kind::Text, "libibverbs to load instead of the system's"),
    variable(
        "FERRITE_HANDSHAKE_TIMEOUT",
        Kind::Number(1, 3600, 60),
        "seconds to reach a peer's port, to connect queue pairs, and for a client's first frame; how long a peer takes to accept has no limit",
    ),
    variable(
        "FERRITE_FAILOVER",
        Kind::Number(0, 1, 1),
        "1: a connection whose port or queue pair fails is recovered, over its other ports or once the port is back, if both ends say so",
    ),
    variable(
        "FERRITE_LANES",
        Kind::WordOr("auto", 1, 8, 1),
        "queue pairs per connection and rail; with more than one, every large message is cut over all of them, and each has a share that follows what it completes; the lesser of both ends. auto (not measured on any switch or card): 1, and on Ethernet 4 for a connection that has sent much in large messages (FERRITE_LANES_AFTER_MB) and is faster with them, with FERRITE_NEW_PATHS=1 if that is not set; always 1 on InfiniBand, with RoCE v1, with NCCL_IB_ADAPTIVE_ROUTING=1 or NCCL_IB_OOO_RQ=1, and with FERRITE_FAILOVER=0, FERRITE_STATS=0 or FERRITE_SAMPLE=0. Not used where NCCL_IB_QPS_PER_CONNECTION or NCCL_IB_SPLIT_DATA_ON_QPS is set",
    ),
    variable(
        "FERRITE_LANES_AFTER_MB",
        Kind::Number(0, 1 << 30, 16 << 10),
        "with FERRITE_LANES=auto, MiB that a connection sends, in messages of at least 64 KiB on average, before it compares lanes with one queue pair. The actual value is random, up to twice this, so that connections do not all compare at once. 0: it has lanes from the beginning, and keeps them",
    ),
    variable(
        "FERRITE_LANES_BUDGET",
        Kind::Number(0, 1 << 20, 256),
        "with FERRITE_LANES=auto, queue pairs that all lanes of a process may add on each card, besides the first one of each end of a connection. An end that would need more keeps one",
    ),
    variable(
        "FERRITE_NEW_PATHS",
        Kind::Number(0, 1, 0),
        "1: of several lanes, one that stays slow, or on which nothing is acknowledged, is given another path through an Ethernet fabric",
    ),
    variable(
        "FERRITE_THREAD_DOMAINS",
        Kind::Number(0, 1, 0),
        "1: on each rail each end of a connection has its queue pairs in a thread domain, where the device has some left: mlx5 takes no locks to post then, and uses a page of the card for each; 0: none has",
    ),
    variable(
        "FERRITE_CHAIN_WRITES",
        Kind::Number(0, 1, 1),
        "1: where a message takes several writes on one queue pair, they are posted with one doorbell, and the device fetches them; 0: each is posted by itself, and mlx5 writes it to the card",
    ),
    variable(
        "FERRITE_STALL_MS",
        Kind::Number(0, 60_000, 60),
        "milliseconds without a completion, beyond what the posted messages should take, after which a connection is recovered although no device has reported a failure; 0: never",
    ),
    variable(
        "FERRITE_GIVE_UP",
        Kind::Number(1, 86_400, 120),
        "seconds that the recovery of a connection may take; then the connection fails",
    ),
    variable(
        "FERRITE_SPARE",
        Kind::Number(0, 1, 0),
        "1: a connection that can use none of its own ports uses a port of another card until one is back; 0: it waits",
    ),
    variable(
        "FERRITE_HANG_SECONDS",
        Kind::Number(0, 86_400, 10),
        "seconds that a message may wait before it is reported who waits for whom; 0: never. Where it is not set, each wait that ends by itself doubles it, up to 120",
    ),
    variable(
        "FERRITE_REPORT_DIR",
        Kind::Text,
        "folder for these reports as JSON, and for the socket by which `ferrite hang` asks for one; unset: `/tmp`",
    ),
    variable(
        "FERRITE_PROFILER",
        Kind::Number(0, 1, 1),
        "1: NCCL 2.28.3 and later tell Ferrite's profiler of their operations, so that reports and `ferrite top` name them; 0: they do not",
    ),
    variable(
        "FERRITE_STATS",
        Kind::Number(0, 1, 1),
        "1: statistics are in a file in shared memory, for `ferrite top`; 0: no process can read them",
    ),
    variable("FERRITE_STATS_DIR", Kind::Text, "folder of that file; unset: `/dev/shm`"),
    variable(
        "FERRITE_SAMPLE",
        Kind::Number(0, 65_536, 256),
        "one in so many messages of a connection is timed, for `ferrite top` and `ferrite trace`; 0: none is",
    ),
    variable(
        "RANK",
        Kind::Text,
        "rank in the job, for messages and statistics; the first that is set of this and the next three",
    ),
    variable("SLURM_PROCID", Kind::Text, "the same, as Slurm tells it"),
    variable("OMPI_COMM_WORLD_RANK", Kind::Text, "the same, as Open MPI tells it"),
    variable("PMIX_RANK", Kind::Text, "the same, as PMIx tells it"),
    variable(
        "NCCL_PROFILER_PLUGIN",
        Kind::Text,
        "another profiler than Ferrite's, which then names no operations; from version 10 on that one may hear of each message; `none`: NCCL takes none",
    ),
    variable(
        "NCCL_OOB_NET_ENABLE",
        Kind::Text,
        "other than 0: NCCL uses the network to set up communicators too; the log then does not say that NCCL has not taken Ferrite's profiler",
    ),
    variable(
        "NCCL_NET",
        Kind::Text,
        "`Ferrite`: NCCL stops when it cannot use Ferrite, and Ferrite warns why",
    ),
];

/// A variable of NCCL's built-in IB transports, up to 2.32, that Ferrite ignores.
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
    replaced("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "receives are always posted ahead"),
    replaced("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "messages are always matched by identity"),
    missing(
        "NCCL_IB_DATA_DIRECT",
        "Data Direct functions are not used",
        "on machines whose cards have a Data Direct function, GPU data takes the ordinary PCIe path",
        "0",
    ),
    replaced(
        "NCCL_IB_EVENT_BASED_LB*",
        "a port's share of a message always follows what it completes",
    ),
    replaced("NCCL_IB_WQE_LATENCY_*", "FERRITE_STATS and the hang report tell of slow messages"),
    missing(
        "NCCL_IB_RAIL_POLICY",
        "rails are those that NCCL_IB_HCA names",
        "ConnectX-9 ports get no rail by their places; NCCL_IB_HCA=name:port:rail:plane gives them one",
        "NONE",
    ),
    replaced("NCCL_IB_SORT_MERGE_NICS", "ports are merged in the order that NCCL names them"),
    replaced("NCCL_IB_VR_*", "rails are those that NCCL_IB_HCA names"),
    replaced("NCCL_IB_RESILIENCY_*", "recovery is on by default; see FERRITE_FAILOVER"),
    replaced(
        "NCCL_GIN_IB_TC",
        "NCCL's built-in transport makes GPU-initiated transfers, and honours it",
    ),
    replaced(
        "NCCL_RMA_IB_WR_BATCHSIZE",
        "NCCL's built-in transport makes one-sided transfers, and honours it",
    ),
    replaced("NCCL_SOCKET_RETRY_CNT", "dialling continues until FERRITE_HANDSHAKE_TIMEOUT"),
    replaced("NCCL_SOCKET_RETRY_SLEEP_MSEC", "dialling continues until FERRITE_HANDSHAKE_TIMEOUT"),
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
            _ => Reason::of_no_effect(&format!("nothing is lost by that: {why}")),
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
            is_loss && text.starts_with("Data Direct functions are not used: on machines"),
            "{text}"
        );
        for (name, value, why) in [
            ("NCCL_IB_DATA_DIRECT", "0", "Data Direct functions are not used"),
            (
                "NCCL_IB_RESILIENCY_PORT_FAILOVER",
                "1",
                "recovery is on by default; see FERRITE_FAILOVER",
            ),
            (
                "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT",
                "5",
                "recovery is on by default; see FERRITE_FAILOVER",
            ),
        ] {
            assert_eq!(
                said(name, value),
                Some((format!("nothing is lost by that: {why}"), false)),
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
