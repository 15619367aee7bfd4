//! What the kernel keeps for a program: an open device, and the objects that are made on it. Each
//! is an object of softrnic, with the memory in which the provider keeps its queues.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use ibverbs::calls;
use ibverbs::calls::types;
use ibverbs::calls::types::{AsyncEvent, QpAttr, RecvWr, Sge, Wc, event, qp_attr};
use ibverbs::calls::types::{qp_state, send_flag};

use crate::provider::{CqMemory, Label, Provider, QpMemory, Request};
use crate::uapi::{CompletionRecord, EventRecord, Plain, bytes, read};
use crate::{check, errno, lock, made, say};

/// Objects of one kind, by their handles.
pub(crate) struct Table<T> {
    last: AtomicU32,
    entries: RwLock<HashMap<u32, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { last: AtomicU32::new(0), entries: RwLock::default() }
    }
}

impl<T> Table<T> {
    /// A handle that no other object has had.
    pub(crate) fn handle(&self) -> u32 {
        self.last.fetch_add(1, SeqCst) + 1
    }

    pub(crate) fn add(&self, handle: u32, made: T) -> Arc<T> {
        let made = Arc::new(made);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(handle, Arc::clone(&made));
        made
    }

    /// The object of a handle; EINVAL if there is none.
    pub(crate) fn get(&self, handle: u32) -> Result<Arc<T>, i32> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&handle).cloned().ok_or(libc::EINVAL)
    }

    pub(crate) fn remove(&self, handle: u32) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&handle);
    }

    fn handles(&self) -> Vec<u32> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.keys().copied().collect()
    }
}

/// An object of softrnic.
pub(crate) struct Card<T>(pub(crate) *mut T);
// SAFETY: softrnic's objects may be used by any thread; who destroys one has its handle removed.
unsafe impl<T> Send for Card<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Card<T> {}

/// The provider's functions, which the hooks of `preload` call.
#[derive(Default)]
pub(crate) struct Hooked {
    pub(crate) post_send: AtomicUsize,
    pub(crate) post_recv: AtomicUsize,
    pub(crate) poll_cq: AtomicUsize,
    pub(crate) req_notify_cq: AtomicUsize,
}

/// An open device.
pub(crate) struct Context {
    /// The process that opened it.
    pid: u32,
    pub(crate) provider: &'static dyn Provider,
    pub(crate) card: Card<types::Context>,
    pub(crate) pds: Table<Card<types::Pd>>,
    pub(crate) mrs: Table<Card<types::Mr>>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) qps: Table<Qp>,
    pub(crate) hooked: Hooked,
    /// Pages of doorbell registers that have been given out.
    pub(crate) pages: AtomicU32,
    events: OnceLock<Events>,
    channels: Mutex<Vec<Arc<Channel>>>,
    translator: Mutex<Option<JoinHandle<()>>>,
}

impl Context {
    /// Opens softrnic's device of this index.
    pub(crate) fn open(index: usize, provider: &'static dyn Provider) -> Result<Self, i32> {
        let mut count = 0;
        // SAFETY: softrnic's own list, of `count` devices; one that is open stays without it.
        let card = unsafe {
            let list = made(calls::get_device_list(&raw mut count))?;
            let device = (0..count as usize)
                .map(|at| *list.add(at))
                .find(|device| calls::get_device_index(*device) == index as i32);
            let opened =
                device.ok_or(libc::ENODEV).and_then(|device| made(calls::open_device(device)));
            calls::free_device_list(list);
            opened?
        };
        Ok(Self {
            pid: std::process::id(),
            provider,
            card: Card(card),
            pds: Table::default(),
            mrs: Table::default(),
            cqs: Table::default(),
            qps: Table::default(),
            hooked: Hooked::default(),
            pages: AtomicU32::new(0),
            events: OnceLock::new(),
            channels: Mutex::default(),
            translator: Mutex::default(),
        })
    }

