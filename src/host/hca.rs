//! `NCCL_IB_HCA`: which devices and ports are used.

use crate::error::{Error, Result};

/// The parsed setting `[^][=]name[:port[:rail:plane]],…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<Entry>,
}

/// One `name[:port[:rail:plane]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    /// `None`: every port.
    port: Option<u8>,
    /// Numbers of the fabric's rail and plane that the port is on; -1: not said.
    rail: i16,
    plane: i16,
}

impl HcaFilter {
    /// Parses the setting. An empty text admits every port.
    ///
    /// # Errors
    /// A port is not a number from 1 to 255, or a rail or plane is not one from -1 to 32767.
    pub fn parse(text: &str) -> Result<Self> {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entries = rest
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| Entry::parse(entry, text))
            .collect::<Result<_>>()?;
        Ok(Self { exclude, exact, entries })
    }

    /// Whether `port` of device `name` is to be used.
    pub fn admits(&self, name: &str, port: u8) -> bool {
        // An empty list stands for all ports, after `^` too, as in NCCL's built-in transport.
        let listed = self.entries.is_empty() || self.entry(name, port).is_some();
        listed != self.exclude
    }

    /// The first entry that `port` of device `name` is named by.
    fn entry(&self, name: &str, port: u8) -> Option<&Entry> {
        self.entries.iter().find(|entry| {
            let named = if self.exact { name == entry.name } else { name.starts_with(entry.name.as_str()) };
            named && entry.port.is_none_or(|p| p == port)
        })
    }

    /// The numbers of the fabric's rail and plane that `port` of device `name` is on; -1: not said.
    pub fn rail_and_plane(&self, name: &str, port: u8) -> (i16, i16) {
        let entry = self.entry(name, port).filter(|_| !self.exclude);
        entry.map_or((-1, -1), |entry| (entry.rail, entry.plane))
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
            None => None,
            Some((_, Ok(port))) if port > 0 => Some(port),
            Some((place, _)) => return expected("port", place, "1 to 255"),
        };
        let [mut rail, mut plane] = [-1; 2];
        for (what, number) in [("rail", &mut rail), ("plane", &mut plane)] {
            let Some(place) = parts.next() else { continue };
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
    fn rail_and_plane_are_those_of_the_first_entry_that_names_the_port() {
        let of = |filter: &str, name: &str, port| HcaFilter::parse(filter).expect("valid").rail_and_plane(name, port);
        assert_eq!(of("mlx5_0:1:3:0,mlx5_1:1:4:1", "mlx5_0", 1), (3, 0));
        assert_eq!(of("mlx5_0:1:3:0,mlx5_1:1:4:1", "mlx5_1", 1), (4, 1));
        assert_eq!(of("mlx5_0:1:3", "mlx5_0", 1), (3, -1));
        assert_eq!(of("mlx5_0:1:3:0", "mlx5_0", 2), (-1, -1));
        assert_eq!(of("^mlx5_1:1:3:0", "mlx5_0", 1), (-1, -1));
        assert_eq!(of("", "mlx5_0", 1), (-1, -1));
        for wrong in ["mlx5_0:1:x:0", "mlx5_0:1:0:-2", "mlx5_0:1:32768:0"] {
            assert!(HcaFilter::parse(wrong).expect_err("no number").text().contains("-1 to 32767"), "{wrong}");
        }
    }

    #[test]
    fn the_error_of_a_bad_port_names_setting_and_range() {
        let text = HcaFilter::parse("mlx5_0:x").expect_err("not a number").text();
        assert!(text.contains("NCCL_IB_HCA=mlx5_0:x") && text.contains("1 to 255"), "{text}");
    }
}
