//! What can be wrong with a request to control a fabric.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::control::names::{DeviceName, PortName};
use crate::shm::file::Unusable;

/// Why nothing was changed.
#[derive(Debug)]
pub enum Error {
    /// No process uses a fabric of that name.
    NoFabric(PathBuf),
    /// Those who use it have another version of softrnic, or the file is something else.
    OtherVersion(PathBuf),
    /// The operating system says no.
    System(PathBuf, io::Error),
    /// Not the name of a port or device; an example.
    Name(String, &'static str),
    /// The fabric has no such port; devices, and ports of each.
    NoPort(PortName, usize, u32),
    /// The fabric has no such device; how many it has.
    NoDevice(DeviceName, usize),
    /// The device has failed, and is not back.
    Failed(DeviceName),
    /// RoCE entries are of version 1 or 2, InfiniBand entries of neither.
    GidKind(PortName),
    /// Rules that are not well-formed or do not fit: a sentence.
    Rule(String),
    /// There is no rule of that number.
    NoRule(u32),
    /// What, its value, and what is allowed.
    Value(&'static str, String, &'static str),
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn value(what: &'static str, value: impl fmt::Display, allowed: &'static str) -> Self {
        Self::Value(what, value.to_string(), allowed)
    }

    pub(crate) fn from_file(path: &Path, what: Unusable) -> Self {
        let path = path.to_owned();
        match what {
            Unusable::Unused => Self::NoFabric(path),
            Unusable::OtherLayout => Self::OtherVersion(path),
            Unusable::System(code) => Self::System(path, io::Error::from_raw_os_error(code)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFabric(path) => write!(f, "no process uses a fabric {}", path.display()),
            Self::OtherVersion(path) => {
                write!(f, "{} is in use by another version of softrnic (or is no fabric at all)", path.display())
            }
            Self::System(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Name(name, example) => write!(f, "{name:?}: must be a name such as {example}"),
            Self::NoPort(name, devices, ports) => {
                write!(f, "there is no {name} among {devices} device(s) with {ports} port(s) each")
            }
            Self::Rule(what) => f.write_str(what),
            Self::NoRule(number) => write!(f, "no rule in force has the number {number}"),
            Self::NoDevice(name, devices) => write!(f, "there is no {name} among {devices} device(s)"),
            Self::Failed(name) => write!(f, "{name} has failed"),
            Self::GidKind(name) => {
                write!(f, "{name}: entries of a RoCE port are v1 or v2, those of an InfiniBand port neither")
            }
            Self::Value(what, value, allowed) => write!(f, "{what} must be {allowed}; {value} is not"),
        }
    }
}