    pub(crate) fn attributes(&self) -> Result<types::DeviceAttr, i32> {
        // SAFETY: whole numbers, for which 0 is a value.
        let mut attributes: types::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: softrnic's handle.
        check(unsafe { calls::query_device(self.card.0, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// The descriptor from which the program reads asynchronous events. From now on a thread
    /// translates those of softrnic.
    pub(crate) fn begin_events(&'static self) -> Result<RawFd, i32> {
        if self.events.get().is_some() {
            return Err(libc::EINVAL);
        }
        let (events, theirs) = Events::new()?;
        // SAFETY: softrnic's handle.
        do_not_wait(unsafe { (*self.card.0).async_fd });
        // Nobody else can have set it: the library asks once for each device.
        let _ = self.events.set(events);
        let work = || self.translate();
        let thread = std::thread::Builder::new().name("softrnic-events".to_owned()).spawn(work);
        *lock(&self.translator) = Some(thread.map_err(|_| libc::EAGAIN)?);
        Ok(theirs)
    }

    /// Makes a completion channel: the descriptor that the program reads from, and closes.
    pub(crate) fn new_channel(&self) -> Result<RawFd, i32> {
        let Some(events) = self.events.get() else { return Err(libc::EINVAL) };
        let mut channels = lock(&self.channels);
        // The program has closed others since; libibverbs does not let it while they are in use.
        channels.retain(|channel| channel.is_open());
        let (pipe, fd) = Pipe::new()?;
        // SAFETY: softrnic's handle.
        let card = made(unsafe { calls::create_comp_channel(self.card.0) })?;
        // SAFETY: the new object.
        do_not_wait(unsafe { (*card).fd });
        channels.push(Arc::new(Channel { card: Card(card), pipe, fd }));
        events.wake();
        Ok(fd)
    }

    /// The completion channel that the program reads from this descriptor.
    pub(crate) fn channel(&self, fd: RawFd) -> Result<Arc<Channel>, i32> {
        let channels = lock(&self.channels);
        let found = channels.iter().find(|channel| channel.fd == fd && channel.is_open());
        found.cloned().ok_or(libc::EBADF)
    }

    /// Passes events on until [`Self::close`] ends it.
    fn translate(&self) {
        let Some(events) = self.events.get() else { return };
        // SAFETY: softrnic's handle.
        let theirs = unsafe { (*self.card.0).async_fd };
        loop {
            let channels = lock(&self.channels).clone();
            // SAFETY: softrnic's handles, which stay as long as what refers to them here.
            let fds = channels.iter().map(|channel| unsafe { (*channel.card.0).fd });
            let interest = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let own = [theirs, events.waker.as_raw_fd()];
            let mut fds: Vec<libc::pollfd> = own.into_iter().chain(fds).map(interest).collect();
            // SAFETY: an array of so many.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
            if (fds[1].revents != 0 && !events.is_woken()) || (ready < 0 && errno() != libc::EINTR)
            {
                return;
            }
            for channel in channels.iter().zip(&fds[2..]).filter(|(_, fd)| fd.revents != 0) {
                self.notify(channel.0);
            }
            let mut event = AsyncEvent { element: 0, event_type: 0 };
            // SAFETY: softrnic's handle. There is an event, which nobody else takes.
            let has_one = fds[0].revents != 0
                && unsafe { calls::get_async_event(self.card.0, &raw mut event) } == 0;
            if has_one {
                self.pass_on(events, &event);
                // SAFETY: the event that was taken.
                unsafe { calls::ack_async_event(&raw mut event) };
            }
        }
    }

    /// Passes on a notification of softrnic. There is one, or there was until its completion queue
    /// was destroyed.
    fn notify(&self, channel: &Channel) {
        let (mut card, mut word) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: softrnic's handle, whose descriptor does not block.
        if unsafe { calls::get_cq_event(channel.card.0, &raw mut card, &raw mut word) } != 0 {
            return;
        }
        if let Ok(cq) = self.cqs.get(word.addr() as u32) {
            channel.pipe.send(&CompletionRecord { element: cq.user }, Some(&cq.notifications));
        }
        // SAFETY: the notification that was taken.
        unsafe { calls::ack_cq_events(card, 1) };
    }

    fn pass_on(&self, events: &Events, event: &AsyncEvent) {
        let is_of_qp = (event::QP_FATAL..=event::SQ_DRAINED).contains(&event.event_type)
            || event.event_type == event::QP_LAST_WQE_REACHED;
        // SAFETY: softrnic's objects stay until their events are acknowledged. The word that
        // each was created with is its handle here.
        let found = unsafe {
            if event.event_type == event::CQ_ERR {
                let cq = self.cqs.get((*(event.element as *const types::Cq)).cq_context as u32);
                cq.ok().map(|cq| (cq.user, Some(Arc::clone(&cq.events))))
            } else if is_of_qp {
                let qp = self.qps.get((*(event.element as *const types::Qp)).qp_context as u32);
                qp.ok().map(|qp| (qp.user, Some(Arc::clone(&qp.events))))
            } else {
                // Of a port, or of the device, which has no number.
                Some((event.element as u64, None))
            }
        };
        if let Some((element, count)) = found {
            let record = EventRecord { element, kind: event.event_type, reserved: 0 };
            events.pipe.send(&record, count.as_deref());
        }
    }

    /// How many events of a destroyed object the program has read; the unread ones are removed.
    fn reported(&self, user: u64, count: &AtomicU32) -> u32 {
        if let Some(events) = self.events.get() {
            events.pipe.take_back(|record: &EventRecord| record.element == user, count);
        }
        count.load(SeqCst)
    }

    pub(crate) fn destroy_qp(&self, handle: u32) -> Result<u32, i32> {
        let qp = self.qps.get(handle)?;
        let _one_at_a_time = lock(&DESTROYING);
        {
            // No thread has taken its completions without having written them.
            let _sends = lock(&qp.send_cq.written);
            let is_one = Arc::ptr_eq(&qp.send_cq, &qp.recv_cq);
            let _receives = (!is_one).then(|| lock(&qp.recv_cq.written));
            let _posting = (lock(&qp.sending), lock(&qp.receiving));
            qp.state.store(qp_state::RESET, SeqCst);
        }
        // SAFETY: softrnic's handle; nobody posts to it or polls for it any more.
        check(unsafe { calls::destroy_qp(qp.card.0) })?;
        self.qps.remove(handle);
        Ok(self.reported(qp.user, &qp.events))
    }

    /// How many notifications and events of it the program has read.
    pub(crate) fn destroy_cq(&self, handle: u32) -> Result<[u32; 2], i32> {
        let cq = self.cqs.get(handle)?;
        // SAFETY: softrnic's handle; it is busy while queue pairs use it.
        check(unsafe { calls::destroy_cq(cq.card.0) })?;
        self.cqs.remove(handle);
        if let Some(channel) = &cq.channel {
            let is_of_it = |record: &CompletionRecord| record.element == cq.user;
            channel.pipe.take_back(is_of_it, &cq.notifications);
        }
        Ok([cq.notifications.load(SeqCst), self.reported(cq.user, &cq.events)])
    }

    pub(crate) fn dereg_mr(&self, handle: u32) -> Result<(), i32> {
        let mr = self.mrs.get(handle)?;
        // SAFETY: softrnic's handle.
        check(unsafe { calls::dereg_mr(mr.0) })?;
        self.mrs.remove(handle);
        Ok(())
    }

    pub(crate) fn dealloc_pd(&self, handle: u32) -> Result<(), i32> {
        let pd = self.pds.get(handle)?;
        // SAFETY: softrnic's handle; it is busy while anything uses it.
        check(unsafe { calls::dealloc_pd(pd.0) })?;
        self.pds.remove(handle);
        Ok(())
    }

    /// Whether this process opened it. A child that shares the parent's memory until it becomes
    /// another program closes what it has inherited, and not the parent's device.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Destroys the objects that the program has left, as the kernel does when the descriptor is
    /// closed.
    pub(crate) fn close(self: Box<Self>) {
        if let Some(events) = self.events.get() {
            events.end();
        }
        if let Some(thread) = lock(&self.translator).take() {
            let _ = thread.join();
        }
        for handle in self.qps.handles() {
            let _ = self.destroy_qp(handle);
        }
        for handle in self.cqs.handles() {
            let _ = self.destroy_cq(handle);
        }
        lock(&self.channels).clear();
        for handle in self.mrs.handles() {
            let _ = self.dereg_mr(handle);
        }
        for handle in self.pds.handles() {
            let _ = self.dealloc_pd(handle);
        }
        // SAFETY: softrnic's handle, which nothing uses any more.
        unsafe { calls::close_device(self.card.0) };
    }
}

/// Queue pairs are destroyed one after the other: each takes the locks of two completion queues.
static DESTROYING: Mutex<()> = Mutex::new(());

/// Asynchronous events on their way to the program, and the thread that translates them.
struct Events {
    pipe: Pipe,
    /// Readable when the thread is to look for new channels, or to end.
    waker: OwnedFd,
    ours: OwnedFd,
}

/// A completion channel.
pub(crate) struct Channel {
    pub(crate) card: Card<types::CompChannel>,
    pipe: Pipe,
    /// The program's descriptor.
    fd: RawFd,
}

impl Channel {
    /// Whether the program's descriptor is still that of the channel.
    fn is_open(&self) -> bool {
        let inode = |fd: RawFd| {
            // SAFETY: whole numbers, for which 0 is a value.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: a structure of that type.
            let code = unsafe { libc::fstat(fd, &raw mut status) };
            (code == 0).then_some((status.st_dev, status.st_ino))
        };
        inode(self.fd).is_some_and(|known| Some(known) == inode(self.pipe.theirs.as_raw_fd()))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: softrnic's handle, which no completion queue uses any more.
        unsafe { calls::destroy_comp_channel(self.card.0) };
    }
}

/// Records on their way to the program. Each is a message of its own.
struct Pipe {
    /// Writes, and reads what the program has not read.
    ours: Mutex<OwnedFd>,
    theirs: OwnedFd,
}

/// Reads from this descriptor end at once where there is nothing: what there was may be gone.
fn do_not_wait(fd: RawFd) {
    // SAFETY: an open descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// A pair of Unix sockets that keep message boundaries.
fn sockets() -> Result<[OwnedFd; 2], i32> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: an array of two.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    // SAFETY: descriptors that nobody else has.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl Pipe {
    /// With the descriptor that the program reads from, and closes.
    fn new() -> Result<(Self, RawFd), i32> {
        let [ours, theirs] = sockets()?;
        // SAFETY: an open descriptor.
        let copy = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(errno());
        }
        Ok((Self { ours: Mutex::new(ours), theirs }, copy))
    }

    /// `count` is the number of records of the object so far.
    fn send<T: Plain>(&self, record: &T, count: Option<&AtomicU32>) {
        let ours = lock(&self.ours);
        if put(&ours, record) {
            count.inspect(|count| _ = count.fetch_add(1, SeqCst));
        } else {
            say(format_args!("an event is lost: the program reads none"));
        }
    }

    /// Removes the records of an object that the program has not read.
    fn take_back<T: Plain>(&self, is_of_it: impl Fn(&T) -> bool, count: &AtomicU32) {
        let ours = lock(&self.ours);
        let mut kept = Vec::new();
        let mut record = vec![0_u8; size_of::<T>()];
        // SAFETY: the context keeps the descriptor open, and the buffer has the length that is passed.
        while unsafe {
            let (fd, at) = (self.theirs.as_raw_fd(), record.as_mut_ptr().cast());
            libc::recv(fd, at, record.len(), libc::MSG_DONTWAIT)
        } > 0
        {
            let one: T = read(&record);
            if is_of_it(&one) {
                count.fetch_sub(1, SeqCst);
            } else {
                kept.push(one);
            }
        }
        for one in &kept {
            put(&ours, one);
        }
    }
}

/// Whether there was room for it.
fn put<T: Plain>(ours: &OwnedFd, record: &T) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let data = bytes(record);
    // SAFETY: an open descriptor and so many bytes.
    unsafe { libc::send(ours.as_raw_fd(), data.as_ptr().cast(), data.len(), flags) > 0 }
}

impl Events {
    /// With the descriptor that the program reads from, and closes.
    fn new() -> Result<(Self, RawFd), i32> {
        let ([waker, ours], (pipe, fd)) = (sockets()?, Pipe::new()?);
        Ok((Self { pipe, waker, ours }, fd))
    }

    /// The thread looks for new channels.
    fn wake(&self) {
        // One message is enough, and there is room for it.
        put(&self.ours, &CompletionRecord { element: 0 });
    }

    /// Whether the thread was woken, and is not to end.
    fn is_woken(&self) -> bool {
        let mut word = [0_u8; size_of::<CompletionRecord>()];
        let (fd, at) = (self.waker.as_raw_fd(), word.as_mut_ptr().cast());
        // SAFETY: the context keeps the descriptor open, and the buffer has the length that is passed.
        unsafe { libc::recv(fd, at, word.len(), libc::MSG_DONTWAIT) > 0 }
    }

    /// The thread returns.
    fn end(&self) {
        // SAFETY: an open descriptor.
        unsafe { libc::shutdown(self.ours.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) card: Card<types::Cq>,
    memory: Box<dyn CqMemory>,
    /// How many completions have been written.
    written: Mutex<u32>,
    /// The application's handle of it.
    pub(crate) user: u64,
    channel: Option<Arc<Channel>>,
    notifications: AtomicU32,
    events: Arc<AtomicU32>,
    /// The provider's functions, if it is an extended one.
    pub(crate) start_poll: AtomicUsize,
    pub(crate) next_poll: AtomicUsize,
}

/// Completions that are moved at a time.
const BATCH: usize = 16;

impl Cq {
    pub(crate) fn new(
        card: *mut types::Cq,
        memory: Box<dyn CqMemory>,
        user: u64,
        channel: Option<Arc<Channel>>,
    ) -> Self {
        Self {
            card: Card(card),
            memory,
            written: Mutex::default(),
            user,
            channel,
            notifications: AtomicU32::new(0),
            events: Arc::default(),
            start_poll: AtomicUsize::new(0),
            next_poll: AtomicUsize::new(0),
        }
    }

    /// Writes up to `wanted` completions for the provider to find, and has it poll as many. The
    /// error is an errno value.
    pub(crate) fn poll<T>(
        &self,
        context: &Context,
        wanted: u32,
        real: impl FnOnce() -> T,
    ) -> Result<T, i32> {
        let mut written = lock(&self.written);
        self.fill(context, wanted, &mut written)?;
        if self.memory.tells_polled() {
            // The provider has a lock of its own, which the program may hold between two calls.
            drop(written);
        }
        Ok(real())
    }

    fn fill(&self, context: &Context, wanted: u32, written: &mut u32) -> Result<(), i32> {
        let mut left = wanted.min(self.memory.room(*written));
        while left > 0 {
            let mut found = [Wc::default(); BATCH];
            let room = left.min(BATCH as u32);
            // SAFETY: softrnic's handle, and an array of that size.
            let count = unsafe { calls::poll(self.card.0, room as i32, found.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else { return Err(-count) };
            for wc in &found[..count] {
                let (handle, label) = Label::of(wc.wr_id);
                // It is there as long as its completions are.
                let Ok(qp) = context.qps.get(handle) else { continue };
                for done in qp.memory.done(label, *wc).iter().flatten() {
                    self.memory.write(*written, done);
                    *written = written.wrapping_add(1);
                }
            }
            if count < room as usize {
                break;
            }
            left -= count as u32;
        }
        Ok(())
    }
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) card: Card<types::Qp>,
    pub(crate) memory: Box<dyn QpMemory>,
    handle: u32,
    /// The application's handle of it.
    pub(crate) user: u64,
    state: AtomicU32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    events: Arc<AtomicU32>,
    /// The provider's functions, if it is an extended one.
    pub(crate) start: AtomicUsize,
    pub(crate) complete: AtomicUsize,
    pub(crate) set: [AtomicUsize; 6],
    /// Requests since the last call of `start`, where they are counted.
    pub(crate) made: AtomicU32,
}

#[derive(Default)]
struct Sending {
    /// The beginning of the next send that softrnic does not have yet.
    at: u32,
    request: Request,
}

#[derive(Default)]
struct Receiving {
    at: u32,
    elements: Vec<Sge>,
}

impl Qp {
    pub(crate) fn create(
        context: &Context,
        card: *mut types::Qp,
        (handle, user): (u32, u64),
        memory: Box<dyn QpMemory>,
        [send_cq, recv_cq]: [Arc<Cq>; 2],
    ) -> Arc<Self> {
        let qp = Self {
            card: Card(card),
            memory,
            handle,
            user,
            state: AtomicU32::new(qp_state::RESET),
            send_cq,
            recv_cq,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            events: Arc::default(),
            start: AtomicUsize::new(0),
            complete: AtomicUsize::new(0),
            set: Default::default(),
            made: AtomicU32::new(0),
        };
        context.qps.add(handle, qp)
    }

    pub(crate) fn modify(&self, attr: &QpAttr, mask: i32) -> Result<(), i32> {
        let (mut sending, mut receiving) = (lock(&self.sending), lock(&self.receiving));
        // SAFETY: softrnic's handle.
        check(unsafe { calls::modify_qp(self.card.0, attr, mask) })?;
        if mask & qp_attr::STATE == 0 {
            return Ok(());
        }
        self.state.store(attr.qp_state, SeqCst);
        if attr.qp_state == qp_state::RESET {
            [sending.at, receiving.at] = self.memory.after_reset();
        }
        drop((sending, receiving));
        // They may have been posted before.
        self.take_sends();
        self.take_receives();
        Ok(())
    }

    /// Posts the sends to softrnic that the provider has written since.
    pub(crate) fn take_sends(&self) {
        let mut sending = lock(&self.sending);
        if self.state.load(SeqCst) < qp_state::RTS {
            return;
        }
        let Sending { at, request } = &mut *sending;
        // It is taken before it is executed: one that fails is not flushed as well.
        while let Some(next) = self.memory.send(*at, request) {
            *at = next;
            if !request.is_nothing {
                self.post(request);
            }
        }
    }

    fn post(&self, request: &mut Request) {
        let wr_id = request.label.wr_id(self.handle);
        let inline = Sge {
            addr: request.inline.as_ptr().expose_provenance() as u64,
            length: request.inline.len() as u32,
            lkey: 0,
        };
        let is_inline = request.wr.send_flags & send_flag::INLINE != 0;
        let elements = if is_inline { std::slice::from_ref(&inline) } else { &request.elements };
        let wr = &mut request.wr;
        (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, elements.as_ptr(), elements.len() as i32);
        let mut bad = ptr::null_mut();
        // SAFETY: softrnic's handle, and a request whose elements stay during the call.
        let code = unsafe { calls::post_send(self.card.0, wr, &raw mut bad) };
        if code != 0 {
            say(format_args!("queue pair {}: a send is refused: {code}", self.number()));
        }
    }

    /// Posts the receives to softrnic that the provider has written since.
    pub(crate) fn take_receives(&self) {
        let mut receiving = lock(&self.receiving);
        if self.state.load(SeqCst) == qp_state::RESET {
            return;
        }
        let Receiving { at, elements } = &mut *receiving;
        while let Some(next) = self.memory.receive(*at, elements) {
            let label = Label { index: *at as u16, opcode: 0, is_receive: true };
            let mut wr = RecvWr {
                wr_id: label.wr_id(self.handle),
                next: ptr::null_mut(),
                sg_list: elements.as_ptr(),
                num_sge: elements.len() as i32,
            };
            let mut bad = ptr::null_mut();
            // SAFETY: softrnic's handle, and a request whose elements stay during the call.
            let code = unsafe { calls::post_recv(self.card.0, &raw mut wr, &raw mut bad) };
            if code != 0 {
                say(format_args!("queue pair {}: a receive is refused: {code}", self.number()));
                return;
            }
            *at = next;
        }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: softrnic's handle.
        unsafe { (*self.card.0).qp_num }
    }
}
