//! A transport's table of functions, of interface versions 8 to 12.

use std::ffi::CStr;
use std::fmt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::nccl::abi::{later, ncclNet_v8_t};
use crate::system::maps::Maps;

/// The table. Only read, and as long-lived as the process.
#[derive(Clone, Copy)]
pub enum Vtable {
    /// `ncclNet_v8`: plugins, and NCCL 2.21.5.
    V8(&'static ncclNet_v8_t),
    /// `ncclNet_v9`: NCCL 2.25.1.
    V9(&'static later::NetV9),
    /// `ncclNet_v10`: NCCL 2.27.5.
    V10(&'static later::NetV10),
    /// `ncclNet_v11`: NCCL 2.28.9.
    V11(&'static later::Net),
    /// `ncclNet_v12`: NCCL 2.30.7 and 2.32.3. The slots are those of version 11.
    V12(&'static later::Net),
}

// SAFETY: the table is only read; it and the strings behind it live as long as the process.
unsafe impl Send for Vtable {}
// SAFETY: as above.
unsafe impl Sync for Vtable {}

/// A slot that has the same type in all versions.
macro_rules! slot {
    ($vtable:expr, $slot:ident) => {
        match $vtable {
            $crate::nccl::vtable::Vtable::V8(net) => net.$slot,
            $crate::nccl::vtable::Vtable::V9(net) => net.$slot,
            $crate::nccl::vtable::Vtable::V10(net) => net.$slot,
            $crate::nccl::vtable::Vtable::V11(net) | $crate::nccl::vtable::Vtable::V12(net) => net.$slot,
        }
    };
}

pub(crate) use slot;

/// What a table must have; the rest may be missing.
const REQUIRED: usize = 15;

impl Vtable {
    /// The table of interface `version` (8 to 12) at `address`.
    ///
    /// # Safety
    /// A table of that version has to be there, and to stay.
    pub(crate) unsafe fn at(address: usize, version: u32) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            match version {
                8 => Ok(Self::V8(&*(address as *const ncclNet_v8_t))),
                9 => Ok(Self::V9(&*(address as *const later::NetV9))),
                10 => Ok(Self::V10(&*(address as *const later::NetV10))),
                11 => Ok(Self::V11(&*(address as *const later::Net))),
                12 => Ok(Self::V12(&*(address as *const later::Net))),
                _ => Err(Error::Misuse("a vtable of an unknown version")),
            }
        }
    }

    /// 8 to 12.
    pub fn version(&self) -> u32 {
        match self {
            Self::V8(_) => 8,
            Self::V9(_) => 9,
            Self::V10(_) => 10,
            Self::V11(_) => 11,
            Self::V12(_) => 12,
        }
    }

    /// The transport's name.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has none.
    pub(crate) fn name(&self, maps: &Maps) -> Result<String> {
        let name = slot!(self, name);
        if name.is_null() || maps.at(name as usize).is_none() {
            return Err(Error::Refused("the vtable has no name".into()));
        }
        // SAFETY: the pointer is mapped from a file (checked above) and by NCCL's contract it is a
        // NUL-terminated string that lives as long as the library.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// Checks that every slot that has to be set is, and that every set slot lies in `home`; how many are set.
    ///
    /// # Errors
    /// [`Error::Refused`], with the name of the slot.
    pub(crate) fn check_functions(&self, maps: &Maps, home: &Path) -> Result<usize> {
        let slots = self.slots();
        if let Some((slot, _)) = slots.iter().take(REQUIRED).find(|(_, address)| address.is_none()) {
            return Err(Error::Refused(format!("the vtable in {} has no {slot}", home.display())));
        }
        let mut count = 0;
        for (slot, address) in slots.iter().filter_map(|(slot, address)| address.map(|address| (*slot, address))) {
            if !maps.is_in(address, home) {
                let place = maps.at(address).map(|mapping| mapping.path.clone());
                return Err(Error::Refused(format!(
                    "{slot} of the vtable in {} lies in {}",
                    home.display(),
                    place.unwrap_or_else(|| "no file".into()).display()
                )));
            }
            count += 1;
        }
        Ok(count)
    }

    /// Names and addresses, the [`REQUIRED`] ones first.
    fn slots(&self) -> Vec<(&'static str, Option<usize>)> {
        macro_rules! addresses {
            ($net:expr; $($slot:ident),*) => { vec![$((stringify!($slot), $net.$slot.map(|f| f as usize))),*] };
        }
        macro_rules! known {
            ($net:expr; $($more:ident),*) => {
                addresses!($net; init, devices, getProperties, listen, connect, accept, regMr, deregMr, isend, irecv,
                    iflush, test, closeSend, closeRecv, closeListen, regMrDmaBuf, getDeviceMr, irecvConsumed $(, $more)*)
            };
        }
        match self {
            Self::V8(net) => known!(net;),
            Self::V9(net) => known!(net; makeVDevice),
            Self::V10(net) => known!(net; makeVDevice),
            Self::V11(net) | Self::V12(net) => known!(net; makeVDevice, finalize, setNetAttr),
        }
    }
}

impl fmt::Debug for Vtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vtable::V{}", self.version())
    }
}
