//! What connections have done between two moments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nccl_net::inspect::stats::layout::record;

use crate::top::stats_file::{Buckets, End, Processes, quantile};

/// One end of a connection and what it has done.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Process id.
    pub(crate) pid: u64,
    /// This end's rank.
    pub(crate) rank: Option<u64>,
    /// The end as it is now.
    pub(crate) end: End,
    /// Seconds between the two moments; 0: there is no earlier one.
    pub(crate) seconds: f64,
    /// What the counters have grown by.
    pub(crate) grown: [u64; record::COUNTERS],
    /// Bytes of each rail meanwhile.
    pub(crate) rail_bytes: Vec<u64>,
    /// Bytes of each lane meanwhile.
    pub(crate) lane_bytes: Vec<u64>,
    /// Times of each stage meanwhile.
    pub(crate) stages: [Buckets; record::STAGES],
}

impl Row {
    /// Bytes a second.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.per_second(record::BYTES)
    }

    /// Growth of a counter in a second.
    pub(crate) fn per_second(&self, counter: usize) -> f64 {
        if self.seconds > 0.0 { self.grown[counter] as f64 / self.seconds } else { 0.0 }
    }

    /// A quantile of a stage, in nanoseconds; of all time, if there are too few samples of this
    /// interval.
    pub(crate) fn quantile(&self, stage: usize, share: f64) -> Option<f64> {
        quantile(&self.stages[stage], share).or_else(|| quantile(&self.end.stages[stage], share))
    }

    /// The 99th percentile of the stage that the path is in: `wire` or `data`.
    pub(crate) fn path_p99(&self) -> Option<f64> {
        self.quantile(if self.end.is_sender { record::WIRE } else { record::DATA }, 0.99)
    }

    /// The greatest share of the bytes that a rail has carried, with the rail's number, if there
    /// are several rails.
    pub(crate) fn greatest_share(&self) -> Option<(usize, f64)> {
        let total = self.rail_bytes.iter().copied().fold(0, u64::saturating_add);
        let most = self.rail_bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes)?;
        (self.rail_bytes.len() > 1 && total > 0).then(|| (most.0, *most.1 as f64 / total as f64))
    }
}

/// A row for each open end of `now`, compared with `before`.
pub(crate) fn rows(before: Option<&Processes>, now: &Processes) -> Vec<Row> {
    let seconds =
        before.map_or(0.0, |before| now.at.saturating_duration_since(before.at).as_secs_f64());
    let mut rows = Vec::new();
    for (path, process) in &now.living {
        for end in process.ends.iter().filter(|end| end.is_open) {
            let earlier = before.and_then(|before| before.end(path, end.number, end.generation));
            let own_rank = process.file.rank().or(end.own_rank);
            rows.push(row(process.file.pid(), own_rank, end, earlier, seconds));
        }
    }
    rows
}

fn row(pid: u64, rank: Option<u64>, end: &End, earlier: Option<&End>, seconds: f64) -> Row {
    let grown = std::array::from_fn(|at| {
        end.counters[at].saturating_sub(earlier.map_or(0, |earlier| earlier.counters[at]))
    });
    let before = |rail: usize| {
        earlier.and_then(|earlier| earlier.rails.get(rail)).map_or(0, |(_, bytes)| *bytes)
    };
    let rail_bytes =
        end.rails.iter().enumerate().map(|(rail, (_, bytes))| bytes.saturating_sub(before(rail)));
    let lane_before =
        |lane: usize| earlier.and_then(|earlier| earlier.lanes.get(lane)).copied().unwrap_or(0);
    let lane_bytes =
        end.lanes.iter().enumerate().map(|(lane, bytes)| bytes.saturating_sub(lane_before(lane)));
    let lane_bytes = lane_bytes.collect();
    let stages = std::array::from_fn(|stage| {
        let now = &end.stages[stage];
        match earlier {
            Some(earlier) => {
                std::array::from_fn(|at| now[at].saturating_sub(earlier.stages[stage][at]))
            }
            None => *now,
        }
    });
    // Of an end that is new there are no seconds to divide by.
    let seconds = if earlier.is_some() { seconds } else { 0.0 };
    Row {
        pid,
        rank,
        end: end.clone(),
        seconds,
        grown,
        rail_bytes: rail_bytes.collect(),
        lane_bytes,
        stages,
    }
}

/// Where the kernel shows RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// A port.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// `ACTIVE`, `DOWN` and others, as the kernel says.
    pub(crate) state: String,
    /// The rate of its link; 0: it is not known.
    pub(crate) bytes_per_second: f64,
    /// By the kernel's name; those of `counters` and of `hw_counters`.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Counters of a port that tell of packets that were lost or sent again.
const RETRIES: [&str; 6] = [
    "local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "rnr_nak_retry_err",
    "implied_nak_seq_err", "roce_adp_retrans",
];
/// Congestion notification packets that a port has handled.
const CONGESTION: [&str; 2] = ["rp_cnp_handled", "rx_cnp_handled"];

