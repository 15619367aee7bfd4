//! Numbers that change through shared references. Only the thread inside the communicator uses
//! them, and the cell that excludes others orders what threads see of each other
//! (`net::data::exclusive_cell`). So accesses compile to plain loads and stores.

use std::fmt;
use std::sync::atomic::{AtomicI8, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A number of type `N`.
#[derive(Default)]
pub struct Shared<N: Number>(N::Atomic);

/// A type of numbers that has atomics.
pub trait Number: Copy + fmt::Debug {
    /// The atomic.
    type Atomic: Default;

    /// An atomic with this number.
    fn atomic(self) -> Self::Atomic;

    /// The number.
    fn load(atomic: &Self::Atomic) -> Self;

    /// Changes it.
    fn store(self, atomic: &Self::Atomic);

    /// The sum, modulo the range of the type.
    fn plus(self, other: Self) -> Self;
}

macro_rules! numbers {
    ($($number:ty: $atomic:ty),*) => {$(
        impl Number for $number {
            type Atomic = $atomic;

            fn atomic(self) -> $atomic {
                <$atomic>::new(self)
            }

            #[inline(always)]
            fn load(atomic: &$atomic) -> Self {
                atomic.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn store(self, atomic: &$atomic) {
                atomic.store(self, Ordering::Relaxed);
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )*};
}

numbers!(i8: AtomicI8, i32: AtomicI32, u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64);

impl<N: Number> Shared<N> {
    /// This number.
    pub fn new(number: N) -> Self {
        Self(number.atomic())
    }

    /// The number.
    #[inline(always)]
    pub fn get(&self) -> N {
        N::load(&self.0)
    }

    /// Changes it.
    #[inline(always)]
    pub fn set(&self, number: N) {
        number.store(&self.0);
    }

    /// Adds to it, modulo the range of its type.
    #[inline(always)]
    pub fn add(&self, number: N) {
        self.set(self.get().plus(number));
    }
}

impl<N: Number> fmt::Debug for Shared<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
