//! Flushes of received data to GPU memory: an RDMA READ of one byte over a queue pair that is
//! connected to itself.
//!
//! On PCI Express a read does not pass earlier writes of the same device. A completed read thus
//! proves that the writes have reached the memory. Each rail that carried data needs its own read.
//! The queue pairs are created at the first flush, since NCCL does not flush on recent GPUs.

use crate::error::{Error, Result};
use crate::net::device::card_port::CardPort;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::open_device::{LOSS_LIMIT, OpenDevice};
use crate::net::mr::handle::MrHandle;
use crate::net::qp::connect::{path_to, with_hint};
use crate::net::qp::init_rail::create_qp;
use crate::net::qp::priority::Priority;
use crate::net::qp::set::QpSet;
use crate::net::qp::wr_id::WrId;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::requests::{Entry, RequestId, Requests};
use crate::proto::{MAX_RAILS, MAX_REQUESTS};
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::path::Path;
use crate::verbs::qp_ex::Operations;
use crate::verbs::queue_pair::{QpCaps, QueuePair, RemoteAccess};
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Sge, Target};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room for a read of every outstanding flush, so that the send queue never overflows.
const FLUSH_QP_CAPS: QpCaps = QpCaps {
    max_send_wr: MAX_REQUESTS as u32,
    max_recv_wr: 1,
    max_inline_data: 0,
    operations: Operations::READ,
};

/// The flushes of one receiver.
#[derive(Debug)]
pub struct Flushes {
    rails: [Option<FlushRail>; MAX_RAILS],
    requests: Requests<()>,
    /// The flushes, indexed like their requests.
    flushes: Box<[Flush; MAX_REQUESTS]>,
    /// When failed reads may be posted again.
    next_try: Option<Instant>,
}

/// One flush.
#[derive(Debug, Clone, Copy, Default)]
struct Flush {
    addr: u64,
    rkeys: [u32; MAX_RAILS],
    /// Rails whose read is not complete, as a bit mask.
    waiting: u8,
    /// Whether a read has failed and reads must be posted again.
    is_failed: bool,
    /// How often a read has failed.
    failures: u8,
    /// Since when a device refuses the read.
    refused_since: Option<Instant>,
}

/// A queue pair that is connected to itself, and memory to read into.
#[derive(Debug)]
struct FlushRail {
    port: Arc<CardPort>,
    device: Arc<OpenDevice>,
    qp: QueuePair,
    queue: CompletionQueue,
    landing: SharedRing<8, 1>,
    lkey: u32,
}

/// Failed reads after which a flush fails, where reads can be repeated.
const MAX_FAILURES: u8 = 10;
/// Interval between attempts to repost reads.
const TRY_EVERY: Duration = Duration::from_millis(10);

impl Default for Flushes {
    fn default() -> Self {
        let flushes = Box::new([Flush::default(); MAX_REQUESTS]);
        Self { rails: Default::default(), requests: Requests::default(), flushes, next_try: None }
    }
}

/// The flush of request `id`.
fn find<'a>(
    requests: &Requests<()>,
    flushes: &'a mut [Flush; MAX_REQUESTS],
    id: RequestId,
) -> Option<&'a mut Flush> {
    requests.get(id).map(|()| &mut flushes[id.index()])
}

