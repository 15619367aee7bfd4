//! The releases of NCCL whose built-in transport this program can call.

use std::fmt;
use std::path::Path;

use crate::error::{Error, Result};

/// The built-in IB transport's vtable, a local data symbol of libnccl.
pub const STOCK_SYMBOL: &str = "ncclNetIb";

/// A release of NCCL whose built-in transport this program can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclRelease {
    /// As `ncclGetVersion` reports it.
    pub version: i32,
    /// As people write it.
    pub text: &'static str,
    /// The version of the vtable of its built-in transports.
    pub interface: u32,
    /// The size of the wheel; MB.
    pub(super) megabytes: u32,
}

/// All of them, oldest first.
pub const RELEASES: [NcclRelease; 7] = [
    NcclRelease { version: 22005, text: "2.20.5", interface: 8, megabytes: 176 },
    NcclRelease { version: 22105, text: "2.21.5", interface: 8, megabytes: 189 },
    NcclRelease { version: 22501, text: "2.25.1", interface: 9, megabytes: 201 },
    NcclRelease { version: 22705, text: "2.27.5", interface: 10, megabytes: 322 },
    NcclRelease { version: 22809, text: "2.28.9", interface: 11, megabytes: 297 },
    NcclRelease { version: 23007, text: "2.30.7", interface: 12, megabytes: 303 },
    NcclRelease { version: 23203, text: "2.32.3", interface: 12, megabytes: 352 },
];

impl NcclRelease {
    /// The one that plugins are compared with.
    pub const DEFAULT: Self = RELEASES[1];

    /// The release that people call `text`.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that is not known.
    pub fn named(text: &str) -> Result<Self> {
        RELEASES
            .into_iter()
            .find(|release| release.text == text)
            .ok_or_else(|| Error::Usage(format!("NCCL {text} is not known here; known are {}", known())))
    }

    /// The package, for the package index.
    pub(super) fn package(self) -> String {
        format!("nvidia-nccl-cu12=={}", self.text)
    }
}

impl fmt::Display for NcclRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

fn known() -> String {
    RELEASES.map(|release| release.text).join(", ")
}

/// The known release that the library at `path` is, which says it is `found`.
pub(crate) fn release_of(path: &Path, found: i32) -> Result<NcclRelease> {
    let release = RELEASES.into_iter().find(|release| release.version == found);
    release.ok_or_else(|| {
        Error::Refused(format!("{} is NCCL {}; known are {}", path.display(), version_text(found), known()))
    })
}

/// `22105` as `2.21.5`.
pub fn version_text(version: i32) -> String {
    let (major, rest) =
        if version < 10_000 { (version / 1000, version % 1000) } else { (version / 10_000, version % 10_000) };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_name() {
        for release in RELEASES {
            assert_eq!(version_text(release.version), release.text);
            assert!(NcclRelease::named(release.text).is_ok_and(|found| found == release));
        }
        let words = NcclRelease::named("2.19.3").map_err(|problem| problem.to_string());
        assert_eq!(
            words,
            Err("NCCL 2.19.3 is not known here; known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.30.7, 2.32.3"
                .into())
        );
    }

    #[test]
    fn versions_in_words() {
        assert_eq!(version_text(22105), "2.21.5");
        assert_eq!(version_text(22809), "2.28.9");
        assert_eq!(version_text(2708), "2.7.8");
    }
}
