//! Regions that change (`ibv_rereg_mr`).

use crate::common::node::{Node, Terms, Work, local_pair};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

const TRANSLATION: i32 = 1;
const PD: i32 = 2;
const ACCESS: i32 = 4;
/// `IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_CMD`.
const WRONG: i32 = -1;
const FAILED: i32 = -4;

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

fn rereg(node: &Node, flags: i32, pd: Ptr, memory: (Ptr, usize), access: i32) -> i32 {
    ibv_rereg_mr(node.mr, flags, pd, memory.0, memory.1, access)
}

const NOTHING: (Ptr, usize) = (std::ptr::null_mut(), 0);

/// The status of a write of 8 bytes from `a` into the region of `b`, at this address.
fn written(a: &Node, b: &Node, addr: u64) -> u32 {
    a.send(Work { sges: &[a.sge(0, 8)], to: (addr, u64::from(b.key())), ..Work::default() });
    a.next().status
}

#[test]
fn a_region_gets_other_memory_access_and_domain() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        a.memory[..8].copy_from_slice(b"00000008");
        let mut other = vec![0u8; 32];
        let (addr, key) = (other.as_mut_ptr() as u64, b.key());
        assert_eq!(rereg(&b, TRANSLATION, std::ptr::null_mut(), (other.as_mut_ptr().cast(), 32), 0), 0);
        // SAFETY: a live region.
        let region = unsafe { &*b.mr };
        assert_eq!((region.addr as u64, region.length, region.lkey), (addr, 32, key));
        assert_eq!((written(&a, &b, addr), other[..8].to_vec()), (OK, b"00000008".to_vec()));
        let elsewhere = ibv_alloc_pd(b.context);
        assert_eq!(rereg(&b, PD | ACCESS, elsewhere, NOTHING, 7), 0);
        assert_eq!((region.pd, ibv_dealloc_pd(elsewhere)), (elsewhere, libc::EBUSY));
        assert_eq!(rereg(&b, PD, b.pd, NOTHING, 0), 0);
        assert_eq!((ibv_dealloc_pd(elsewhere), written(&a, &b, addr)), (0, OK));
        assert_eq!(written(&a, &b, addr + 25), REM_ACCESS, "the new bounds");
        b.close();
    });
}

#[test]
fn access_that_a_region_loses_is_refused() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        let addr = b.address().addr;
        assert_eq!((written(&a, &b, addr), rereg(&b, ACCESS, std::ptr::null_mut(), NOTHING, 1)), (OK, 0));
        assert_eq!(written(&a, &b, addr), REM_ACCESS);
    });
}

#[test]
fn a_domain_that_a_region_leaves_has_it_no_more() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        let addr = b.address().addr;
        assert_eq!((written(&a, &b, addr), rereg(&b, PD, ibv_alloc_pd(b.context), NOTHING, 0)), (OK, 0));
        assert_eq!(written(&a, &b, addr), REM_ACCESS);
    });
}

#[test]
fn a_change_that_is_refused_leaves_the_region_as_it_was() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        let none = std::ptr::null_mut();
        let memory = b.memory.as_ptr() as Ptr;
        for (flags, given, access) in
            [(8, NOTHING, 0), (TRANSLATION, (memory, 0), 0), (TRANSLATION, NOTHING, 0), (0, NOTHING, 1)]
        {
            assert_eq!((rereg(&b, flags, none, given, access), errno()), (WRONG, Some(libc::EINVAL)), "{flags}");
        }
        assert_eq!((rereg(&b, ACCESS, none, NOTHING, 2), errno()), (FAILED, Some(libc::EINVAL)), "remote, not local");
        let hole = 0x1000 as Ptr;
        assert_eq!((rereg(&b, TRANSLATION, none, (hole, 8), 0), errno()), (FAILED, Some(libc::EFAULT)));
        assert_eq!(written(&a, &b, b.address().addr), OK);
    });
}
