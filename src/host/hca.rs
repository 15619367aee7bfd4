//! The grammar of `NCCL_IB_HCA`: which devices and ports to use.

use crate::error::{Error, Result};

/// A parsed `[^][=]name[:port[:rail:plane]],…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl HcaFilter {
    /// Reads the grammar; an empty text lets everything through.
    ///
    /// # Errors
    /// A port that is no number from 1 to 255.
    pub fn parse(text: &str) -> Result<Self> {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let entries = rest
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| match entry.split_once(':') {
                None => Ok((entry.to_owned(), None)),
                // NCCL 2.30 lets rail and plane follow, of which an ncclNet of version 8 cannot tell.
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
        // A list that is empty lists everything, for `^` as well, as with NCCL's built-in transport.
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
    fn prefix_exact_exclude_and_port() {
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
    fn a_bad_port_is_named() {
        let text = HcaFilter::parse("mlx5_0:x").expect_err("no number").text.clone();
        assert!(text.contains("NCCL_IB_HCA=mlx5_0:x") && text.contains("1 to 255"), "{text}");
    }
}
