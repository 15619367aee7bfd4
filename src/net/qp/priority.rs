//! How a connection's packets are marked for the fabric: service level and traffic class.

use crate::host::config::Config;

/// The marks of one end's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// InfiniBand: the service level, 0 to 15.
    pub service_level: u8,
    /// Where packets carry GIDs (RoCE): the traffic class.
    pub traffic_class: u8,
}

/// The greatest service level.
pub const MAX_SERVICE_LEVEL: u8 = 15;

impl Priority {
    /// The marks for a sender of a communicator with NCCL's traffic `class`. Settings take
    /// precedence. A class beyond the service levels sets no service level.
    pub fn of_sender(config: &Config, class: Option<u8>) -> Self {
        let fitting = class.filter(|class| *class <= MAX_SERVICE_LEVEL);
        let level = config.service_level.or(fitting);
        Self {
            service_level: level.unwrap_or(0),
            traffic_class: config.traffic_class.or(class).unwrap_or(0),
        }
    }

    /// For a receiver, which sends clear-to-sends.
    pub fn of_receiver(config: &Config, class: Option<u8>) -> Self {
        let sender = Self::of_sender(config, class);
        Self { traffic_class: config.cts_traffic_class.unwrap_or(sender.traffic_class), ..sender }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks of both ends: service level and traffic class.
    fn marks(settings: &[(&str, &str)], class: Option<u8>) -> [(u8, u8); 2] {
        let value = |name: &str| {
            settings.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        };
        let config = Config::parse(value).expect("valid settings");
        [Priority::of_sender(&config, class), Priority::of_receiver(&config, class)]
            .map(|priority| (priority.service_level, priority.traffic_class))
    }

    #[test]
    fn a_communicators_class_counts_where_no_setting_does() {
        assert_eq!(marks(&[], None), [(0, 0); 2]);
        assert_eq!(marks(&[], Some(3)), [(3, 3); 2]);
        assert_eq!(marks(&[], Some(106)), [(0, 106); 2], "no service level");
        assert_eq!(marks(&[("NCCL_IB_SL", "5")], Some(3)), [(5, 3); 2]);
        assert_eq!(marks(&[("NCCL_IB_TC", "0")], Some(3)), [(3, 0); 2], "0 is a setting");
        assert_eq!(marks(&[("NCCL_IB_TC", "-1")], Some(3)), [(3, 3); 2], "-1 is none");
        assert_eq!(marks(&[("NCCL_IB_FIFO_TC", "7")], Some(3)), [(3, 3), (3, 7)]);
        assert_eq!(marks(&[("NCCL_IB_FIFO_TC", "7"), ("NCCL_IB_TC", "9")], None), [(0, 9), (0, 7)]);
    }
}
