//! The 128 bytes that NCCL carries from a listener to its peer.

use super::{MAX_RAILS, PROTOCOL_VERSION, Violation, violation};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Random bytes that distinguish a listener's own peer from everyone else who finds its port.
pub type Token = [u8; 16];

/// Random bytes that only the two ends of a connection know: the sender generates them for its
/// hello.
pub type Secret = [u8; 16];

/// Size of NCCL's handle.
pub const HANDLE_BYTES: usize = 128;

/// Where a listener accepts connections, and the token that it expects.
///
/// ```text
/// byte 0       8        10      11      12    16         32    36     40         56          64
///      magic   version  family  zero    port  address    scope  zero  token      cookie u64   4 GIDs
/// ```
///
/// The cookie belongs to the connecting side. NCCL passes the same copy of the handle to every
/// `connect` of one connection, so the handle keeps the number of the half-open connection in that
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// The listener's address.
    pub address: SocketAddr,
    /// The token that a peer must present.
    pub token: Token,
    /// The GIDs of the listener's ports, in order, from which the peer chooses its own. Zero: the
    /// port has none now, or does not exist.
    pub gids: [[u8; 16]; MAX_RAILS],
}

const MAGIC: &[u8; 8] = b"FerrNet\0";
const COOKIE: std::ops::Range<usize> = 56..64;
const GIDS: std::ops::Range<usize> = 64..HANDLE_BYTES;
const _: () = assert!(GIDS.end - GIDS.start == MAX_RAILS * 16);

impl Handle {
    /// The bytes for NCCL, without a cookie.
    pub fn emit(&self) -> [u8; HANDLE_BYTES] {
        let mut b = [0; HANDLE_BYTES];
        b[0..8].copy_from_slice(MAGIC);
        b[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        b[12..14].copy_from_slice(&self.address.port().to_le_bytes());
        match self.address {
            SocketAddr::V4(a) => {
                b[10] = 4;
                b[16..20].copy_from_slice(&a.ip().octets());
            }
            SocketAddr::V6(a) => {
                b[10] = 6;
                b[16..32].copy_from_slice(&a.ip().octets());
                b[32..36].copy_from_slice(&a.scope_id().to_le_bytes());
            }
        }
        b[40..56].copy_from_slice(&self.token);
        b[GIDS].copy_from_slice(self.gids.as_flattened());
        b
    }

    /// Parses a handle from a peer.
    ///
    /// # Errors
    /// It is not from this plugin, or not of this version.
    pub fn parse(b: &[u8; HANDLE_BYTES]) -> Result<Self, Violation> {
        if &b[0..8] != MAGIC {
            return Err(violation!(
                "the peer's handle is not Ferrite's: the peer runs another network; set NCCL_NET=Ferrite on every rank"
            ));
        }
        let version = u16::from_le_bytes([b[8], b[9]]);
        if version != PROTOCOL_VERSION {
            return Err(violation!(
                "the peer's Ferrite speaks protocol {version}, this one {PROTOCOL_VERSION}; install the same one everywhere"
            ));
        }
        let port = u16::from_le_bytes([b[12], b[13]]);
        let mut octets = [0; 16];
        octets.copy_from_slice(&b[16..32]);
        let address = match b[10] {
            4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::new(b[16], b[17], b[18], b[19])), port),
            6 => {
                let scope = u32::from_le_bytes([b[32], b[33], b[34], b[35]]);
                SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope))
            }
            n => return Err(violation!("the peer's handle has an address of family {n}")),
        };
        let mut token = Token::default();
        token.copy_from_slice(&b[40..56]);
        let mut gids = [[0; 16]; MAX_RAILS];
        gids.as_flattened_mut().copy_from_slice(&b[GIDS]);
        Ok(Self { address, token, gids })
    }

    /// A handle without GIDs.
    pub fn without_gids(address: SocketAddr, token: Token) -> Self {
        Self { address, token, gids: [[0; 16]; MAX_RAILS] }
    }

    /// The known GIDs of the listener's ports, first that of the port in position `first`.
    pub fn known_gids(&self, first: usize) -> Vec<[u8; 16]> {
        let order = [first].into_iter().chain((0..MAX_RAILS).filter(|place| *place != first));
        order
            .filter_map(|place| self.gids.get(place))
            .filter(|gid| **gid != [0; 16])
            .copied()
            .collect()
    }
}

/// The connecting side's number in a handle; 0 before the first attempt.
pub fn cookie(handle: &[u8; HANDLE_BYTES]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&handle[COOKIE]);
    u64::from_le_bytes(bytes)
}

/// Writes the connecting side's number.
pub fn set_cookie(handle: &mut [u8; HANDLE_BYTES], cookie: u64) {
    handle[COOKIE].copy_from_slice(&cookie.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_handle_survives_nccl(address: SocketAddr, token: Token, number: u64, gids: [[u8; 16]; 4]) {
            // Flow labels are not carried: sockets do not need them.
            let address = match address {
                SocketAddr::V6(a) => SocketAddr::V6(SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id())),
                v4 => v4,
            };
            let mut bytes = Handle { address, token, gids }.emit();
            prop_assert_eq!(cookie(&bytes), 0);
            set_cookie(&mut bytes, number);
            prop_assert_eq!(Handle::parse(&bytes), Ok(Handle { address, token, gids }));
            prop_assert_eq!(cookie(&bytes), number);
        }
    }

    #[test]
    fn the_gids_that_are_known_are_reported_the_one_of_a_place_first() {
        let mut handle = Handle::without_gids(SocketAddr::from(([127, 0, 0, 1], 1)), [1; 16]);
        assert_eq!(handle.known_gids(0), [[0; 16]; 0]);
        (handle.gids[0], handle.gids[2]) = ([1; 16], [3; 16]);
        assert_eq!(handle.known_gids(0), [[1; 16], [3; 16]]);
        assert_eq!(handle.known_gids(2), [[3; 16], [1; 16]]);
        assert_eq!(handle.known_gids(7), [[1; 16], [3; 16]]);
    }
}
