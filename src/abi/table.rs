//! Exporting a table, and defining its functions.

/// A table, which NCCL only reads.
#[repr(transparent)]
#[derive(Debug)]
pub struct Exported<T>(pub(super) T);

// SAFETY: never written; its one data pointer is to a static string.
unsafe impl<T> Sync for Exported<T> {}

/// Defines functions for slots. The body of each is the call that gets its arguments; those with
/// `<VERSION>` get the version's number.
macro_rules! slots {
    ($($(#[$doc:meta])* $name:ident $(<$version:ident>)? ($($arg:ident: $type:ty),* $(,)?) => $call:expr;)*) => {$(
        $(#[$doc])*
        pub(super) unsafe extern "C" fn $name$(<const $version: u32>)?($($arg: $type),*) -> ncclResult_t {
            // SAFETY: the arguments are NCCL's.
            unsafe { $call }
        }
    )*};
}

pub(super) use slots;
