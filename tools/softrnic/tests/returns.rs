//! Ports that go down by a fault rule and come back by themselves, with their addresses or others.

mod common;

use common::node::{Node, Terms, Work, join_ports, local_pair, rtr};
use common::process::alone;
use common::verbs::*;

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Gives up after 8.6 s.
const PATIENT: Terms = Terms { timeout: 18, retry_cnt: 7, ..QUICK };

/// An entry of a GID table that is empty.
const EMPTY: [u64; 2] = [0; 2];

/// `::ffff:` and the octets.
fn mapped(octets: [u8; 4]) -> [u64; 2] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&octets);
    // SAFETY: same size, any bits are valid.
    unsafe { std::mem::transmute::<[u8; 16], [u64; 2]>(gid) }
}

fn send(a: &Node, b: &Node) -> u32 {
    b.recv(1, &[]);
    a.send(Work { opcode: SEND, ..Work::default() });
    a.next().status
}

fn events<const N: usize>(node: &Node) -> [u32; N] {
    std::array::from_fn(|_| next_event(node.context).0)
}

#[test]
fn an_address_that_comes_later_than_its_port_is_waited_for() {
    let rule = "port-down=20ms gid-after=20ms device=softrnic0 message=1 times=1";
    alone("an_address_that_comes_later_than_its_port_is_waited_for", &[("SOFTRNIC_FAULTS", rule)], || {
        let (a, b) = local_pair(16, &PATIENT);
        let before = [a.gid_of(1, 0), a.gid_of(1, 1)];
        assert_eq!((send(&a, &b), b.next().status), (OK, OK));
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE, GID_CHANGE]);
        assert_eq!([a.gid_of(1, 0), a.gid_of(1, 1)], before);
        assert!(!b.has_event(), "the other port");
    });
}

#[test]
fn until_its_address_is_back_a_port_has_the_link_local_one() {
    let rule = "port-down=1ms gid-after=1000s device=softrnic0 message=1 times=1";
    alone("until_its_address_is_back_a_port_has_the_link_local_one", &[("SOFTRNIC_FAULTS", rule)], || {
        let (a, b) = local_pair(16, &PATIENT);
        let (c, d) = (Node::new(0, 16), Node::new(1, 16));
        let before = c.gid;
        b.recv(1, &[]);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(port_attr(a.context, 1).expect("port").state, 4);
        assert_ne!(a.gid_of(1, 0), EMPTY);
        assert_eq!(a.gid_of(1, 1), EMPTY);
        let by_old = rtr(&d.address(), &QUICK);
        assert_eq!(c.connect_by(&by_old, &QUICK), Err(libc::ENODATA), "from the entry that is empty");
        let to_old = QpAttr { dgid: before, ..rtr(&c.address(), &QUICK) };
        assert_eq!(d.connect_by(&to_old, &QUICK), Err(libc::ETIMEDOUT), "to the address that is not there");
        assert!(a.poll().is_none(), "the message is lost as long as that");
        join_ports((&c, 1), (&d, 1), 0, &QUICK);
        assert_eq!(send(&c, &d), OK, "by the link-local addresses");
        assert!(!a.has_event());
    });
}

#[test]
fn an_address_may_return_at_another_index() {
    let rule = "port-down=1ms gid=move device=softrnic0 message=1 times=1";
    alone("an_address_may_return_at_another_index", &[("SOFTRNIC_FAULTS", rule)], || {
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        // In the table before the port is active.
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, GID_CHANGE, PORT_ACTIVE]);
        assert_eq!([1, 2].map(|index| a.gid_of(1, index)), [EMPTY, mapped([10, 82, 1, 1])]);
        let (c, d) = (Node::new(0, 16), Node::new(1, 16));
        let gid = c.gid_of(1, 2);
        c.connect_by(&QpAttr { sgid_index: 2, ..rtr(&d.address(), &QUICK) }, &QUICK).expect("a new connection");
        d.connect_by(&QpAttr { dgid: gid, ..rtr(&c.address(), &QUICK) }, &QUICK).expect("a new connection");
        assert_eq!((send(&c, &d), send(&d, &c)), (OK, OK));
    });
}

#[test]
fn all_kinds_of_addresses_return_at_other_indices() {
    let env = [("SOFTRNIC_FAULTS", "port-down=1ms gid=move gid-after=1ms"), ("SOFTRNIC_GIDS", "rich")];
    alone("all_kinds_of_addresses_return_at_other_indices", &env, || {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let before: Vec<_> = (0..6).map(|index| a.gid_of(1, index)).collect();
        join_ports((&a, 1), (&b, 1), 3, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        let expected = [&[PORT_ERR][..], &[GID_CHANGE; 4], &[PORT_ACTIVE], &[GID_CHANGE; 4]].concat();
        assert_eq!(&events::<10>(&a)[..], expected);
        let after: Vec<_> = (0..10).map(|index| a.gid_of(1, index)).collect();
        assert_eq!((&after[..2], &after[6..]), (&before[..2], &before[2..]));
        assert_eq!(after[2..6], [EMPTY; 4]);
    });
}

#[test]
fn another_address_may_come_in_its_place() {
    let rule = "port-down=1ms gid=other gid-after=1ms device=softrnic0 message=1 times=1";
    alone("another_address_may_come_in_its_place", &[("SOFTRNIC_FAULTS", rule)], || {
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE, GID_CHANGE]);
        assert_eq!(a.gid_of(1, 1), mapped([10, 83, 1, 1]));
        let (c, d) = local_pair(16, &QUICK);
        assert_eq!((send(&c, &d), send(&d, &c)), (OK, OK));
    });
}