/// What happened at a port between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PortRates {
    /// Bytes a second that it has sent. The kernel counts words of 4 bytes.
    pub(crate) sent: f64,
    /// Bytes a second that it has received.
    pub(crate) received: f64,
    /// Packets a second that were lost or sent again.
    pub(crate) retries: f64,
    /// Congestion notifications a second.
    pub(crate) congestion: f64,
    /// Times that there was data and no credit to send it, a second.
    pub(crate) waits: f64,
}

/// All ports, by device and port number, below `class`, which is [`CLASS`] but in tests.
pub(crate) fn read(class: &Path) -> BTreeMap<(String, u32), Port> {
    let mut ports = BTreeMap::new();
    for device in names(class) {
        for number in names(&class.join(&device).join("ports")) {
            let folder = class.join(&device).join("ports").join(&number);
            let state = fs::read_to_string(folder.join("state")).unwrap_or_default();
            let state = state.trim().rsplit(' ').next().unwrap_or_default().to_owned();
            let counters = ["counters", "hw_counters"]
                .map(|kind| folder.join(kind))
                .into_iter()
                .flat_map(|folder| {
                    let read = |name: String| {
                        let value =
                            fs::read_to_string(folder.join(&name)).ok()?.trim().parse().ok()?;
                        Some((name, value))
                    };
                    names(&folder).into_iter().filter_map(read).collect::<Vec<_>>()
                });
            let rate = fs::read_to_string(folder.join("rate")).unwrap_or_default();
            let gigabits = rate.split(' ').next().and_then(|number| number.parse::<f64>().ok());
            let port = Port {
                state,
                bytes_per_second: gigabits.unwrap_or(0.0) * 1e9 / 8.0,
                counters: counters.collect(),
            };
            if let Ok(number) = number.parse() {
                ports.insert((device.clone(), number), port);
            }
        }
    }
    ports
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The rates of a port between two moments that are so many seconds apart.
pub(crate) fn rates(before: &Port, now: &Port, seconds: f64) -> PortRates {
    let grown = |name: &str| {
        let of = |port: &Port| port.counters.get(name).copied().unwrap_or(0);
        of(now).saturating_sub(of(before)) as f64 / seconds.max(1e-3)
    };
    let sum = |names: &[&str]| names.iter().map(|name| grown(name)).sum();
    PortRates {
        sent: 4.0 * grown("port_xmit_data"),
        received: 4.0 * grown("port_rcv_data"),
        retries: sum(&RETRIES),
        congestion: sum(&CONGESTION),
        waits: grown("port_xmit_wait"),
    }
}

/// The order of connections. The first is the one that is looked for first when a job is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By the 99th percentile of the stage in which the path is: `wire` or `data`
    P99,
    /// By bytes a second
    Gbps,
    /// By the median of the wait for a clear-to-send
    Cts,
    /// By the time for which nothing has moved although something is outstanding
    Wait,
    /// By messages that were sent again, and recoveries
    Retries,
}

impl Sort {
    /// The next one, for a key.
    pub(crate) fn next(self) -> Self {
        const ALL: [Sort; 5] = [Sort::P99, Sort::Gbps, Sort::Cts, Sort::Wait, Sort::Retries];
        let at = ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        ALL[(at + 1) % ALL.len()]
    }

    /// What the order is called in headings.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::P99 => "those without progress first, then by PATH99",
            Self::Gbps => "by GB/s",
            Self::Cts => {
                "those without progress first, then by S2 p50 of senders (wait for a clear-to-send)"
            }
            Self::Wait => "by time without progress",
            Self::Retries => {
                "those without progress first, then by messages sent again and recoveries"
            }
        }
    }

    fn key(self, row: &Row) -> f64 {
        match self {
            Self::P99 => row.path_p99().unwrap_or(0.0),
            Self::Gbps => row.bytes_per_second(),
            Self::Cts if row.end.is_sender => row.quantile(record::CTS, 0.5).unwrap_or(0.0),
            Self::Cts => 0.0,
            Self::Wait => row.end.stall as f64,
            Self::Retries => {
                row.end.counters[record::RESENT] as f64
                    + row.end.counters[record::RECOVERIES] as f64
            }
        }
    }

    /// Puts the rows in order, the worst or greatest first. An end that stands still comes before
    /// all others, but in the order by [`Self::Gbps`].
    pub(crate) fn apply(self, rows: &mut [Row]) {
        let stall = |row: &Row| if self == Self::Gbps { 0 } else { row.end.stall };
        rows.sort_by(|a, b| stall(b).cmp(&stall(a)).then(self.key(b).total_cmp(&self.key(a))));
    }
}

/// What is shown: all that is asked for has to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    rank: Option<u64>,
    peer: Option<u64>,
    pid: Option<u64>,
    device: Option<String>,
    host: Option<String>,
}

