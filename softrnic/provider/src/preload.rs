//! Functions that replace those of the C library and of libibverbs.
//!
//! | function | |
//! |---|---|
//! | `ioctl` | carries out commands |
//! | `mmap`, `mmap64` | pages of doorbell registers are ordinary memory |
//! | `close` | for a device: destroys the objects that the program has left |
//! | `socket` | refuses RDMA netlink, so that libibverbs looks for devices in sysfs |
//! | `verbs_set_ops` | hooks the functions for posting and polling that the provider enters |
//! | `verbs_register_driver_*` | has libibverbs find cards of a library that knows them only by the number of their driver |

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Arc, Once, OnceLock};

use ibverbs::calls;
use ibverbs::calls::types::{CqEx, RecvWr, SendWr, Wc, call, op_slot};
use ibverbs::calls::{qp_ex, types};

use crate::objects::{Context, Cq, Hooked, Qp};
use crate::uapi::{COMMAND, Call};
use crate::{PROVIDERS, command, say};

/// Descriptors with this number or a higher one are not looked up as devices.
const DESCRIPTORS: usize = 1 << 16;
/// The open device of each descriptor.
static OPEN: [AtomicPtr<Context>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];

/// The device that is open by this descriptor. The library closes it after all use.
fn context(fd: c_int) -> Option<&'static Context> {
    let slot = OPEN.get(usize::try_from(fd).ok()?)?;
    // SAFETY: NULL, or leaked by `open`; it stays until the descriptor is closed.
    unsafe { slot.load(Acquire).as_ref() }
}

/// The highest descriptor of a device that has been opened.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// A forked child has no devices: the library opens them again. Inherited ones are left as they
/// are, since threads that the child does not have may hold their locks.
extern "C" fn forget() {
    for slot in &OPEN[..=HIGHEST.load(SeqCst)] {
        slot.store(ptr::null_mut(), SeqCst);
    }
}

/// The device in `/dev/infiniband` that a descriptor belongs to.
fn device(fd: c_int) -> Option<usize> {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    path.to_str()?.strip_prefix("/dev/infiniband/uverbs")?.parse().ok()
}

fn open(fd: c_int, call: &mut Call<'_>) -> Result<(), i32> {
    let index = device(fd).ok_or(libc::ENOTTY)?;
    let slot = usize::try_from(fd).ok().and_then(|fd| OPEN.get(fd)).ok_or(libc::EMFILE)?;
    let found = PROVIDERS.iter().find(|(_, driver, _)| *driver == call.driver);
    let Some((_, _, provider)) = found else {
        let known = PROVIDERS.map(|(name, driver, _)| format!("{name} ({driver})")).join(", ");
        let driver = call.driver;
        say(format_args!("driver {driver} of the kernel is not modelled; those are: {known}"));
        return Err(libc::EOPNOTSUPP);
    };
    calls::beneath_a_provider();
    let context = Box::new(Context::open(index, *provider)?);
    command::describe(&context, call)?;
    static FORGET: Once = Once::new();
    // SAFETY: the function may be called at any time.
    FORGET.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forget)) });
    HIGHEST.fetch_max(fd as usize, SeqCst);
    let before = slot.swap(Box::into_raw(context), SeqCst);
    if !before.is_null() {
        // The descriptor was closed by a call that is not replaced.
        // SAFETY: leaked by this function; nobody uses it any more.
        unsafe { Box::from_raw(before) }.close();
    }
    Ok(())
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if request != COMMAND {
        // SAFETY: by the caller.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } as c_int;
    }
    let known = context(fd);
    if known.is_none() && device(fd).is_none() {
        // SAFETY: by the caller.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } as c_int;
    }
    let work = || {
        // SAFETY: a command of the library.
        let mut call = unsafe { Call::new(ptr::with_exposed_provenance_mut(argument)) };
        match known {
            _ if command::is_probe(&call) => Err(libc::ENOSPC),
            None if command::opens(&call) => open(fd, &mut call),
            None => Err(libc::EINVAL),
            Some(context) => command::execute(context, &mut call).inspect(|()| {
                if let Some(qp) = command::queue_pair(context, &call) {
                    hook_cq(&qp.send_cq);
                    hook_cq(&qp.recv_cq);
                    hook_qp(&qp);
                }
            }),
        }
    };
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    match done.unwrap_or(Err(libc::EIO)) {
        Ok(()) => 0,
        Err(code) => {
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = code };
            -1
        }
    }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // The number may be another file's by now: `close_range` and `dup2` do not come by here.
    let is_memory = fd >= 0
        && flags & libc::MAP_ANONYMOUS == 0
        && context(fd).is_some()
        && device(fd).is_some();
    let (protection, flags, fd, offset): (c_int, c_int, c_int, c_long) = if is_memory {
        let readable = protection | libc::PROT_READ;
        (readable, flags | libc::MAP_ANONYMOUS, -1, 0)
    } else {
        (protection, flags, fd, offset)
    };
    // SAFETY: by the caller.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, at, length, protection, flags, fd, offset) };
    ptr::with_exposed_provenance_mut(mapped as usize)
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: by the caller; offsets have 64 bits in either.
    unsafe { mmap(at, length, protection, flags, fd, offset) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let Some(slot) = usize::try_from(fd).ok().and_then(|fd| OPEN.get(fd))
        && context(fd).is_some_and(Context::is_ours)
    {
        let was = slot.swap(ptr::null_mut(), SeqCst);
        if !was.is_null() {
            // SAFETY: leaked by `open`; nobody uses it any more.
            unsafe { Box::from_raw(was) }.close();
        }
    }
    // SAFETY: by the caller.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    const RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == RDMA {
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = libc::EPROTONOSUPPORT };
        return -1;
    }
    // SAFETY: by the caller.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// A private function of libibverbs itself. Programs may have loaded it with RTLD_LOCAL, so it is
