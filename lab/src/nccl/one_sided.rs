//! The one-sided operations of NCCL's built-in InfiniBand transport: puts, signals, gets, flushes.
//!
//! They have a table of their own, which NCCL calls RMA (GIN in version 12). Written from the facts
//! of NCCL's public headers: the order of slots and the types of arguments.
//!
//! | version | NCCL | differs from the one before |
//! |---|---|---|
//! | 12 | 2.29 | operations belong to the communicator; `connect` makes the queue pairs |
//! | 14 | 2.30 | `createContext` makes the queue pairs; gets and flushes |
//! | 15 | 2.31 | flags of an operation: the next one follows at once |
//! | 16 | 2.32 | properties of a communicator |
//!
//! Version 13 was built into no release that is known here.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::nccl::release::NcclRelease;
use crate::nccl::shared_object::{SharedObject, data_size, local_symbols};
use crate::nccl::{abi, debug_log};
use crate::system::host::Maps;
use crate::transport::buffer::Buffer;
use crate::transport::listener::Handle;

/// Of the communicator, to `init`: any number.
const COMM_ID: u64 = 77;
/// No relaxed ordering; and for words that only grow.
pub(crate) const STRICT: u64 = 1;
pub(crate) const ONLY_GROWS: u64 = 2;
/// What a signal does.
pub(crate) const INCREMENT: u32 = 1;
pub(crate) const ADD: u32 = 2;
/// What `getProperties` reports if a thread of the host starts the operations.
const HOST_STARTS: u32 = 2;

type Pointer = *mut c_void;
type Place = *mut *mut c_void;

/// The slots by their places in version 14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Slot {
    Init = 1,
    Devices = 2,
    GetProperties = 3,
    Listen = 4,
    CreateContext = 6,
    RegMrSym = 7,
    DeregMrSym = 9,
    DestroyContext = 10,
    CloseColl = 11,
    CloseListen = 12,
    Iput = 13,
    IputSignal = 14,
    Iget = 15,
    Iflush = 16,
    Test = 17,
    Finalize = 20,
}

/// The table, and the function beneath its `connect`, which itself needs a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    version: u32,
    slots: &'static [usize],
    connect: usize,
}

/// Calls a slot; `Ok` if it returns `ncclSuccess`.
macro_rules! call {
    ($table:expr, $slot:ident ( $($value:expr => $type:ty),* )) => {{
        let table: Table = $table;
        match table.at(Slot::$slot) {
            None => Err(Error::Missing(concat!("a transport with ", stringify!($slot)))),
            // SAFETY: the slot has these arguments in the table's version; pointers live as long as
            // the call, and objects come from the same table.
            Some(address) => checked(stringify!($slot), unsafe {
                transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address)($($value),*)
            }),
        }
    }};
}

/// Begins an operation with the arguments of version 12 and those that later ones add.
macro_rules! begin {
    ($group:expr, $slot:ident ( $($value:expr => $type:ty),* ),
        [$($later:expr => $added:ty),*]) => {{
        let (group, mut raw): (&Group, Pointer) = ($group, null_mut());
        let (follows, table) = (u32::from(group.follows), group.table);
        match table.version {
            12 => call!(table, $slot(group.coll => Pointer, $($value => $type,)* 0 => c_int,
                &raw mut raw => Place)),
            14 => call!(table, $slot(group.operations => Pointer, 0 => c_int, $($value => $type,)*
                $($later => $added,)* &raw mut raw => Place)),
            _ => call!(table, $slot(group.operations => Pointer, 0 => c_int, $($value => $type,)*
                $($later => $added,)* follows => u32, &raw mut raw => Place)),
        }?;
        begun(raw, stringify!($slot))
    }};
}

fn checked(call: &'static str, code: u32) -> Result<()> {
    match code {
        abi::ncclSuccess => Ok(()),
        code => Err(Error::Call { transport: "one-sided operations".into(), call, code }),
    }
}

