//! The CUDA driver, as far as copies need it, found at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};

use crate::copy::transfer::Direction;
use crate::host::lock;
use crate::limits::JOBS;

/// Result of a driver call; 0 is success.
pub(crate) type Code = c_uint;
pub(crate) const SUCCESS: Code = 0;
/// The work that an event stands for is not over.
pub(crate) const NOT_READY: Code = 600;
/// The driver has shut down, as it does at the end of a process.
pub(crate) const DEINITIALIZED: Code = 4;
const ALREADY_REGISTERED: Code = 712;

const ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const ATTRIBUTE_BUFFER_ID: c_int = 7;
const ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const HOST_REGISTER_PORTABLE: c_uint = 1;
const CAPTURE_MODE_RELAXED: c_int = 2;

/// The driver's library.
pub(crate) const LIBRARY: &CStr = c"libcuda.so.1";

/// An opaque object of the driver.
pub(crate) type Handle = *mut c_void;

/// A table of the driver's functions.
macro_rules! driver {
    ($(#[$doc:meta])* $table:ident { $($field:ident: $symbol:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl $table {
            /// `None`: the driver has not all of them.
            pub(crate) fn load(library: Handle) -> Option<Self> {
                Some(Self { $($field: {
                    // SAFETY: a valid handle and a C string.
                    let found = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: the driver's documented type of that symbol.
                    unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($arg),*) -> Code>(found) }
                },)* })
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($table))
            }
        }
    };
}
pub(crate) use driver;

driver! {
    /// What copies need of the driver.
    Cuda {
        pointer_attribute: c"cuPointerGetAttribute" (*mut c_void, c_int, u64);
        device_get: c"cuDeviceGet" (*mut c_int, c_int);
        retain: c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        push: c"cuCtxPushCurrent_v2" (Handle);
        pop: c"cuCtxPopCurrent_v2" (*mut Handle);
        priorities: c"cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
        stream_create: c"cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
        event_create: c"cuEventCreate" (*mut Handle, c_uint);
        event_record: c"cuEventRecord" (Handle, Handle);
        event_query: c"cuEventQuery" (Handle);
        to_host: c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
        to_device: c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
        host_register: c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        allocate: c"cuMemAlloc_v2" (*mut u64, usize);
        exchange_capture_mode: c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
        error_name: c"cuGetErrorName" (Code, *mut *const c_char);
    }
}

/// How many libraries this process has loaded so far.
fn loads() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's own record, and the counter that was passed to it.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0u64;
    // SAFETY: the function is called before this returns, with the counter.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}

/// The driver's library, if this process has loaded it; else null.
pub(crate) fn loaded() -> Handle {
    // SAFETY: a C string; the library is only looked for, not loaded.
    unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}

/// Turns a result into an error.
pub(crate) fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