/// looked up by the library's name; the version of its private functions is a number.
fn private(name: &CStr) -> Option<*mut c_void> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: loads nothing.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
    if library.is_null() {
        return None;
    }
    (14..100).find_map(|version| {
        let version = format!("IBVERBS_PRIVATE_{version}\0");
        let version = version.as_ptr().cast::<c_char>();
        // SAFETY: an open library and C strings.
        let found = unsafe { libc::dlvsym(library, name.as_ptr(), version) };
        (!found.is_null()).then_some(found)
    })
}

type SetOps = unsafe extern "C" fn(*mut c_void, *const c_void);

fn real_set_ops() -> Option<SetOps> {
    static FOUND: OnceLock<Option<SetOps>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = private(c"verbs_set_ops")?;
        // SAFETY: the function's type since there are providers of their own (rdma-core 17).
        Some(unsafe { transmute::<*mut c_void, SetOps>(found) })
    })
}

/// # Safety
/// As for libibverbs' own.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn verbs_set_ops(verbs: *mut c_void, functions: *const c_void) {
    let Some(real) = real_set_ops() else {
        return say(format_args!(
            "this libibverbs has no verbs_set_ops that is known; rdma-core 17 or newer is needed"
        ));
    };
    // SAFETY: by the caller.
    unsafe {
        real(verbs, functions);
        if let Some(inner) = inner(verbs)
            && let Some(context) = context((*inner).cmd_fd)
        {
            hook(&context.hooked, &mut (*inner).ops);
        }
    }
}

/// A driver library, as it registers itself; so since rdma-core 58 at least.
#[repr(C)]
#[derive(Clone, Copy)]
struct Driver {
    name: *const c_char,
    abi: [u32; 2],
    cards: *const Match,
    functions: [usize; 6],
}

/// How libibverbs knows a card of its.
#[repr(C)]
#[derive(Clone, Copy)]
struct Match {
    data: usize,
    pattern: *const c_char,
    numbers: [u16; 2],
    kind: u8,
}

type Register = unsafe extern "C" fn(*const Driver);