impl Table {
    /// That of the libnccl.so.2 at `path`; and the transport's name, and how many functions were
    /// found in that file.
    ///
    /// # Errors
    /// [`Error::Refused`] for a release without one, or for a table of another shape; else as
    /// [`NcclRelease::of`] and [`local_symbols`].
    pub(crate) fn open(path: &Path) -> Result<(Self, String, usize)> {
        let object = SharedObject::open(path)?;
        let release = NcclRelease::of(&object)?;
        let Some(version) = release.one_sided() else {
            let words =
                format!("NCCL {release} has no one-sided operations; 2.29.7 and later have");
            return Err(Error::Refused(words));
        };
        let (name, connect) = match version {
            12 => ("ncclGinIbProxy", "_Z16ncclGinIbConnectPvPS_iiiiS_S0_"),
            _ => ("ncclRmaIbProxy", "_Z16ncclGinIbConnectPvPS_iiS_S0_"),
        };
        let count = match version {
            12 => 19,
            16 => 22,
            _ => 21,
        };
        let size = data_size(path, name)?;
        if size != count * 8 {
            return Err(Error::Refused(format!("{name} has {size} bytes, not {}", count * 8)));
        }
        let [table, connect] = local_symbols(path, [name, connect])?.map(|value| object.at(value));
        // SAFETY: the data symbol has so many pointers (checked), is aligned, and stays mapped.
        let slots = unsafe { std::slice::from_raw_parts(table as *const usize, count as usize) };
        let maps = Maps::read()?;
        let functions: Vec<_> = slots[1..].iter().filter(|address| **address != 0).collect();
        if !functions.iter().all(|address| maps.is_in(**address, path)) {
            return Err(Error::Refused(format!("a function of {name} lies in another file")));
        }
        // SAFETY: the first slot of each version is a C string of the library's.
        let name = unsafe { CStr::from_ptr(slots[0] as *const c_char) };
        let name = name.to_string_lossy().into_owned();
        Ok((Self { version, slots, connect }, name, functions.len()))
    }

    pub(crate) fn version(self) -> u32 {
        self.version
    }

    /// Where the function of a slot is; `None`: there is none.
    fn at(self, slot: Slot) -> Option<usize> {
        let place = match self.version {
            12 if matches!(slot, Slot::Iget | Slot::Iflush) => return None,
            12 if slot > Slot::Iflush => slot as usize - 2,
            16 if slot > Slot::Devices => slot as usize + 1,
            _ => slot as usize,
        };
        Some(self.slots[place]).filter(|address| *address != 0)
    }
}

/// Memory that is registered at all ranks.
#[derive(Debug)]
pub(crate) struct Window {
    raw: Pointer,
    pub(crate) memory: Arc<Buffer>,
}

/// An operation that has begun.
#[derive(Debug)]
#[must_use]
pub(crate) struct Begun(Pointer);

/// A range of a window here, one of a window there, and who there is; offsets are bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move<'w> {
    pub(crate) here: (&'w Window, u64),
    pub(crate) there: (&'w Window, u64),
    pub(crate) size: usize,
}

/// What is added to a word of a window there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signal<'w> {
    pub(crate) word: (&'w Window, u64),
    pub(crate) value: u64,
    pub(crate) operation: u32,
}

/// Device 0 of the transport, and what listens on it until all ranks are connected.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) table: Table,
    context: Pointer,
    raw: Pointer,
    pub(crate) handle: Handle,
}

/// Two ranks that are connected, each with itself too. Its objects are freed by
/// [`Self::close`] alone.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) table: Table,
    context: Pointer,
    coll: Pointer,
    /// Where operations begin: before version 14 the communicator itself.
    operations: Pointer,
    /// Whether [`Move`]s tell the transport that the next one follows at once.
    pub(crate) follows: bool,
}

impl Listening {
    /// Starts the transport.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Contract`] if it has no device, or one of another kind.
    pub(crate) fn begin(table: Table, device: i32) -> Result<Self> {
        let (mut context, mut count, mut properties) = (null_mut(), 0, [0_u64; 32]);
        call!(table, Init(&raw mut context => Place, COMM_ID => u64,
            debug_log::callback() => abi::ncclDebugLogger_t))?;
        call!(table, Devices(&raw mut count => *mut c_int))?;
        if count <= device {
            let words = format!("device {device} is one of {count}");
            return Err(Error::Contract(words));
        }
        call!(table, GetProperties(device => c_int, properties.as_mut_ptr() => *mut u64))?;
        // At offset 56 in both versions of the properties.
        let kind = properties[7] as u32;
        if kind != HOST_STARTS {
            return Err(Error::Contract(format!("netDeviceType is {kind}, not {HOST_STARTS}")));
        }
        let (mut handle, mut raw) = (Handle([0; _]), null_mut());
        call!(table, Listen(context => Pointer, device => c_int,
            handle.0.as_mut_ptr().cast() => Pointer, &raw mut raw => Place))?;
        Ok(Self { table, context, raw, handle })
    }

