//! Entries of the device tables: allocation, release, and clearing up behind the dead.
//!
//! No free list and no counters exist that a killed process could leave half-written: an entry is in use when its
//! `owner` is not 0, and everything else is derived from that.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::limits::{DEVICES, PORTS, PROCS};
use crate::process::fabric::Fabric;
use crate::process::usage;
use crate::shm::file::ControlLock;
use crate::shm::layout::{CHUNK, PAGE, RINGS_AT, Table};
use crate::shm::slots::{CqSlot, MrSlot, NO_PEER, QpSlot};

impl Fabric {
    /// The owner word of entry `index`, if that entry has storage.
    fn owner_of(&self, table: Table, device: usize, index: u32) -> &AtomicU32 {
        match table {
            Table::Qp => &self.qp(device, index).owner,
            Table::Mr => &self.mr(device, index).owner,
            Table::Cq => &self.cq(device, index).owner,
            Table::Srq => &self.srq(device, index).owner,
        }
    }

    /// Finds a free entry below `limit` entries in use, gives it storage and marks it ours.
    pub(crate) fn claim(&self, control: &ControlLock<'_>, table: Table, device: usize, limit: u32) -> Result<u32, i32> {
        if self.is_failed(device) {
            return Err(libc::EIO);
        }
        match self.find_free(table, device, limit) {
            Err(libc::ENOMEM) => {
                self.reap_dead(control);
                self.find_free(table, device, limit)
            }
            found => found,
        }
        .inspect(|&index| {
            self.owner_of(table, device, index).store(self.me, SeqCst);
            self.header().hint[device][table as usize].store(index + 1, Relaxed);
            usage::created(table);
        })
    }

    fn find_free(&self, table: Table, device: usize, limit: u32) -> Result<u32, i32> {
        let grown = &self.header().grown[device][table as usize];
        let have = grown.load(Relaxed);
        let is_free = |index: &u32| self.owner_of(table, device, *index).load(Acquire) == 0;
        if limit < table.capacity() && (0..have).filter(|i| !is_free(i)).count() >= limit as usize {
            return Err(libc::ENOMEM);
        }
        let hint = self.header().hint[device][table as usize].load(Relaxed).min(have);
        if let Some(index) = (hint..have).find(is_free).or_else(|| (0..hint).find(is_free)) {
            return Ok(index);
        }
        if have >= table.capacity() {
            return Err(libc::ENOMEM);
        }
        self.file.allocate(table.at(device, have), CHUNK).map_err(|code| self.report_no_space(code))?;
        grown.store(have + table.per_chunk(), Release);
        Ok(have)
    }