impl Cuda {
    /// The driver that this process uses already, if it does: a pointer to a GPU's memory can come
    /// from nowhere else.
    pub(crate) fn in_use() -> Option<&'static Self> {
        static DRIVER: OnceLock<Option<Cuda>> = OnceLock::new();
        // Looking for what is not there goes over folders, and is done for each registration: so
        // only after something was loaded.
        static MISSED_AT: AtomicU64 = AtomicU64::new(u64::MAX);
        let loads = loads();
        if MISSED_AT.load(Relaxed) == loads {
            return None;
        }
        let library = loaded();
        if library.is_null() {
            MISSED_AT.store(loads, Relaxed);
            return None;
        }
        DRIVER.get_or_init(|| Self::load(library)).as_ref()
    }

    /// The ordinal of the GPU whose memory is at `addr`; `None`: it is the host's, or nobody's.
    pub(crate) fn owner_of(&self, addr: u64) -> Option<usize> {
        let (mut kind, mut ordinal): (c_uint, c_int) = (0, -1);
        // SAFETY: writes one integer each.
        let codes = unsafe {
            [
                (self.pointer_attribute)((&raw mut kind).cast(), ATTRIBUTE_MEMORY_TYPE, addr),
                (self.pointer_attribute)((&raw mut ordinal).cast(), ATTRIBUTE_DEVICE_ORDINAL, addr),
            ]
        };
        let is_device = codes == [SUCCESS; 2] && kind == MEMORY_TYPE_DEVICE;
        usize::try_from(ordinal).ok().filter(|_| is_device)
    }

    /// A number that the allocation at `addr` has and no other one of this process, also no later
    /// one at this address. `None`: the driver gives it none.
    pub(crate) fn allocation_id(&self, addr: u64) -> Option<u64> {
        let mut id = 0u64;
        // SAFETY: writes one integer of 64 bits.
        let code =
            unsafe { (self.pointer_attribute)((&raw mut id).cast(), ATTRIBUTE_BUFFER_ID, addr) };
        (code == SUCCESS && id != 0).then_some(id)
    }

    /// The primary context of a GPU, held for good.
    pub(crate) fn primary_context(&self, ordinal: usize) -> Result<Handle, Code> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: writes one value each.
        unsafe {
            check((self.device_get)(&raw mut device, ordinal as c_int))?;
            check((self.retain)(&raw mut context, device))?;
        }
        Ok(context)
    }

    /// Works in `context` from here on, until the guard is dropped; a capture of this thread's work
    /// is not disturbed.
    pub(crate) fn enter(&'static self, context: Handle) -> Result<Entered, Code> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: a context that is held for good; reads and writes one integer.
        unsafe {
            check((self.push)(context))?;
            (self.exchange_capture_mode)(&raw mut mode);
        }
        Ok(Entered { cuda: self, mode })
    }

    /// A stream that neither waits for the application's nor holds them up. Inside a context.
    pub(crate) fn stream(&self) -> Result<Handle, Code> {
        let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
        // SAFETY: writes one value each.
        unsafe {
            check((self.priorities)(&raw mut least, &raw mut greatest))?;
            check((self.stream_create)(&raw mut stream, STREAM_NON_BLOCKING, greatest))?;
        }
        Ok(stream)
    }

    /// An event. Inside a context.
    pub(crate) fn event(&self) -> Result<Handle, Code> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes one value.
        check(unsafe { (self.event_create)(&raw mut event, EVENT_DISABLE_TIMING) })?;
        Ok(event)
    }

    /// Has GPUs reach host memory without detours. Inside a context.
    ///
    /// # Safety
    /// `[at, at + bytes)` stays mapped for good.
    pub(crate) unsafe fn register(&self, at: *mut u8, bytes: usize) -> Result<(), Code> {
        // SAFETY: by the caller.
        match unsafe { (self.host_register)(at.cast(), bytes, HOST_REGISTER_PORTABLE) } {
            ALREADY_REGISTERED => Ok(()),
            code => check(code),
        }
    }

    /// `bytes` of the GPU's memory. Inside a context.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Code> {
        let mut at = 0;
        // SAFETY: writes one value.
        check(unsafe { (self.allocate)(&raw mut at, bytes) })?;
        Ok(at)
    }

    /// Begins a copy from the GPU to `stage` (out) or back, which is over when `event` is. Inside a
    /// context.
    ///
    /// # Safety
    /// Both ranges stay valid until the event is over.
    pub(crate) unsafe fn copy(
        &self,
        (addr, bytes): (u64, usize),
        stage: *mut u8,
        is_out: bool,
        stream: Handle,
        event: Handle,
    ) -> Result<(), Code> {
        // SAFETY: by the caller.
        unsafe {
            check(if is_out {
                (self.to_host)(stage.cast(), addr, bytes, stream)
            } else {
                (self.to_device)(addr, stage.cast(), bytes, stream)
            })?;
            check((self.event_record)(event, stream))
        }
    }

    /// Whether what `event` stands for is over.
    pub(crate) fn is_over(&self, event: Handle) -> Result<bool, Code> {
        // SAFETY: an event that is never destroyed.
        match unsafe { (self.event_query)(event) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            code => Err(code),
        }
    }

    /// What the driver calls a result.
    pub(crate) fn name(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: writes one pointer, to a string of the driver's own.
        let is_known =
            unsafe { (self.error_name)(code, &raw mut name) } == SUCCESS && !name.is_null();
        if !is_known {
            return format!("CUDA error {code}");
        }
        // SAFETY: not null (checked), and a C string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// This thread works in a context.
#[derive(Debug)]
pub(crate) struct Entered {
    cuda: &'static Cuda,
    mode: c_int,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: undoes what `enter` did; writes one value.
        unsafe {
            (self.cuda.exchange_capture_mode)(&raw mut self.mode);
            (self.cuda.pop)(&raw mut context);
        }
    }
}

// A GPU, with all that copies need made ready beforehand.
//
// NCCL's kernels spin until our data arrives: whatever waits for the device would wait for ever. So
// streams, events and pinned memory are there, and have been used once, before a region is
// registered; afterwards there are only asynchronous copies, and looks at events. The streams have
// the highest priority, not to queue behind such a kernel.