/// # Safety
/// `driver` stays for ever.
unsafe fn register(name: &CStr, driver: *const Driver) {
    const LAST: u8 = 0;
    const MODALIAS: u8 = 2;
    let Some(real) = private(name) else {
        return say(format_args!("this libibverbs has no {}", name.to_string_lossy()));
    };
    // SAFETY: the function's type; a driver as the library passes it.
    let (real, mut known) = unsafe { (transmute::<*mut c_void, Register>(real), *driver) };
    // SAFETY: the name is a C string.
    let name = unsafe { CStr::from_ptr(known.name) };
    let found = PROVIDERS.iter().find(|(provider, ..)| name.to_bytes() == provider.as_bytes());
    let Some(alias) = found.and_then(|(_, _, provider)| provider.alias()) else {
        // SAFETY: by the caller.
        return unsafe { real(driver) };
    };
    let by = |kind, pattern| Match { data: 0, pattern, numbers: [0; 2], kind };
    known.cards =
        Box::leak(Box::new([by(MODALIAS, alias.as_ptr()), by(LAST, ptr::null())])).as_ptr();
    // SAFETY: it stays for ever.
    unsafe { real(Box::leak(Box::new(known))) };
}

/// The function has the version of the interface for driver libraries in its name. From the first
/// of these on there are libraries that know their cards only by the number of the driver.
macro_rules! register {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for libibverbs' own.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(driver: *const Driver) {
            let name = const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                }
            };
            // SAFETY: by the caller.
            unsafe { register(name, driver) };
        }
    )*};
}
register!(verbs_register_driver_59 verbs_register_driver_64 verbs_register_driver_65);

/// The public part of a context. What precedes it grows from release to release; its last word is
/// the length of the whole.
///
/// # Safety
/// `verbs` is a context of libibverbs.
unsafe fn inner(verbs: *mut c_void) -> Option<*mut types::Context> {
    const MOST: usize = 128;
    let word = size_of::<usize>();
    // SAFETY: the search ends before the public part, whose length is known.
    let end = (1..MOST).find(|end| unsafe {
        verbs.cast::<usize>().add(end - 1).read() == end * word + size_of::<types::Context>()
    })?;
    Some(verbs.wrapping_add(end * word).cast())
}

/// Puts hooks in front of the provider's functions. A provider enters them in several steps.
fn hook(hooked: &Hooked, ops: &mut [usize; 32]) {
    let hooks = [
        (op_slot::POST_SEND, post_send as *const () as usize, &hooked.post_send),
        (op_slot::POST_RECV, post_recv as *const () as usize, &hooked.post_recv),
        (op_slot::POLL_CQ, poll_cq as *const () as usize, &hooked.poll_cq),
        (op_slot::REQ_NOTIFY_CQ, req_notify_cq as *const () as usize, &hooked.req_notify_cq),
    ];
    for (slot, hook, real) in hooks {
        replace(&mut ops[slot], hook, real);
    }
}

/// Puts `hook` in the place of a function, if there is one, and keeps that.
fn replace(place: &mut usize, hook: usize, real: &AtomicUsize) {
    if *place != 0 && *place != hook {
        real.store(*place, SeqCst);
        *place = hook;
    }
}

type PostSend = unsafe extern "C" fn(*mut types::Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut types::Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut types::Cq, c_int, *mut Wc) -> c_int;
type StartPoll = unsafe extern "C" fn(*mut CqEx, *mut c_void) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut CqEx) -> c_int;
type ReqNotify = unsafe extern "C" fn(*mut types::Cq, c_int) -> c_int;
type WrStart = unsafe extern "C" fn(*mut types::Qp);
type WrComplete = unsafe extern "C" fn(*mut types::Qp) -> c_int;
/// Arguments after the queue pair are numbers of up to 64 bits, or addresses, and at most three.
type WrSet = unsafe extern "C" fn(*mut types::Qp, usize, usize, usize);

unsafe extern "C" fn post_send(
    qp: *mut types::Qp,
    list: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: by the caller. Who has a queue pair has a context with hooks.
    unsafe {
        let Some(context) = context((*(*qp).context).cmd_fd) else { return libc::ENODEV };
        let real: PostSend = transmute(context.hooked.post_send.load(Relaxed));
        let code = real(qp, list, bad);
        if let Ok(found) = context.qps.get((*qp).handle) {
            if let Some(counts) = found.memory.counts() {
                counts.posted(false, count(list, code, bad, |wr| (*wr).next));
            }
            found.take_sends();
        }
        code
    }
}

