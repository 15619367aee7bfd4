//! InfiniBand addressing: packets go by LID within a subnet, and by GID between subnets.
//!
//! The two last bytes of a GID's subnet prefix number the subnet. In the two before them fabrics with routers put the LID
//! that a port has for the other subnets (its floating LID, FLID); 0 where there is none.

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// The LID to send to: the peer's, or that under which the routers know it.
    pub lid: u16,
    /// Whether packets carry GIDs.
    pub global: bool,
}

/// How `remote`, which has `remote_lid` in its own subnet, is reached from `local`. `grh_required`: the local port sends by
/// GID in any case.
pub fn reach(local: &[u8; 16], remote: &[u8; 16], remote_lid: u16, grh_required: bool) -> Reach {
    if subnet(local) == subnet(remote) {
        return Reach { lid: remote_lid, global: grh_required };
    }
    let lid = flid(remote).unwrap_or(remote_lid);
    Reach { lid, global: true }
}

/// The LID that other subnets know a port by.
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
    fn one_subnet_needs_no_gid_unless_the_port_insists() {
        let (a, b) = (gid("fe80::2:c903:1:1"), gid("fe80::2:c903:1:2"));
        assert_eq!(reach(&a, &b, 7, false), Reach { lid: 7, global: false });
        assert_eq!(reach(&a, &b, 7, true), Reach { lid: 7, global: true });
        // Where routers are, two ports of one subnet differ in their FLIDs.
        assert!(!reach(&gid("fec0:0:11:1::1"), &gid("fec0:0:12:1::2"), 7, false).global);
    }

    #[test]
    fn other_subnets_are_reached_by_gid_and_flid() {
        let (a, b) = (gid("fec0:0:11:1::1"), gid("fec0:0:1234:2::2"));
        assert_eq!(reach(&a, &b, 7, false), Reach { lid: 0x1234, global: true });
        assert_eq!(reach(&a, &gid("fec0:0:0:2::2"), 7, false), Reach { lid: 7, global: true }, "no FLID is told");
        assert_eq!((flid(&b), flid(&gid("fe80::1"))), (Some(0x1234), None));
    }
}
