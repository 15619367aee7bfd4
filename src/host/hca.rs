//! `NCCL_IB_HCA`: which devices and ports are used.

use super::name_list::{NameList, NoEffect};
use crate::error::{Error, Result};

/// The parsed setting `[^][=]name[:port[:rail:plane]],…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HcaFilter {
    list: NameList,
    entries: Vec<Entry>,
}

/// One `name[:port[:rail:plane]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    /// `None`: every port.
    port: Option<u8>,
    /// The port's rail and plane in the fabric; -1: not given.
    rail: i16,
    plane: i16,
}

/// Entries that NCCL's built-in transport reads.
const BUILT_IN_ENTRIES: usize = 32;

impl HcaFilter {
    /// Parses the setting. An empty text admits every port; an empty port, rail or plane means any.
    ///
    /// # Errors
    /// A port is not a number from 1 to 255, or a rail or plane is not one from -1 to 32767.
    pub fn parse(text: &str) -> Result<Self> {
        let list = NameList::parse(text);
        let entries = list.names.iter().map(|entry| entry.trim()).filter(|entry| !entry.is_empty());
        let entries = entries.map(|entry| Entry::parse(entry, text)).collect::<Result<_>>()?;
        Ok(Self { list, entries })
    }

    /// The setting.
    pub fn text(&self) -> &str {
        &self.list.text
    }

    /// Whether to use `port` of device `name`.
    pub fn admits(&self, name: &str, port: u8) -> bool {
        // An empty list means all ports, even after `^`, as in NCCL's built-in transport.
        let listed = self.entries.is_empty() || self.entry(name, port).is_some();
        listed != self.list.exclude
    }

    /// Whether the setting admits any port of device `name`.
    pub fn admits_some_of(&self, name: &str) -> bool {
        (1..=u8::MAX).any(|port| self.admits(name, port))
    }

    /// Whether to use `port` of device `name`, which the user named in full.
    pub fn names(&self, name: &str, port: u8) -> bool {
        !self.list.exclude && self.entry(name, port).is_some_and(|entry| entry.name == name)
    }

    /// The first entry that matches `port` of device `name`.
    fn entry(&self, name: &str, port: u8) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| self.list.fits(&entry.name, name) && entry.port.is_none_or(|p| p == port))
    }

    /// The rail and plane of `port` of device `name` in the fabric; -1: not given.
    pub fn rail_and_plane(&self, name: &str, port: u8) -> (i16, i16) {
        let entry = self.entry(name, port).filter(|_| !self.list.exclude);
        entry.map_or((-1, -1), |entry| (entry.rail, entry.plane))
    }

    /// Which entries match none of the ports `there`, and why.
    pub fn without_effect(&self, there: &[(&str, u8)]) -> Vec<NoEffect> {
        let mut devices: Vec<&str> = there.iter().map(|(name, _)| *name).collect();
        devices.dedup();
        let why = |entry: &Entry| {
            let ports = there
                .iter()
                .filter(|(name, _)| self.list.fits(&entry.name, name))
                .map(|(_, port)| *port);
            match (entry.port, ports.max()) {
                (_, None) => Some(self.list.why_nothing("device", &entry.name, &devices)),
                (Some(port), Some(last)) if port > last => {
                    let why = format!("{} has no port {port}; its last one is {last}", entry.name);
                    Some(NoEffect { why, is_mistake: !self.list.exclude })
                }
                _ => None,
            }
        };
        self.entries.iter().filter_map(why).collect()
    }

    /// How NCCL's built-in transport reads the setting differently, for comparisons.
    pub fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.list.text.contains(char::is_whitespace) {
            found.push("NCCL's built-in transport takes blanks as part of the names".into());
        }
        if self.entries.len() > BUILT_IN_ENTRIES {
            let count = self.entries.len();
            found.push(format!(
                "NCCL's built-in transport uses {BUILT_IN_ENTRIES} of the {count} entries"
            ));
        }
        found
    }
}