/// How many requests of a list the provider has taken: all, or those before the bad one.
///
/// # Safety
/// The list, its result and `bad` are those of a call that has posted it; `next` is right for it.
unsafe fn count<T>(
    list: *mut T,
    code: c_int,
    bad: *mut *mut T,
    next: unsafe fn(*mut T) -> *mut T,
) -> u32 {
    // SAFETY: by the caller; a provider that refuses a request says which.
    let end = if code == 0 { ptr::null_mut() } else { unsafe { *bad } };
    let (mut at, mut count) = (list, 0);
    while !at.is_null() && at != end {
        // SAFETY: by the caller.
        at = unsafe { next(at) };
        count += 1;
    }
    count
}

unsafe extern "C" fn post_recv(
    qp: *mut types::Qp,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: as for `post_send`.
    unsafe {
        let Some(context) = context((*(*qp).context).cmd_fd) else { return libc::ENODEV };
        let real: PostRecv = transmute(context.hooked.post_recv.load(Relaxed));
        let code = real(qp, list, bad);
        if let Ok(found) = context.qps.get((*qp).handle) {
            if let Some(counts) = found.memory.counts() {
                counts.posted(true, count(list, code, bad, |wr| (*wr).next));
            }
            found.take_receives();
        }
        code
    }
}

/// The completion queue of a hook, and its context. The error is an errno value.
///
/// # Safety
/// `cq` is the caller's handle.
unsafe fn queue_of(cq: *const types::Cq) -> Result<(&'static Context, Arc<Cq>), i32> {
    // SAFETY: by the caller.
    let (fd, handle) = unsafe { ((*(*cq).context).cmd_fd, (*cq).handle) };
    let context = context(fd).ok_or(libc::ENODEV)?;
    Ok((context, context.cqs.get(handle)?))
}

/// Has the provider poll for so many completions, by `real` of the queue and its context.
///
/// # Safety
/// `cq` is the caller's handle, of a queue whose functions are hooked.
unsafe fn poll(
    cq: *const types::Cq,
    wanted: u32,
    real: impl FnOnce(&Context, &Cq) -> c_int,
) -> Result<c_int, i32> {
    // SAFETY: by the caller.
    let (context, found) = unsafe { queue_of(cq) }?;
    found.poll(context, wanted, || real(context, &found))
}

unsafe extern "C" fn poll_cq(cq: *mut types::Cq, room: c_int, out: *mut Wc) -> c_int {
    let real = |context: &Context, _: &Cq| {
        // SAFETY: the provider's function, and the caller's arguments.
        unsafe { transmute::<usize, PollCq>(context.hooked.poll_cq.load(Relaxed))(cq, room, out) }
    };
    // SAFETY: as for `post_send`.
    unsafe { poll(cq, room.max(0) as u32, real) }.unwrap_or_else(|code| -code)
}

unsafe extern "C" fn start_poll(cq: *mut CqEx, attributes: *mut c_void) -> c_int {
    let real = |_: &Context, found: &Cq| {
        // SAFETY: as for `poll_cq`.
        unsafe { transmute::<usize, StartPoll>(found.start_poll.load(Relaxed))(cq, attributes) }
    };
    // SAFETY: as for `post_send`.
    unsafe { poll(cq.cast(), 1, real) }.unwrap_or_else(|code| code)
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    let real = |_: &Context, found: &Cq| {
        // SAFETY: as for `poll_cq`.
        unsafe { transmute::<usize, NextPoll>(found.next_poll.load(Relaxed))(cq) }
    };
    // SAFETY: as for `post_send`.
    unsafe { poll(cq.cast(), 1, real) }.unwrap_or_else(|code| code)
}

unsafe extern "C" fn req_notify_cq(cq: *mut types::Cq, is_solicited: c_int) -> c_int {
    // SAFETY: as for `post_send`.
    unsafe {
        let (context, found) = match queue_of(cq) {
            Ok(found) => found,
            Err(code) => return code,
        };
        let real: ReqNotify = transmute(context.hooked.req_notify_cq.load(Relaxed));
        match real(cq, is_solicited) {
            0 => calls::req_notify_cq(found.card.0, is_solicited),
            code => code,
        }
    }
}

