//! How many queue pairs the connections of a device have, and whether they are lanes
//! (docs/slow.md).

use super::rail::Rail;
use crate::host::config::Config;
use crate::proto::automatic_lanes::AutomaticLanes;
use std::sync::Arc;

/// Lanes of a connection with automatic lanes.
const AUTOMATIC_LANES: u8 = 4;

/// The queue pairs of each connection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairPlan {
    /// Queue pairs on each rail that a sender begins with.
    pub first: u8,
    /// The most queue pairs on each rail: a receiver has this many if its sender has, and a sender
    /// later.
    pub most: u8,
    /// Whether messages are split over all queue pairs.
    pub split: bool,
    /// Whether each queue pair has its own share of a split message.
    pub lanes: bool,
    /// Whether a slow lane moves to another path.
    pub new_paths: bool,
    /// Why lanes are useless here, where that is detected.
    pub why_one: Option<&'static str>,
}

impl QueuePairPlan {
    /// The plan for a device with these `rails`.
    pub fn new(config: &Config, rails: &[Arc<Rail>]) -> Self {
        // A port without an address, which may be down, counts as RoCE v2.
        let is_v1 = |rail: &Arc<Rail>| {
            rail.local_address().is_ok_and(|address| address.gid.roce_version == Some(1))
        };
        let is_automatic = config.automatic_lanes;
        Self::of(
            config,
            rails.iter().any(|rail| rail.infiniband),
            is_automatic && rails.iter().any(is_v1),
        )
    }

    fn of(config: &Config, is_infiniband: bool, is_roce_v1: bool) -> Self {
        let Config { queue_pairs: most, split, lanes, new_paths, .. } = *config;
        let given = Self {
            first: most,
            most,
            split,
            lanes,
            new_paths: new_paths && !is_infiniband,
            why_one: None,
        };
        if !config.automatic_lanes {
            return given;
        }
        let is_at_once = config.lanes_after == 0;
        let why_one = match () {
            () if is_infiniband => {
                Some("the port is InfiniBand, whose switches do not choose paths by UDP ports")
            }
            () if config.adaptive_routing == Some(true) => {
                Some("NCCL_IB_ADAPTIVE_ROUTING=1: the fabric spreads packets")
            }
            () if config.out_of_order => Some("NCCL_IB_OOO_RQ=1: the fabric spreads packets"),
            () if is_roce_v1 => Some("packets of RoCE v1 have no UDP ports"),
            () if !(is_at_once || config.stats && config.stats_sample > 0) => Some(
                "FERRITE_STATS=0 or FERRITE_SAMPLE=0 times no messages, so lanes cannot be compared with one queue pair",
            ),
            () if !config.failover && !is_at_once => {
                Some("lanes are added by a recovery, and FERRITE_FAILOVER=0")
            }
            () => None,
        };
        let (first, most) = (if is_at_once { AUTOMATIC_LANES } else { 1 }, AUTOMATIC_LANES);
        match why_one {
            None => Self { first, most, split: true, lanes: true, ..given },
            Some(_) => {
                Self { first: 1, most: 1, split: false, lanes: false, new_paths: false, why_one }
            }
        }
    }

    /// The automatic lanes of a new sender, if they may be added later, which requires recovery.
    /// Similar connections do not all add lanes at once: each waits for up to twice the bytes,
    /// depending on the number of its first queue pair.
    pub fn automatic_lanes(&self, config: &Config, qp_number: u32) -> Option<AutomaticLanes> {
        (self.first < self.most).then(|| AutomaticLanes::new(self.most, after(config, qp_number)))
    }

    /// The choice for a device, and the reason if it is automatic.
    pub fn choice(&self, config: &Config) -> Option<String> {
        let Self { first, most, .. } = self;
        let when = match config.lanes_after >> 20 {
            0 => String::new(),
            mib => format!(
                " after {mib} to {} MiB in large messages (FERRITE_LANES_AFTER_MB)",
                2 * mib
            ),
        };
        let chosen = match (self.why_one, self.new_paths && config.failover) {
            (Some(why), _) => format!("{first} queue pair per connection and rail: {why}"),
            (None, true) => {
                format!(
                    "{most} lanes per connection and rail{when}, and other paths for slow ones: Ethernet"
                )
            }
            (None, false) => format!("{most} lanes per connection and rail{when}: Ethernet"),
        };
        config.automatic_lanes.then(|| format!("{chosen} (FERRITE_LANES=auto)"))
    }
}

