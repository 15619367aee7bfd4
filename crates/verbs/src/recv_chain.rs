//! A chain of receive work requests that is posted repeatedly.

#![deny(clippy::disallowed_methods)]

use super::sys;

/// The most receive work requests posted in one call.
pub const RECV_BATCH: usize = 32;

/// [`RECV_BATCH`] linked receive work requests without memory, which never change. Any number of
/// the last ones are a chain too.
#[derive(Debug)]
pub(super) struct RecvChain(*mut sys::ibv_recv_wr);

impl RecvChain {
    /// A chain whose completions have the work request id `id`.
    pub(super) fn new(id: u64) -> Self {
        let null = std::ptr::null_mut();
        let link =
            sys::ibv_recv_wr { wr_id: id, next: null, sg_list: std::ptr::null_mut(), num_sge: 0 };
        let base = Box::into_raw(Box::new([link; RECV_BATCH])).cast::<sys::ibv_recv_wr>();
        for i in 0..RECV_BATCH - 1 {
            // SAFETY: inside the array made above, to which there is no other pointer.
            unsafe { (*base.add(i)).next = base.add(i + 1) };
        }
        Self(base)
    }

    /// The last `count` of them, if there are that many.
    pub(super) fn last(&self, count: usize) -> Option<*mut sys::ibv_recv_wr> {
        (1..=RECV_BATCH).contains(&count).then(|| self.0.wrapping_add(RECV_BATCH - count))
    }
}

impl Drop for RecvChain {
    fn drop(&mut self) {
        // SAFETY: made from such a box in `new`, and turned back into it once.
        drop(unsafe { Box::from_raw(self.0.cast::<[sys::ibv_recv_wr; RECV_BATCH]>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_of_a_chain_are_a_chain() {
        let chain = RecvChain::new(7);
        for count in 1..=RECV_BATCH {
            let mut at = chain.last(count).expect("there are so many");
            for _ in 0..count {
                // SAFETY: a request of the chain.
                let request = unsafe { &*at };
                assert_eq!((request.wr_id, request.num_sge), (7, 0));
                at = request.next;
            }
            assert!(at.is_null(), "{count} were asked for");
        }
        assert_eq!([0, RECV_BATCH + 1].map(|count| chain.last(count)), [None; 2]);
    }
}
