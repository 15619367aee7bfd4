//! `NCCL_IB_HCA`: which devices and ports are used.

use crate::error::{Error, Result};

/// The parsed setting `[^][=]name[:port[:rail:plane]],…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl HcaFilter {
    /// Parses the setting. An empty text admits every port.
    ///
    /// # Errors
    /// A port is not a number from 1 to 255.
    pub fn parse(text: &str) -> Result<Self> {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entries = rest
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| match entry.split_once(':') {
                None => Ok((entry.to_owned(), None)),
                // NCCL 2.30 allows rail and plane after the port. ncclNet version 8 has no field for them: they are ignored.
                Some((name, place)) => match place.split(':').next().unwrap_or_default().parse::<u8>() {
                    Ok(n) if n > 0 => Ok((name.to_owned(), Some(n))),
                    _ => Err(Error::usage(format!(
                        "NCCL_IB_HCA={text}: port {place:?} of {name:?}: a number from 1 to 255 is expected"
                    ))),
                },
            })
            .collect::<Result<_>>()?;
        Ok(Self { exclude, exact, entries })
    }

    /// Whether `port` of device `name` is to be used.
    pub fn admits(&self, name: &str, port: u8) -> bool {
        // An empty list stands for all ports, after `^` too, as in NCCL's built-in transport.
        let listed = self.entries.is_empty()
            || self.entries.iter().any(|(wanted, wanted_port)| {
                let named = if self.exact { name == wanted } else { name.starts_with(wanted.as_str()) };
                named && wanted_port.is_none_or(|p| p == port)
            });
        listed != self.exclude
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
    fn the_error_of_a_bad_port_names_setting_and_range() {
        let text = HcaFilter::parse("mlx5_0:x").expect_err("not a number").text();
        assert!(text.contains("NCCL_IB_HCA=mlx5_0:x") && text.contains("1 to 255"), "{text}");
    }
}