    /// Connects both ranks, which call it at the same time.
    pub(crate) fn connect(self, rank: usize, theirs: Handle) -> Result<Group> {
        let Self { table, context, raw, handle } = self;
        let mut all = [handle, theirs];
        if rank == 1 {
            all.reverse();
        }
        let mut places = all.each_mut().map(|handle| handle.0.as_mut_ptr().cast::<c_void>());
        let (places, rank) = (places.as_mut_ptr(), rank as c_int);
        let mut coll = null_mut();
        // SAFETY: the symbol's name tells the arguments in both versions; they outlive the call.
        let code = unsafe {
            if table.version == 12 {
                type Connect = unsafe extern "C" fn(
                    Pointer,
                    Place,
                    c_int,
                    c_int,
                    c_int,
                    c_int,
                    Pointer,
                    Place,
                ) -> u32;
                let connect = transmute::<usize, Connect>(table.connect);
                connect(context, places, 2, rank, 1, 0, raw, &raw mut coll)
            } else {
                type Connect =
                    unsafe extern "C" fn(Pointer, Place, c_int, c_int, Pointer, Place) -> u32;
                let connect = transmute::<usize, Connect>(table.connect);
                connect(context, places, 2, rank, raw, &raw mut coll)
            }
        };
        checked("connect", code)?;
        call!(table, CloseListen(raw => Pointer))?;
        let mut operations = coll;
        if table.version > 12 {
            // Contexts, traffic class (-1: the transport chooses), and a stride of ranks.
            let mut config: [c_int; 3] = [1, -1, 1];
            call!(table, CreateContext(coll => Pointer, config.as_mut_ptr() => *mut c_int,
                &raw mut operations => Place))?;
        }
        Ok(Group { table, context, coll, operations, follows: false })
    }
}

impl Group {
    /// Registers all of `memory`, at all ranks in the same order.
    pub(crate) fn register(&self, memory: Arc<Buffer>, flags: u64) -> Result<Window> {
        let (mut raw, mut for_gpus) = (null_mut(), null_mut());
        let (start, len) = (memory.address(0, memory.len())?.cast(), memory.len());
        let kind = abi::NCCL_PTR_HOST as c_int;
        if self.table.version == 12 {
            call!(self.table, RegMrSym(self.coll => Pointer, start => Pointer, len => usize,
                kind => c_int, flags => u64, &raw mut raw => Place, &raw mut for_gpus => Place))?;
        } else {
            call!(self.table, RegMrSym(self.coll => Pointer, start => Pointer, len => usize,
                kind => c_int, flags => u64, &raw mut raw => Place))?;
        }
        Ok(Window { raw, memory })
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, window: Window) -> Result<()> {
        call!(self.table, DeregMrSym(self.coll => Pointer, window.raw => Pointer))
    }

    /// Writes to the memory of `rank`.
    pub(crate) fn put(&self, rank: u32, data: Move<'_>) -> Result<Begun> {
        let Move { here: (from, at), there: (to, to_at), size } = data;
        begin!(self, Iput(at => u64, from.raw => Pointer, size => usize, to_at => u64,
            to.raw => Pointer, rank => u32), [])
    }

    /// Writes `data`, if there is any, and then signals.
    pub(crate) fn signal(
        &self,
        rank: u32,
        data: Option<Move<'_>>,
        signal: Signal<'_>,
    ) -> Result<Begun> {
        let (from, at, size, to, to_at) = data.map_or((null_mut(), 0, 0, null_mut(), 0), |data| {
            let Move { here, there, size } = data;
            (here.0.raw, here.1, size, there.0.raw, there.1)
        });
        let Signal { word: (words, word), value, operation } = signal;
        begin!(self, IputSignal(at => u64, from => Pointer, size => usize, to_at => u64,
            to => Pointer, rank => u32, word => u64, words.raw => Pointer, value => u64,
            operation => u32), [true => bool])
    }

    /// Reads memory of `rank`.
    pub(crate) fn get(&self, rank: u32, data: Move<'_>) -> Result<Begun> {
        let Move { here: (to, to_at), there: (from, at), size } = data;
        begin!(self, Iget(at => u64, from.raw => Pointer, size => usize, to_at => u64,
            to.raw => Pointer, rank => u32), [])
    }

    /// Makes what has arrived visible.
    pub(crate) fn flush(&self, rank: u32, window: &Window) -> Result<Begun> {
        let mut raw = null_mut();
        call!(self.table, Iflush(self.operations => Pointer, 0 => c_int, window.raw => Pointer,
            rank => u32, &raw mut raw => Place))?;
        begun(raw, "iflush")
    }

    /// Whether an operation is done; then it is not to be tested again.
    pub(crate) fn is_done(&self, operation: &Begun) -> Result<bool> {
        let mut done = 0;
        call!(self.table, Test(self.coll => Pointer, operation.0 => Pointer,
            &raw mut done => *mut c_int))?;
        Ok(done != 0)
    }

    /// Frees all but windows.
    pub(crate) fn close(self) -> Result<()> {
        if self.table.version > 12 {
            call!(self.table, DestroyContext(self.operations => Pointer))?;
        }
        call!(self.table, CloseColl(self.coll => Pointer))?;
        call!(self.table, Finalize(self.context => Pointer))
    }
}

/// NCCL uses any request that it gets, also NULL.
fn begun(raw: Pointer, call: &str) -> Result<Begun> {
    if raw.is_null() {
        return Err(Error::Contract(format!("{call} succeeds without a request")));
    }
    Ok(Begun(raw))
}