/// The rails whose device in `known` is lost or differs from the rail's device `now`.
fn changed_rails<'a, D: 'a>(
    known: [Option<&D>; MAX_RAILS],
    now: impl Iterator<Item = (u8, &'a D)>,
    is_lost: impl Fn(&D) -> bool,
    is_same: impl Fn(&D, &D) -> bool,
) -> RailMask {
    let on = |number: u8| known.get(usize::from(number)).copied().flatten();
    let lost = (0..MAX_RAILS as u8).filter(|number| on(*number).is_some_and(&is_lost));
    let moved =
        now.filter(|(number, device)| on(*number).is_some_and(|before| !is_same(before, device)));
    lost.chain(moved.map(|(number, _)| number))
        .fold(RailMask::NONE, |rails, number| rails | RailMask::only(number))
}

impl Flushes {
    /// The entry of flush `id`.
    pub fn entry(&self, id: RequestId) -> Option<&Entry<()>> {
        self.requests.entry(id)
    }

    fn get_mut(&mut self, id: RequestId) -> Option<&mut Flush> {
        find(&self.requests, &mut self.flushes, id)
    }

    /// Begins to read one byte at `addr` over each of `rails`. Returns `None` if [`MAX_REQUESTS`]
    /// flushes are outstanding. If `may_be_repeated`, a read that cannot be posted now is posted
    /// later.
    ///
    /// # Errors
    /// A port is down, its device has no more queues or memory regions, or the read cannot be
    /// posted.
    pub fn post(
        &mut self,
        qps: &QpSet,
        rails: RailMask,
        addr: u64,
        memory: &MrHandle,
        may_be_repeated: bool,
    ) -> Result<Option<RequestId>> {
        let Some(id) = self.requests.allocate().map(Entry::id) else { return Ok(None) };
        self.flushes[id.index()] = Flush { addr, rkeys: memory.rkeys.all(), ..Flush::default() };
        match self.post_reads(qps.ports(), rails, id, may_be_repeated) {
            Err(e) if !may_be_repeated => Err(e),
            outcome => {
                self.handle_outcome(id, outcome)?;
                Ok(Some(id))
            }
        }
    }

    /// Whether some flushes have not been reported complete to NCCL.
    pub fn are_outstanding(&self) -> bool {
        !self.requests.are_all_free()
    }

    /// Whether the flush is complete; if so, its id is no longer valid. The reads of a failed flush
    /// are replaced by reads over the rails `in_use` with these `ports`: the data arrived over
    /// queue pairs that no longer exist. `None` means that the connection is recovering. An empty
    /// mask means that reads are not repeated.
    ///
    /// # Errors
    /// The flush has failed.
    pub fn test<'a>(
        &mut self,
        ports: impl Iterator<Item = (u8, &'a Arc<CardPort>, Arc<OpenDevice>)>,
        memory: &ConnMemory,
        id: RequestId,
        in_use: Option<RailMask>,
    ) -> Result<bool> {
        for number in 0..MAX_RAILS {
            if let Err(e) = self.poll(number) {
                self.handle_failed_rail(number);
                if in_use.is_some_and(RailMask::is_empty) {
                    return Err(e);
                }
                let failures = self.get_mut(id).map_or(0, |flush| flush.failures);
                if failures >= MAX_FAILURES {
                    return Err(e);
                }
            }
        }
        let is_due = self.next_try.is_none_or(|next| next <= Instant::now());
        if let Some(rails) = in_use.filter(|_| is_due)
            && self.tested(id)?.is_failed
        {
            self.renew_keys(memory, id);
            let outcome = self.post_reads(ports, rails, id, true);
            self.handle_outcome(id, outcome)?;
        }
        let flush = self.tested(id)?;
        let is_done = flush.waiting == 0 && !flush.is_failed;
        if is_done {
            self.requests.release_id(id);
        }
        Ok(is_done)
    }

    /// Flush `id`, which NCCL tests.
    ///
    /// # Errors
    /// The flush has already ended.
    fn tested(&self, id: RequestId) -> Result<&Flush> {
        self.requests.tested(id).map_err(Error::misuse)?;
        Ok(&self.flushes[id.index()])
    }

    /// Handles the completions of rail `number`.
    ///
    /// # Errors
    /// A read has failed.
    fn poll(&mut self, number: usize) -> Result<()> {
        let Self { rails, requests, flushes, .. } = self;
        let Some(FlushRail { port, queue, .. }) = &mut rails[number] else { return Ok(()) };
        let mut batch = Batch::default();
        let completions = queue.poll(&mut batch)?;
        if completions.is_empty() {
            queue.check()?;
        }
        for completion in completions {
            let status = completion.status();
            if status != Status::SUCCESS {
                let text = format!(
                    "flushing GPU memory on {}: {status}; likely: {}",
                    port.name,
                    status.cause()
                );
                return Err(Error::remote(text));
            }
            if let WrId::Flush { request } = WrId::from_bits(completion.id())
                && let Some(flush) = find(requests, flushes, request)
            {
                flush.waiting &= !(1 << number);
            }
        }
        Ok(())
    }

    /// Updates the memory keys of flush `id`: the connection may have moved to another card.
    fn renew_keys(&mut self, memory: &ConnMemory, id: RequestId) {
        if let Some(flush) = self.get_mut(id)
            && let Some(rkeys) = memory.rkeys_at(flush.addr, 1)
        {
            flush.rkeys = rkeys;
        }
    }

    /// Records that the connection's rails are now on `devices`, each with its rail number. Reads
    /// over other or lost devices have failed.
    pub fn handle_devices<'a>(&mut self, devices: impl Iterator<Item = (u8, &'a Arc<OpenDevice>)>) {
        let known = self.rails.each_ref().map(|on| on.as_ref().map(|on| &on.device));
        let changed = changed_rails(known, devices, |device| device.is_lost(), Arc::ptr_eq);
        changed.iter().for_each(|number| self.handle_failed_rail(number.into()));
    }

    /// Handles a failed read over rail `number`, which fails all reads in flight there.
    #[cold]
    fn handle_failed_rail(&mut self, number: usize) {
        self.rails[number] = None;
        self.next_try = Some(Instant::now() + TRY_EVERY);
        let Self { requests, flushes, .. } = self;
        let live =
            requests.live().filter(|(id, ())| flushes[id.index()].waiting & 1 << number != 0);
        let failed: Vec<RequestId> = live.map(|(id, ())| id).collect();
        for id in failed {
            let flush = &mut flushes[id.index()];
            flush.waiting &= !(1 << number);
            flush.is_failed = true;
            flush.failures += 1;
        }
    }

    /// Handles the `outcome` of posting the reads of flush `id`: true if posted, false if there
    /// were no ports.
    ///
    /// # Errors
    /// Posting failed too often.
    fn handle_outcome(&mut self, id: RequestId, outcome: Result<bool>) -> Result<()> {
        let Self { requests, flushes, next_try, .. } = self;
        let Some(flush) = find(requests, flushes, id) else { return Ok(()) };
        flush.is_failed = !matches!(outcome, Ok(true));
        if flush.is_failed {
            *next_try = Some(Instant::now() + TRY_EVERY);
        }
        let e = match outcome {
            Ok(true) => {
                flush.refused_since = None;
                return Ok(());
            }
            Ok(false) => return Ok(()),
            Err(e) => e,
        };
        // The device does not work or the port is down: a recovery is about to begin.
        if e.is_recoverable
            && flush.refused_since.get_or_insert_with(Instant::now).elapsed() < LOSS_LIMIT
        {
            return Ok(());
        }
        flush.failures += 1;
        if flush.failures >= MAX_FAILURES { Err(e) } else { Ok(()) }
    }

    /// Posts a read over each of `rails` that has a port in `ports`, for flush `id`. A failed read
    /// is repeated if the connection `recovers` from faults. Returns whether a read is in flight: a
    /// recovering connection has no ports.
    ///
    /// # Errors
    /// A port is down, its device has no more queues or memory regions, or a read cannot be posted.
    fn post_reads<'a>(
        &mut self,
        ports: impl Iterator<Item = (u8, &'a Arc<CardPort>, Arc<OpenDevice>)>,
        rails: RailMask,
        id: RequestId,
        recovers: bool,
    ) -> Result<bool> {
        let Self { rails: known, requests, flushes, .. } = self;
        let Some(flush) = find(requests, flushes, id) else { return Ok(true) };
        for (number, port, device) in ports.filter(|(number, ..)| rails.contains(*number)) {
            if flush.waiting & 1 << number != 0 {
                continue;
            }
            let place = &mut known[usize::from(number)];
            let on = match place {
                Some(on) => on,
                None => place.insert(FlushRail::new(port, device, recovers)?),
            };
            let local = Sge { addr: on.landing.addr(), length: 1, lkey: on.lkey };
            let target = Target { addr: flush.addr, rkey: flush.rkeys[usize::from(number)] };
            on.qp.post_read(WrId::Flush { request: id }.to_bits(), local, target)?;
            flush.waiting |= 1 << number;
        }
        Ok(flush.waiting != 0)
    }
}

