//! Which connections are shown, and in which order.

use super::rates::Row;
use nccl_net::inspect::stats::layout::record;

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
            Self::Cts => "those without progress first, then by S2 p50 of senders (wait for a clear-to-send)",
            Self::Wait => "by time without progress",
            Self::Retries => "those without progress first, then by messages sent again and recoveries",
        }
    }

    fn key(self, row: &Row) -> f64 {
        match self {
            Self::P99 => row.path_p99().unwrap_or(0.0),
            Self::Gbps => row.bytes_per_second(),
            Self::Cts if row.end.is_sender => row.quantile(record::CTS, 0.5).unwrap_or(0.0),
            Self::Cts => 0.0,
            Self::Wait => row.end.stall as f64,
            Self::Retries => row.end.counters[record::RESENT] as f64 + row.end.counters[record::RECOVERIES] as f64,
        }
    }

    /// Puts the rows in order, the worst or greatest first. An end that stands still comes before all others, but in the order by
    /// [`Self::Gbps`].
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
            let number = || value.parse().map_err(|_| format!("{part}: a number is expected after `{name}=`"));
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
        let begins =
            |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| name.starts_with(wanted));
        is(self.rank, row.rank)
            && is(self.peer, row.end.peer.rank)
            && is(self.pid, Some(row.pid))
            && begins(&self.device, &row.end.device)
            && begins(&self.host, &row.end.peer.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_or_refused_with_what_is_possible() {
        let filter = Filter::parse("rank=6, dev=mlx5").expect("valid");
        assert_eq!(filter, Filter { rank: Some(6), device: Some("mlx5".into()), ..Filter::default() });
        assert_eq!(Filter::parse(""), Ok(Filter::default()));
        assert!(Filter::parse("rank=x").is_err_and(|why| why.contains("a number is expected after `rank=`")));
        assert!(Filter::parse("speed=1").is_err_and(|why| why.contains("rank=, peer=, pid=, dev= or host=")));
        assert!(Filter::parse("dev=").is_err());
    }
}