/// How many bytes a sender whose first queue pair has this number sends before it adds lanes.
fn after(config: &Config, qp_number: u32) -> u64 {
    // Numbers are often assigned consecutively. This spreads them evenly.
    let spread = qp_number.wrapping_mul(0x9e37_79b9);
    config.lanes_after + ((u128::from(config.lanes_after) * u128::from(spread)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(env: &[(&str, &str)]) -> Config {
        let value =
            |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::parse(value).expect("valid")
    }

    /// Queue pairs at first and at most; split, lanes, new paths.
    fn plan(
        env: &[(&str, &str)],
        is_infiniband: bool,
        is_roce_v1: bool,
    ) -> (u8, u8, bool, bool, bool) {
        let QueuePairPlan { first, most, split, lanes, new_paths, .. } =
            QueuePairPlan::of(&config(env), is_infiniband, is_roce_v1);
        (first, most, split, lanes, new_paths)
    }

    const AUTO: (&str, &str) = ("FERRITE_LANES", "auto");
    const AT_ONCE: (&str, &str) = ("FERRITE_LANES_AFTER_MB", "0");
    const ONE: (u8, u8, bool, bool, bool) = (1, 1, false, false, false);

    #[test]
    fn automatic_lanes_are_four_with_new_paths_on_ethernet() {
        for env in [&[AUTO][..], &[AUTO, ("NCCL_IB_ADAPTIVE_ROUTING", "0")]] {
            assert_eq!(plan(env, false, false), (1, 4, true, true, true), "{env:?}");
        }
        assert_eq!(plan(&[AUTO, AT_ONCE], false, false), (4, 4, true, true, true));
        assert_eq!(
            plan(&[AUTO, ("FERRITE_NEW_PATHS", "0")], false, false),
            (1, 4, true, true, false)
        );
        assert_eq!(
            plan(&[AUTO, AT_ONCE, ("FERRITE_FAILOVER", "0")], false, false),
            (4, 4, true, true, true)
        );
    }

    /// The defaults are those that were measured on no fabric.
    #[test]
    fn by_default_there_is_one_queue_pair_and_nothing_changes_it() {
        for env in [&[][..], &[AT_ONCE], &[("FERRITE_NEW_PATHS", "1")]] {
            assert_eq!(plan(env, false, false), ONE, "{env:?}");
        }
    }

    #[test]
    fn there_are_none_where_they_are_of_no_use_or_the_user_says_how_many_queue_pairs_there_are() {
        assert_eq!(plan(&[AUTO], true, false), ONE);
        assert_eq!(plan(&[AUTO], false, true), ONE);
        assert_eq!(plan(&[AUTO, ("NCCL_IB_ADAPTIVE_ROUTING", "1")], false, false), ONE);
        assert_eq!(plan(&[AUTO, ("NCCL_IB_OOO_RQ", "1")], false, false), ONE);
        assert_eq!(plan(&[AUTO, ("NCCL_IB_OOO_RQ", "0")], false, false), (1, 4, true, true, true));
        for needed in ["FERRITE_FAILOVER", "FERRITE_STATS", "FERRITE_SAMPLE"] {
            assert_eq!(plan(&[AUTO, (needed, "0")], false, false), ONE, "{needed}");
        }
        let two = ("NCCL_IB_QPS_PER_CONNECTION", "2");
        assert_eq!(plan(&[AUTO, two], false, false), (2, 2, false, false, false));
        assert_eq!(
            plan(&[("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), two], true, false),
            (2, 2, true, false, false)
        );
    }

    #[test]
    fn a_number_of_lanes_holds_everywhere() {
        let lanes = ("FERRITE_LANES", "3");
        assert_eq!(plan(&[lanes], true, false), (3, 3, true, true, false));
        assert_eq!(
            plan(&[lanes, ("FERRITE_NEW_PATHS", "1")], false, true),
            (3, 3, true, true, true)
        );
        assert_eq!(
            plan(&[lanes, ("FERRITE_NEW_PATHS", "1")], true, false),
            (3, 3, true, true, false)
        );
        assert_eq!(plan(&[("FERRITE_LANES", "1")], false, false), ONE);
    }

    #[test]
    fn only_a_sender_that_begins_with_fewer_takes_more_later() {
        let takes_more = |env: &[(&str, &str)]| {
            let config = config(env);
            QueuePairPlan::of(&config, false, false).automatic_lanes(&config, 0x1234).is_some()
        };
        assert!(takes_more(&[AUTO]) && !takes_more(&[]) && !takes_more(&[AUTO, AT_ONCE]));
        assert!(!takes_more(&[("FERRITE_LANES", "4")]));
    }

    #[test]
    fn a_sender_takes_lanes_after_once_to_twice_the_bytes() {
        for (mib, number) in
            [("0", 1), ("1", 0), ("16384", u32::MAX), ("1073741824", 1), ("1073741824", 0x89)]
        {
            let config = config(&[("FERRITE_LANES_AFTER_MB", mib)]);
            let (after, once) = (after(&config, number), config.lanes_after);
            assert!(
                (once..=2 * once).contains(&after),
                "{mib} MiB, queue pair {number:#x}: {after}"
            );
        }
    }

    #[test]
    fn what_was_chosen_is_said_with_the_reason() {
        let said = |env: &[(&str, &str)], is_infiniband| {
            let config = config(env);
            QueuePairPlan::of(&config, is_infiniband, false).choice(&config)
        };
        let four = "4 lanes per connection and rail";
        let paths = "and other paths for slow ones: Ethernet (FERRITE_LANES=auto)";
        let after = " after 16384 to 32768 MiB in large messages (FERRITE_LANES_AFTER_MB)";
        assert_eq!(said(&[AUTO], false), Some(format!("{four}{after}, {paths}")));
        assert_eq!(said(&[AUTO, AT_ONCE], false), Some(format!("{four}, {paths}")));
        assert!(said(&[AUTO], true).is_some_and(|line| {
            line.contains("1 queue pair per connection and rail: the port is Inf")
        }));
        assert!(
            said(&[AUTO, AT_ONCE, ("FERRITE_FAILOVER", "0")], false)
                .is_some_and(|line| !line.contains("other paths")),
            "new paths come by recoveries"
        );
        assert_eq!((said(&[], false), said(&[("FERRITE_LANES", "4")], false)), (None, None));
    }
}