impl FlushRail {
    fn new(port: &Arc<CardPort>, device: Arc<OpenDevice>, recovers: bool) -> Result<Self> {
        let rail = &**port;
        let address = rail.local_address()?;
        let queue = CompletionQueue::new(
            &device.context,
            FLUSH_QP_CAPS.max_send_wr + FLUSH_QP_CAPS.max_recv_wr,
        )?;
        let init = create_qp(rail, &device, None, &queue, FLUSH_QP_CAPS, RemoteAccess::Read)?;
        let priority = Priority::of_sender(&rail.config, None);
        let (gid, lid) = (&address.gid.gid, address.port.lid);
        let path = path_to(rail, &address, gid, lid, priority, recovers)?;
        let path = Path { dest_qpn: init.number(), ..path };
        let mut landing = SharedRing::new(1, |_| 0)?;
        let lkey = landing.lkey(&device.domain)?;
        let qp = init
            .connect(&path, WrId::Receive { qp: 0 }.to_bits())
            .map_err(|e| with_hint(e.into()))?;
        Ok(Self { port: Arc::clone(port), device, qp, queue, landing, lkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::error::Error as VerbsError;

    fn one() -> (Flushes, RequestId) {
        let mut flushes = Flushes::default();
        let id = flushes.requests.allocate().expect("room").id();
        (flushes, id)
    }

    /// How many refusals in a row the flush survives.
    fn outlasted(flushes: &mut Flushes, id: RequestId, refusal: &Error) -> usize {
        (0..1000).take_while(|_| flushes.handle_outcome(id, Err(refusal.clone())).is_ok()).count()
    }

    #[test]
    fn rails_have_changed_whose_device_is_lost_or_another_one() {
        let mut known = [None; MAX_RAILS];
        known[..3].copy_from_slice(&[Some(&10), Some(&11), Some(&12)]);
        let changed = |now: &[(u8, u32)], lost: u32| {
            changed_rails(
                known,
                now.iter().map(|(number, device)| (*number, device)),
                |device| *device == lost,
                u32::eq,
            )
            .0
        };
        assert_eq!(changed(&[(0, 10), (1, 11), (2, 12)], 0), 0);
        assert_eq!(
            changed(&[(0, 10), (1, 12), (2, 12), (3, 10)], 0),
            0b010,
            "nothing was read over rail 3"
        );
        assert_eq!(changed(&[(2, 10)], 10), 0b101);
        assert_eq!(changed(&[], 0), 0);
    }

    /// What a failure on rail 1 leaves of a flush that waits for these rails.
    fn failed(waiting: u8) -> (u8, bool, u8) {
        let (mut flushes, id) = one();
        flushes.flushes[id.index()].waiting = waiting;
        let begin = Instant::now();
        flushes.handle_failed_rail(1);
        assert!(flushes.next_try >= Some(begin + TRY_EVERY));
        let flush = flushes.flushes[id.index()];
        (flush.waiting, flush.is_failed, flush.failures)
    }

    #[test]
    fn a_failure_at_a_rail_is_one_of_the_flushes_that_wait_for_it() {
        assert_eq!(failed(0b111), (0b101, true, 1));
        assert_eq!(failed(0b010), (0, true, 1));
        assert_eq!(failed(0b101), (0b101, false, 0));
    }

    #[test]
    fn a_flush_that_cannot_be_posted_fails_at_the_tenth_time() {
        assert!(!Flushes::default().are_outstanding());
        let ((mut flushes, id), begin) = (one(), Instant::now());
        assert!(flushes.are_outstanding());
        assert_eq!(outlasted(&mut flushes, id, &Error::system("no more queues")), 9);
        assert!(flushes.next_try >= Some(begin + TRY_EVERY), "and not at once");
    }

    #[test]
    fn a_flush_that_a_failing_device_refuses_is_tried_until_the_limit_and_ten_times_more() {
        let refusal = Error::from(VerbsError::of_device("ibv_create_qp", libc::EIO));
        let (mut flushes, id) = one();
        assert_eq!(outlasted(&mut flushes, id, &refusal), 1000, "no time has gone by");
        let late = |flushes: &mut Flushes| {
            let since = &mut flushes.get_mut(id).expect("live").refused_since;
            *since = since.and_then(|since| since.checked_sub(LOSS_LIMIT));
        };
        late(&mut flushes);
        flushes.handle_outcome(id, Ok(false)).expect("the connection recovers");
        assert_eq!(outlasted(&mut flushes, id, &refusal), 9);
        let (mut flushes, id) = one();
        flushes.handle_outcome(id, Err(refusal.clone())).expect("asked for again");
        late(&mut flushes);
        flushes.handle_outcome(id, Ok(true)).expect("posted");
        assert_eq!(outlasted(&mut flushes, id, &refusal), 1000, "another device, or another loss");
    }
}
