//! InfiniBand addressing: by LID within a subnet, and by GID between subnets.
//!
//! The last two bytes of a GID's subnet prefix are the number of the subnet. Fabrics with routers
//! put a port's FLID (floating LID) into the two bytes before: the LID under which other subnets
//! address the port, or 0.

/// How packets to a peer are addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The destination LID: the peer's own, or its FLID in another subnet.
    pub lid: u16,
    /// Whether packets carry GIDs (a global route header).
    pub global: bool,
}

/// The route from `local` to `remote`, whose LID in its own subnet is `remote_lid`. `grh_required`:
/// the local port always adds GIDs.
pub fn route(local: &[u8; 16], remote: &[u8; 16], remote_lid: u16, grh_required: bool) -> Route {
    if subnet(local) == subnet(remote) {
        return Route { lid: remote_lid, global: grh_required };
    }
    let lid = flid(remote).unwrap_or(remote_lid);
    Route { lid, global: true }
}

/// The FLID in a GID, if it has one.
pub fn flid(gid: &[u8; 16]) -> Option<u16> {
    Some(u16::from_be_bytes([gid[4], gid[5]])).filter(|lid| *lid != 0)
}

fn subnet(gid: &[u8; 16]) -> [u8; 2] {
    [gid[6], gid[7]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().expect("an address").octets()
    }

    #[test]
    fn within_a_subnet_packets_carry_gids_only_if_the_port_requires_it() {
        let (a, b) = (gid("fe80::2:c903:1:1"), gid("fe80::2:c903:1:2"));
        assert_eq!(route(&a, &b, 7, false), Route { lid: 7, global: false });
        assert_eq!(route(&a, &b, 7, true), Route { lid: 7, global: true });
        // With routers, the ports of one subnet have different FLIDs.
        assert!(!route(&gid("fec0:0:11:1::1"), &gid("fec0:0:12:1::2"), 7, false).global);
    }

    #[test]
    fn packets_to_another_subnet_carry_gids_and_go_to_the_flid() {
        let (a, b) = (gid("fec0:0:11:1::1"), gid("fec0:0:1234:2::2"));
        assert_eq!(route(&a, &b, 7, false), Route { lid: 0x1234, global: true });
        assert_eq!(
            route(&a, &gid("fec0:0:0:2::2"), 7, false),
            Route { lid: 7, global: true },
            "the GID has no FLID"
        );
        assert_eq!((flid(&b), flid(&gid("fe80::1"))), (Some(0x1234), None));
    }
}
