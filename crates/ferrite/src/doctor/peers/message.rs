//! What the server of a session and its hosts say to each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The description of a host, by itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HostFacts {
    pub(super) host: String,
    /// The kernel's boot id, which containers of one machine share; empty if unknown.
    #[serde(default)]
    pub(super) boot: String,
    /// Version of the doctor.
    pub(super) version: String,
    /// Version of the wire protocol of this release.
    pub(super) protocol: u16,
    /// SHA-256 of the plugin's file.
    pub(super) plugin: String,
    /// `NCCL_*` and `FERRITE_*`.
    pub(super) settings: BTreeMap<String, String>,
    /// The ports that the plugin uses, in its order.
    pub(super) rails: Vec<RailFacts>,
}

/// A port that the plugin uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RailFacts {
    /// `mlx5_0:1`.
    pub(super) name: String,
    pub(super) speed_mbps: u32,
    pub(super) infiniband: bool,
    /// Bytes.
    pub(super) mtu: u32,
    /// The GID as an address; empty if there is none.
    pub(super) gid: String,
    /// It is a software device, so its speed is not judged.
    #[serde(default)]
    pub(super) is_software: bool,
}

/// What the server asks of a host. Each gets one [`Reply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The host takes part, under this number.
    Welcome(usize),
    /// It does not, for this reason. There is no reply.
    Refused(String),
    /// Nothing but the reply.
    Ping,
    /// Listen on this device.
    Listen(usize),
    /// Accept the one connection of the listener.
    Accept,
    /// Connect a device to the listener with this handle, in hexadecimal digits.
    Connect(usize, String),
    /// Send or receive messages over the connection.
    Transfer(Transfer),
    /// Close all that is open.
    Close,
    /// The session is over: how many rows have FAILed, and how many have warned.
    End { failed: usize, warned: usize },
}

/// Messages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub(super) bytes: usize,
    pub(super) count: u32,
    /// Messages in flight at most.
    pub(super) window: usize,
    /// The bytes of the first messages are checked, which takes time.
    pub(super) is_checked: bool,
}

/// The answer of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Handle(String),
    Measured(Measured),
    Failed(String),
}

/// What a [`Transfer`] took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    /// Sender: the median, and the 99th of 100, of the time from `isend` to completion;
    /// microseconds.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// The bytes in hexadecimal digits.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `N` bytes from hexadecimal digits.
pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_and_others_are_not() {
        assert_eq!(from_hex::<3>(&to_hex(&[0, 0x7f, 0xff])), Some([0, 0x7f, 0xff]));
        for wrong in ["", "00", "0g0000", "00000000", "éé00"] {
            assert_eq!(from_hex::<3>(wrong), None, "{wrong}");
        }
    }
}