impl Filter {
    /// Reads `rank=6,peer=118,dev=mlx5_3,host=n-0412,pid=815`.
    ///
    /// # Errors
    /// The text says what is not understood, and what is.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || {
                value.parse().map_err(|_| format!("{part}: a number is expected after `{name}=`"))
            };
            match name {
                "rank" => filter.rank = Some(number()?),
                "peer" => filter.peer = Some(number()?),
                "pid" => filter.pid = Some(number()?),
                "dev" | "host" if value.is_empty() => {
                    return Err(format!("{part}: a name is expected after `{name}=`"));
                }
                "dev" => filter.device = Some(value.into()),
                "host" => filter.host = Some(value.into()),
                _ => return Err(format!("{part}: rank=, peer=, pid=, dev= or host= is expected")),
            }
        }
        Ok(filter)
    }

    /// Whether the row is shown. Names of devices and hosts fit if they begin so.
    pub(crate) fn admits(&self, row: &Row) -> bool {
        let is = |wanted: Option<u64>, found: Option<u64>| wanted.is_none() || wanted == found;
        let begins = |wanted: &Option<String>, name: &str| {
            wanted.as_ref().is_none_or(|wanted| name.starts_with(wanted))
        };
        is(self.rank, row.rank)
            && is(self.peer, row.end.peer.rank)
            && is(self.pid, Some(row.pid))
            && begins(&self.device, &row.end.device)
            && begins(&self.host, &row.end.peer.host)
    }
}

#[cfg(test)]
mod tests {
    use nccl_net::inspect::stats::histogram::{WORDS, bucket_of};
    use nccl_net::inspect::stats::layout::{HEADER_WORDS, RECORD_WORDS};
    use testkit::Scratch;

    use super::*;
    use crate::top::stats_file::tests::{example, parsed};

    /// The first end of the example with some words changed.
    fn end(changes: &[(usize, u64)]) -> End {
        let mut words = example();
        changes.iter().for_each(|(at, value)| words[HEADER_WORDS + at] = *value);
        let file = parsed(&words);
        let (number, record) = file.records().next().expect("one");
        assert_eq!(record.len(), RECORD_WORDS);
        End::new(number, record)
    }

    #[test]
    fn rates_are_differences_and_an_end_without_a_past_has_none() {
        let earlier =
            end(&[(record::BYTES, 1000), (record::RAIL_COUNT, 2), (record::RAIL_BYTES, 500)]);
        let bucket = record::HISTOGRAMS + record::WIRE * WORDS + bucket_of(5000) / 2;
        let now = end(&[
            (record::BYTES, 5000),
            (record::RAIL_COUNT, 2),
            (record::RAIL_BYTES, 1500),
            (record::RAIL_BYTES + 1, 3000),
            (bucket, 200 << (32 * (bucket_of(5000) % 2))),
        ]);
        let row_of = |earlier| row(1, None, &now, earlier, 2.0);
        let known = row_of(Some(&earlier));
        assert!(
            (known.bytes_per_second() - 2000.0).abs() < 1e-9 && known.rail_bytes == [1000, 3000]
        );
        assert_eq!(known.greatest_share(), Some((1, 0.75)));
        assert!(
            known.path_p99().is_some_and(|ns| (4000.0..6000.0).contains(&ns)),
            "{:?}",
            known.path_p99()
        );
        assert!(row_of(None).bytes_per_second().abs() < 1e-9);
    }

    #[test]
    fn all_counters_of_a_port_are_read_and_words_become_bytes() {
        let class = Scratch::new();
        let port = class.path().join("mlx5_0/ports/1");
        let write = |name: &str, text: &str| {
            let path = port.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let read = |sent: &str| {
            write("state", "4: ACTIVE\n");
            write("counters/port_xmit_data", sent);
            write("hw_counters/out_of_sequence", "12\n");
            write("hw_counters/odd", "none\n");
            read(class.path()).remove(&("mlx5_0".into(), 1)).expect("the port")
        };
        let (before, now) = (read("1000\n"), read("3000\n"));
        assert_eq!((now.state.as_str(), now.counters.len()), ("ACTIVE", 2));
        let expected = PortRates { sent: 4000.0, ..PortRates::default() };
        assert_eq!(rates(&before, &now, 2.0), expected);
        assert_eq!(rates(&Port::default(), &now, 2.0).retries, 6.0);
    }

    #[test]
    fn a_filter_is_read_or_refused_with_what_is_possible() {
        let filter = Filter::parse("rank=6, dev=mlx5").expect("valid");
        assert_eq!(
            filter,
            Filter { rank: Some(6), device: Some("mlx5".into()), ..Filter::default() }
        );
        assert_eq!(Filter::parse(""), Ok(Filter::default()));
        assert!(
            Filter::parse("rank=x")
                .is_err_and(|why| why.contains("a number is expected after `rank=`"))
        );
        assert!(
            Filter::parse("speed=1")
                .is_err_and(|why| why.contains("rank=, peer=, pid=, dev= or host="))
        );
        assert!(Filter::parse("dev=").is_err());
    }
}
