//! What a link can be like: its layer, its MTU, its speed; numbers as the verbs interface has them.

pub(crate) const STATE_DOWN: u32 = 1;
pub(crate) const STATE_ACTIVE: u32 = 4;
/// What devices say that are neither: `IBV_LINK_LAYER_UNSPECIFIED`. Here they are addressed like Ethernet.
pub(crate) const LINK_UNSPECIFIED: u32 = 0;
pub(crate) const LINK_INFINIBAND: u32 = 1;
pub(crate) const LINK_ETHERNET: u32 = 2;
/// 4096 bytes, as `ibv_mtu`.
pub(crate) const MTU_4096: u32 = 5;

/// The highest code of the 8-bit attribute: 100 Gb/s a lane.
pub(crate) const SPEED_NDR: u32 = 128;

/// Speed (100 Mb/s), `active_width`, `active_speed`.
const SIGNALLING: [(u32, u8, u32); 11] = [
    (50, 1, 2),
    (100, 2, 1),
    (200, 2, 2),
    (250, 1, 32),
    (400, 2, 4),
    (500, 1, 64),
    (560, 2, 16),
    (1000, 2, 32),
    (2000, 2, 64),
    (4000, 2, SPEED_NDR),
    (8000, 2, 256),
];

/// Width and speed codes of a speed in units of 100 Mb/s.
pub(crate) fn signalling(speed: u32) -> Option<(u8, u32)> {
    SIGNALLING.iter().find(|s| s.0 == speed).map(|&(_, width, code)| (width, code))
}

/// `ibv_mtu` of a size in bytes.
pub(crate) fn mtu_code(bytes: u32) -> Option<u32> {
    (1..=MTU_4096).find(|&code| mtu_bytes(code) == bytes)
}

pub(crate) fn mtu_bytes(code: u32) -> u32 {
    128 << code
}