/// GPUs of a machine that we know what to do with.
const CARDS: usize = 64;
/// Each job may have a copy under way at either end, and both ends may be this process.
const EVENTS: usize = 4 * JOBS;

/// One GPU.
#[derive(Debug)]
pub(crate) struct Card {
    cuda: &'static Cuda,
    context: Handle,
    /// From the GPU, to the GPU.
    streams: [Handle; 2],
    free_events: Mutex<Vec<Handle>>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

static READY: [OnceLock<Card>; CARDS] = [const { OnceLock::new() }; CARDS];
/// Serialises making cards ready.
static MAKING: Mutex<()> = Mutex::new(());

/// The GPU `ordinal`, if it has been made ready.
pub(crate) fn get(ordinal: usize) -> Option<&'static Card> {
    READY.get(ordinal)?.get()
}

/// The GPU `ordinal`, ready for copies between its memory and the `stage`.
///
/// # Safety
/// The `stage`, an address and bytes, is never unmapped and has storage.
pub(crate) unsafe fn make_ready(
    stage: (*mut u8, usize),
    cuda: &'static Cuda,
    ordinal: usize,
) -> Result<&'static Card, String> {
    let place = READY
        .get(ordinal)
        .ok_or_else(|| format!("GPU {ordinal} is beyond the {CARDS} that can be used"))?;
    let _making = lock(&MAKING);
    if let Some(card) = place.get() {
        return Ok(card);
    }
    let describe = |code: Code| format!("cannot use GPU {ordinal}: {}", cuda.name(code));
    // SAFETY: by the caller.
    let card = unsafe { Card::new(stage, cuda, ordinal) }.map_err(describe)?;
    card.warm_up().map_err(describe)?;
    Ok(place.get_or_init(|| card))
}

impl Card {
    /// # Safety
    /// As for [`make_ready`].
    unsafe fn new(
        (stage, bytes): (*mut u8, usize),
        cuda: &'static Cuda,
        ordinal: usize,
    ) -> Result<Self, Code> {
        let context = cuda.primary_context(ordinal)?;
        let _entered = cuda.enter(context)?;
        // SAFETY: by the caller.
        unsafe { cuda.register(stage, bytes) }?;
        let streams = [cuda.stream()?, cuda.stream()?];
        let events: Result<Vec<_>, _> = (0..EVENTS).map(|_| cuda.event()).collect();
        Ok(Self { cuda, context, streams, free_events: Mutex::new(events?) })
    }

    /// One copy each way: what the driver does at the first of a kind is done now.
    fn warm_up(&self) -> Result<(), Code> {
        const BYTES: usize = 4096;
        let memory = {
            let _entered = self.cuda.enter(self.context)?;
            self.cuda.allocate(BYTES)?
        };
        let mut buffer = [0u8; BYTES];
        for direction in [Direction::In, Direction::Out] {
            // SAFETY: both buffers outlive the wait below.
            let ticket = unsafe { self.begin((memory, BYTES), direction, buffer.as_mut_ptr()) }?;
            while !ticket.is_over()? {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Begins a copy between `(address, bytes)` of the GPU and `stage`.
    ///
    /// # Safety
    /// Both stay valid until the ticket is over.
    pub(crate) unsafe fn begin(
        &self,
        theirs: (u64, usize),
        direction: Direction,
        stage: *mut u8,
    ) -> Result<Flight<'_>, Code> {
        let _entered = self.cuda.enter(self.context)?;
        let event = lock(&self.free_events).pop();
        let event = event.map_or_else(|| self.cuda.event(), Ok)?;
        let flight = Flight { card: self, event };
        let stream = self.streams[usize::from(direction == Direction::In)];
        // SAFETY: by the caller.
        unsafe { self.cuda.copy(theirs, stage, direction == Direction::Out, stream, event) }?;
        Ok(flight)
    }

    /// Works in its context from here on, until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered, Code> {
        self.cuda.enter(self.context)
    }

    pub(crate) fn name_of(&self, code: Code) -> String {
        self.cuda.name(code)
    }
}

/// A copy that a GPU has been asked for.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    card: &'a Card,
    event: Handle,
}

impl Flight<'_> {
    pub(crate) fn is_over(&self) -> Result<bool, Code> {
        let _entered = self.card.cuda.enter(self.card.context)?;
        self.card.cuda.is_over(self.event)
    }

    pub(crate) fn card(&self) -> &Card {
        self.card
    }
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Flight<'_> {}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        lock(&self.card.free_events).push(self.event);
    }
}
