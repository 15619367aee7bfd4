//! How many queue pairs the connections of a device have, and whether they are lanes (docs/paths.md).

use super::rail::Rail;
use crate::host::config::Config;
use std::sync::Arc;

/// Lanes of a connection that has as many as is automatic.
const AUTOMATIC_LANES: u8 = 4;

/// The queue pairs of each connection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairPlan {
    /// Queue pairs on each rail.
    pub per_rail: u8,
    /// Messages are split over all queue pairs.
    pub split: bool,
    /// Each queue pair has a share of its own of what is split.
    pub lanes: bool,
    /// A lane that stays slow is given another path.
    pub new_paths: bool,
    /// Why lanes are of no use here, where that is found out.
    pub why_one: Option<&'static str>,
}

impl QueuePairPlan {
    /// That of a device with these `rails`.
    pub fn new(config: &Config, rails: &[Arc<Rail>]) -> Self {
        // A port without an address, which may be down, counts as one of RoCE v2.
        let is_v1 = |rail: &Arc<Rail>| rail.local_address().is_ok_and(|address| address.gid.roce_version == Some(1));
        let is_automatic = config.automatic_lanes;
        Self::of(config, rails.iter().any(|rail| rail.infiniband), is_automatic && rails.iter().any(is_v1))
    }

    fn of(config: &Config, is_infiniband: bool, is_roce_v1: bool) -> Self {
        let Config { queue_pairs: per_rail, split, lanes, new_paths, .. } = *config;
        let given = Self { per_rail, split, lanes, new_paths: new_paths && !is_infiniband, why_one: None };
        if !config.automatic_lanes {
            return given;
        }
        let why_one = match () {
            () if is_infiniband => Some("the port is InfiniBand, whose switches do not choose paths by UDP ports"),
            () if config.adaptive_routing == Some(true) => {
                Some("NCCL_IB_ADAPTIVE_ROUTING=1 says that packets are spread")
            }
            () if is_roce_v1 => Some("packets of RoCE v1 have no UDP ports"),
            () => None,
        };
        match why_one {
            None => Self { per_rail: AUTOMATIC_LANES, split: true, lanes: true, ..given },
            Some(_) => Self { per_rail: 1, split: false, lanes: false, new_paths: false, why_one },
        }
    }

    /// What was chosen for the device `name`, and why, if it was chosen automatically.
    pub fn choice(&self, config: &Config, name: &str) -> Option<String> {
        let chosen = match (self.why_one, self.new_paths && config.failover) {
            (Some(why), _) => format!("1 queue pair per connection: {why}"),
            (None, true) => {
                format!("{} lanes per connection and rail, and other paths for slow ones: Ethernet", self.per_rail)
            }
            (None, false) => format!("{} lanes per connection and rail: Ethernet", self.per_rail),
        };
        config.automatic_lanes.then(|| format!("{name} has {chosen} (FERRITE_LANES=auto)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(env: &[(&str, &str)]) -> Config {
        let value = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::parse(value).expect("valid")
    }

    const AUTO: (&str, &str) = ("FERRITE_LANES", "auto");

    /// Queue pairs, split, lanes, new paths.
    fn plan(env: &[(&str, &str)], is_infiniband: bool, is_roce_v1: bool) -> (u8, bool, bool, bool) {
        let QueuePairPlan { per_rail, split, lanes, new_paths, .. } =
            QueuePairPlan::of(&config(env), is_infiniband, is_roce_v1);
        (per_rail, split, lanes, new_paths)
    }

    const ONE: (u8, bool, bool, bool) = (1, false, false, false);

    #[test]
    fn automatic_lanes_are_four_with_new_paths_on_ethernet() {
        assert_eq!(plan(&[AUTO], false, false), (4, true, true, true));
        assert_eq!(plan(&[AUTO, ("FERRITE_NEW_PATHS", "0")], false, false), (4, true, true, false));
        assert_eq!(plan(&[AUTO, ("NCCL_IB_ADAPTIVE_ROUTING", "0")], false, false), (4, true, true, true));
    }

    #[test]
    fn there_are_none_where_they_are_of_no_use_or_the_user_says_how_many_queue_pairs_there_are() {
        assert_eq!(plan(&[AUTO], true, false), ONE);
        assert_eq!(plan(&[AUTO], false, true), ONE);
        assert_eq!(plan(&[AUTO, ("NCCL_IB_ADAPTIVE_ROUTING", "1")], false, false), ONE);
        assert_eq!(plan(&[AUTO, ("NCCL_IB_QPS_PER_CONNECTION", "2")], false, false), (2, false, false, false));
        let split = ("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
        assert_eq!(plan(&[AUTO, split, ("NCCL_IB_QPS_PER_CONNECTION", "2")], true, false), (2, true, false, false));
    }

    #[test]
    fn a_number_of_lanes_holds_everywhere() {
        let lanes = ("FERRITE_LANES", "3");
        assert_eq!(plan(&[lanes], true, false), (3, true, true, false));
        assert_eq!(plan(&[lanes, ("FERRITE_NEW_PATHS", "1")], false, true), (3, true, true, true));
        assert_eq!(plan(&[lanes, ("FERRITE_NEW_PATHS", "1")], true, false), (3, true, true, false));
        assert_eq!(plan(&[], false, false), ONE);
    }

    #[test]
    fn what_was_chosen_is_said_with_the_reason() {
        let said = |env: &[(&str, &str)], is_infiniband| {
            let config = config(env);
            QueuePairPlan::of(&config, is_infiniband, false).choice(&config, "mlx5_0")
        };
        let four = "mlx5_0 has 4 lanes per connection and rail, and other paths for slow ones: Ethernet";
        assert_eq!(said(&[AUTO], false), Some(format!("{four} (FERRITE_LANES=auto)")));
        assert!(said(&[AUTO], true).is_some_and(|line| line.contains("1 queue pair per connection: the port is Inf")));
        assert!(
            said(&[AUTO, ("FERRITE_FAILOVER", "0")], false).is_some_and(|line| !line.contains("other paths")),
            "new paths come by recoveries"
        );
        assert_eq!(said(&[("FERRITE_LANES", "4")], false), None);
    }
}