/// Each extended completion queue has functions of its own to look at completions one by one. The
/// application's word for it is its handle.
fn hook_cq(cq: &Cq) {
    let handle = ptr::with_exposed_provenance_mut::<CqEx>(cq.user as usize);
    // SAFETY: the handle. A provider has the same structure for all queues, and zeros behind the
    // public part of one that is not extended.
    let calls = unsafe { &mut (*handle).calls };
    replace(&mut calls[call::START_POLL], start_poll as *const () as usize, &cq.start_poll);
    replace(&mut calls[call::NEXT_POLL], next_poll as *const () as usize, &cq.next_poll);
}

/// The functions of an extended queue pair.
///
/// # Safety
/// `qp` is the handle of a queue pair, of a provider that has the same structure for all.
unsafe fn calls_of<'a>(qp: *mut types::Qp) -> &'a mut qp_ex::Calls {
    // SAFETY: by the caller.
    unsafe { &mut (*qp.add(1).cast::<qp_ex::QpExTail>()).calls }
}

/// The same for an extended queue pair, which makes requests call by call. The function that posts
/// them changes with the state of the queue pair: each list of requests looks for it.
fn hook_qp(qp: &Qp) {
    // SAFETY: the handle; otherwise as for `hook_cq`.
    let calls = unsafe { calls_of(ptr::with_exposed_provenance_mut(qp.user as usize)) };
    replace(&mut calls[qp_ex::call::START], wr_start as *const () as usize, &qp.start);
    if qp.memory.counts().is_some() {
        for ((place, set), real) in SET.into_iter().zip(&qp.set) {
            replace(&mut calls[place], set as usize, real);
        }
    }
}

/// The functions that finish a request of a list.
static SET: [(usize, WrSet); 6] = [
    (qp_ex::call::BIND_MW, wr_set::<0>),
    (qp_ex::call::LOCAL_INV, wr_set::<1>),
    (qp_ex::call::SET_INLINE_DATA, wr_set::<2>),
    (qp_ex::call::SET_INLINE_DATA_LIST, wr_set::<3>),
    (qp_ex::call::SET_SGE, wr_set::<4>),
    (qp_ex::call::SET_SGE_LIST, wr_set::<5>),
];

unsafe extern "C" fn wr_set<const AT: usize>(
    qp: *mut types::Qp,
    first: usize,
    second: usize,
    third: usize,
) {
    // SAFETY: as for `post_send`.
    unsafe {
        let Some(found) = pair_of(qp) else { return };
        transmute::<usize, WrSet>(found.set[AT].load(Relaxed))(qp, first, second, third);
        found.made.fetch_add(1, Relaxed);
    }
}

/// # Safety
/// `qp` is the caller's handle.
unsafe fn pair_of(qp: *const types::Qp) -> Option<Arc<Qp>> {
    // SAFETY: by the caller.
    let (fd, handle) = unsafe { ((*(*qp).context).cmd_fd, (*qp).handle) };
    context(fd)?.qps.get(handle).ok()
}

unsafe extern "C" fn wr_start(qp: *mut types::Qp) {
    // SAFETY: as for `post_send`.
    unsafe {
        let Some(found) = pair_of(qp) else { return };
        let real: WrStart = transmute(found.start.load(Relaxed));
        // From here on until the end of the list no other thread is here.
        real(qp);
        found.made.store(0, Relaxed);
        let place = &mut calls_of(qp)[qp_ex::call::COMPLETE];
        replace(place, wr_complete as *const () as usize, &found.complete);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut types::Qp) -> c_int {
    // SAFETY: as for `post_send`.
    unsafe {
        let Some(found) = pair_of(qp) else { return libc::ENODEV };
        let real: WrComplete = transmute(found.complete.load(Relaxed));
        let code = real(qp);
        if let Some(counts) = found.memory.counts().filter(|_| code == 0) {
            counts.posted(false, found.made.load(Relaxed));
        }
        found.take_sends();
        code
    }
}