    pub(crate) fn report_no_space(&self, code: i32) -> i32 {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Relaxed) {
            crate::host::stderr::say(format_args!(
                "no room for more shared memory in {}: {}; free some space there",
                self.settings.shm_dir.display(),
                crate::host::errno::errno_text(code)
            ));
        }
        libc::ENOMEM
    }

    /// Gives the entry back. Its other fields no longer matter.
    pub(crate) fn free(&self, _control: &ControlLock<'_>, table: Table, device: usize, index: u32) {
        let hint = &self.header().hint[device][table as usize];
        hint.fetch_min(index, Relaxed);
        // What a dead process left was never counted here.
        if self.owner_of(table, device, index).swap(0, SeqCst) == self.me {
            usage::destroyed(table);
        }
    }

    /// Finds room for a receive ring and gives it storage; 0 bytes need none.
    pub(crate) fn claim_ring(&self, control: &ControlLock<'_>, bytes: usize) -> Result<u64, i32> {
        if bytes == 0 {
            return Ok(RINGS_AT as u64);
        }
        let bytes = bytes.next_multiple_of(PAGE);
        let pages = self.file.ring_pages();
        let at = pages.find(control, bytes).or_else(|| {
            self.reap_dead(control);
            pages.rebuild(control, self.rings());
            pages.find(control, bytes)
        });
        let at = at.ok_or(libc::ENOMEM)?;
        self.file.allocate(at, bytes).map_err(|code| self.report_no_space(code))?;
        pages.take(control, at, bytes);
        Ok(at as u64)
    }

    /// The receive rings in use: where each begins in the file, and its bytes.
    fn rings(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = |table| (0..DEVICES).flat_map(move |d| self.entries(table, d).map(move |i| (d, i)));
        let of_qps = all(Table::Qp).map(|(d, i)| self.qp(d, i)).map(|qp| (&qp.owner, &qp.ring_at, &qp.ring_bytes));
        let of_srqs =
            all(Table::Srq).map(|(d, i)| self.srq(d, i)).map(|srq| (&srq.owner, &srq.ring_at, &srq.ring_bytes));
        of_qps
            .chain(of_srqs)
            .filter(|(owner, _, bytes)| owner.load(Acquire) != 0 && bytes.load(Acquire) != 0)
            .map(|(_, at, bytes)| (at.load(Acquire) as usize, bytes.load(Acquire) as usize))
    }

    /// Takes a QP entry out of the fabric. No peer enters it any more: the caller has seen to that.
    pub(crate) fn free_qp(&self, control: &ControlLock<'_>, device: usize, index: u32) {
        let qp = self.qp(device, index);
        qp.qpn.store(0, SeqCst);
        qp.peer.store(NO_PEER, SeqCst);
        self.port(device, qp.port.load(Relaxed).clamp(1, PORTS as u32)).past.absorb(&qp.sent);
        self.free_ring(control, &qp.ring_at, &qp.ring_bytes);
        self.free(control, Table::Qp, device, index);
    }

    /// Takes an SRQ entry out of the fabric. No queue pair refers to it any more.
    pub(crate) fn free_srq(&self, control: &ControlLock<'_>, device: usize, index: u32) {
        let srq = self.srq(device, index);
        self.free_ring(control, &srq.ring_at, &srq.ring_bytes);
        self.free(control, Table::Srq, device, index);
    }

    fn free_ring(&self, control: &ControlLock<'_>, at: &AtomicU64, bytes: &AtomicU32) {
        let (at, bytes) = (at.load(Relaxed) as usize, bytes.swap(0, SeqCst) as usize);
        if bytes != 0 {
            self.file.release(at, bytes.next_multiple_of(PAGE));
            self.file.ring_pages().give_back(control, at, bytes);
        }
    }

    /// Frees all that dead processes left, except what a live one is still working on.
    pub(crate) fn reap_dead(&self, control: &ControlLock<'_>) {
        for index in 0..PROCS {
            let proc = self.proc(index);
            let id = proc.id.load(Acquire);
            if id == 0 || id == self.me || self.file.is_held(index) {
                continue;
            }
            if self.reap(control, id) {
                proc.state.store(0, SeqCst);
                proc.id.store(0, SeqCst);
            }
        }
    }

    /// Frees the entries of process `id`; false if a live process is still in one of its QPs.
    fn reap(&self, control: &ControlLock<'_>, id: u32) -> bool {
        let mut clean = true;
        for device in 0..DEVICES {
            for index in self.entries(Table::Qp, device) {
                let qp: &QpSlot = self.qp(device, index);
                if qp.owner.load(Acquire) != id {
                    continue;
                }
                qp.state.store(crate::abi::consts::qp_state::RESET, SeqCst);
                if self.is_entered(qp) {
                    clean = false;
                } else {
                    self.free_qp(control, device, index);
                }
            }
        }
        if !clean {
            return false;
        }
        for device in 0..DEVICES {
            for index in self.entries(Table::Mr, device) {
                let mr: &MrSlot = self.mr(device, index);
                if mr.owner.load(Acquire) == id {
                    mr.key.store(0, SeqCst);
                    self.free(control, Table::Mr, device, index);
                }
            }
            for index in self.entries(Table::Srq, device) {
                if self.srq(device, index).owner.load(Acquire) == id {
                    self.free_srq(control, device, index);
                }
            }
            for index in self.entries(Table::Cq, device) {
                let cq: &CqSlot = self.cq(device, index);
                if cq.owner.load(Acquire) == id {
                    self.free(control, Table::Cq, device, index);
                }
            }
        }
        true
    }
}