impl Entry {
    /// Parses `entry` of the setting `text`.
    fn parse(entry: &str, text: &str) -> Result<Self> {
        let mut parts = entry.split(':');
        let name = parts.next().unwrap_or_default().to_owned();
        let expected = |what: &str, place: &str, range: &str| {
            Err(Error::usage(format!(
                "NCCL_IB_HCA={text}: {what} {place:?} of {name:?}: a number from {range} is expected"
            )))
        };
        let port = match parts.next().map(|place| (place, place.parse::<u8>())) {
            None | Some(("", _)) => None,
            Some((_, Ok(port))) if port > 0 => Some(port),
            Some((place, _)) => return expected("port", place, "1 to 255"),
        };
        let [mut rail, mut plane] = [-1; 2];
        for (what, number) in [("rail", &mut rail), ("plane", &mut plane)] {
            let Some(place) = parts.next().filter(|place| !place.is_empty()) else { continue };
            match place.parse::<i16>() {
                Ok(given) if given >= -1 => *number = given,
                _ => return expected(what, place, "-1 to 32767"),
            }
        }
        Ok(Self { name, port, rail, plane })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(filter: &str, name: &str, port: u8) -> bool {
        HcaFilter::parse(filter).expect("valid").admits(name, port)
    }

    #[test]
    fn prefix_exact_name_exclusion_and_port_select() {
        assert!(admits("", "mlx5_0", 1));
        assert!(admits("mlx5", "mlx5_10", 2));
        assert!(admits("mlx5_1", "mlx5_10", 1), "a prefix");
        assert!(!admits("=mlx5_1", "mlx5_10", 1), "exact");
        assert!(admits("=mlx5_1,mlx5_10", "mlx5_10", 1));
        assert!(!admits("^mlx5_1", "mlx5_10", 1));
        assert!(admits("^=mlx5_1", "mlx5_10", 1));
        assert!(admits("mlx5_0:2", "mlx5_0", 2));
        assert!(!admits("mlx5_0:2", "mlx5_0", 1));
        assert!(admits("^mlx5_0:2", "mlx5_0", 1));
        assert!(!admits("^mlx5_0:2", "mlx5_0", 2));
        assert!(admits("mlx5_0:1:3:0", "mlx5_0", 1) && !admits("mlx5_0:1:3:0", "mlx5_0", 2));
        assert!(!admits("^", "mlx5_0", 1), "excludes everything");
        assert!(admits("=", "mlx5_0", 1), "lists everything");
        assert!(!admits("=^mlx5_0", "mlx5_0", 1), "the other order is a name");
        assert!(admits("mlx5_1, mlx5_0:1", "mlx5_0", 1));
    }

    #[test]
    fn a_port_is_named_if_the_whole_name_of_its_device_is_there() {
        let names =
            |filter: &str, name, port| HcaFilter::parse(filter).expect("valid").names(name, port);
        assert!(names("mlx5_0,mlx5_1:2", "mlx5_0", 2) && names("=mlx5_0", "mlx5_0", 1));
        assert!(names("mlx5_1:2", "mlx5_1", 2) && !names("mlx5_1:2", "mlx5_1", 1));
        assert!(
            !names("mlx5", "mlx5_0", 1)
                && !names("", "mlx5_0", 1)
                && !names("^mlx5_0", "mlx5_0", 1)
        );
        let admits =
            |filter: &str, name| HcaFilter::parse(filter).expect("valid").admits_some_of(name);
        assert!(admits("mlx5_1:2", "mlx5_1") && admits("", "mlx5_1") && !admits("^mlx5", "mlx5_1"));
    }

    #[test]
    fn rail_and_plane_are_those_of_the_first_entry_that_names_the_port() {
        let of = |filter: &str, name: &str, port| {
            HcaFilter::parse(filter).expect("valid").rail_and_plane(name, port)
        };
        assert_eq!(of("mlx5_0:1:3:0,mlx5_1:1:4:1", "mlx5_0", 1), (3, 0));
        assert_eq!(of("mlx5_0:1:3:0,mlx5_1:1:4:1", "mlx5_1", 1), (4, 1));
        assert_eq!(of("mlx5_0:1:3", "mlx5_0", 1), (3, -1));
        assert_eq!(of("mlx5_0:1:3:0", "mlx5_0", 2), (-1, -1));
        assert_eq!(of("^mlx5_1:1:3:0", "mlx5_0", 1), (-1, -1));
        assert_eq!(of("", "mlx5_0", 1), (-1, -1));
        for wrong in ["mlx5_0:1:x:0", "mlx5_0:1:0:-2", "mlx5_0:1:32768:0"] {
            assert!(
                HcaFilter::parse(wrong).expect_err("no number").text().contains("-1 to 32767"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_empty_port_rail_or_plane_says_nothing() {
        assert!(
            admits("mlx5_0:", "mlx5_0", 1)
                && admits("=mlx5_0:", "mlx5_0", 2)
                && !admits("=mlx5_0:", "mlx5_1", 1)
        );
        assert!(
            admits("mlx5_0::2", "mlx5_0", 2)
                && admits("mlx5_0:1::", "mlx5_0", 1)
                && !admits("mlx5_0:1::", "mlx5_0", 2)
        );
        let of =
            |filter: &str| HcaFilter::parse(filter).expect("valid").rail_and_plane("mlx5_0", 1);
        assert_eq!(
            [of("mlx5_0::2"), of("mlx5_0:1::3"), of("mlx5_0:::")],
            [(2, -1), (-1, 3), (-1, -1)]
        );
    }

    #[test]
    fn what_names_nothing_is_reported() {
        let there = [("x0", 1), ("x0", 2), ("x1", 1)];
        let said = |text: &str| {
            let found = HcaFilter::parse(text).expect("valid").without_effect(&there);
            found.into_iter().map(|entry| entry.why).collect::<Vec<_>>()
        };
        assert!(
            ["", "x", "^x0", "=x0:2,x1", "x0:1:3"].into_iter().all(|text| said(text).is_empty())
        );
        assert_eq!(
            said("x0,rocep1s0f0"),
            ["no device has a name that begins with rocep1s0f0; there are: x0, x1"]
        );
        assert_eq!(said("^=x7:1"), ["no device has the name x7; there are: x0, x1"]);
        assert_eq!(said("x0:3"), ["x0 has no port 3; its last one is 2"]);
        let stray = said("^=x0,^=x1");
        assert!(stray.len() == 1 && stray[0].starts_with("^=x1 counts as a name: "), "{stray:?}");
    }

    #[test]
    fn what_the_built_in_transport_reads_otherwise_is_reported() {
        let count = |text: &str| HcaFilter::parse(text).expect("valid").differences().len();
        let list = |entries: usize| vec!["x"; entries].join(",");
        assert_eq!(
            [count("x0,x1"), count("x0, x1"), count(&list(32)), count(&list(33))],
            [0, 1, 0, 1]
        );
    }

    #[test]
    fn the_error_of_a_bad_port_names_setting_and_range() {
        let text = HcaFilter::parse("mlx5_0:x").expect_err("not a number").text();
        assert!(text.contains("NCCL_IB_HCA=mlx5_0:x") && text.contains("1 to 255"), "{text}");
    }
}
