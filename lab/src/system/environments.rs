//! Several environments in one process, one of them at a time: so that each of two transports in
//! it reads variables of its own, whenever its functions are called.
//!
//! `setenv` may free or change what another thread is reading, and a transport has threads. So
//! each environment is a table that is complete before its first use, and never freed. A change of
//! environments is a change of one pointer. A thread of a transport reads one whole table or
//! the other: that of the side whose turn it is.

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{Error, Result};

unsafe extern "C" {
    /// POSIX: the table of `NAME=VALUE` strings that `getenv` reads, with null at its end.
    static mut environ: *mut *mut c_char;
}

/// The environments of the sides, by their numbers.
#[derive(Debug)]
pub(crate) struct Environments {
    tables: Vec<Table>,
    current: usize,
}

impl Environments {
    /// The environment of now, with these variables of each side. The process is in that of the
    /// first.
    ///
    /// # Errors
    /// [`Error::Usage`] if a variable has a zero byte.
    pub(crate) fn new(sides: &[&[(String, String)]]) -> Result<Self> {
        let now = Table::now();
        let tables = sides.iter().map(|variables| now.with(variables)).collect::<Result<_>>()?;
        let made = Self { tables, current: 0 };
        made.tables[0].enter();
        Ok(made)
    }

    /// Makes the process's environment that of `side`.
    pub(crate) fn enter(&mut self, side: usize) {
        if side == self.current {
            return;
        }
        // A transport has set a variable itself: by that, `setenv` has made a table that it may
        // free when it makes the next one.
        let now = Table::now();
        if now != self.tables[self.current] {
            self.tables[self.current] = now.copy();
        }
        self.tables[side].enter();
        self.current = side;
    }
}

/// A table of pointers to strings, with null at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Table(*mut *mut c_char);

// SAFETY: nobody frees the table or its strings. `Environments` changes it by `&mut`, and libc in
// `setenv` and `unsetenv` of the thread that has it.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    fn pointer() -> &'static AtomicPtr<*mut c_char> {
        // SAFETY: `environ` is a pointer of this process that lives as long as it does, and has the
        // alignment of a pointer. libc reads it without a lock, as one word.
        unsafe { AtomicPtr::from_ptr(&raw mut environ) }
    }

    fn now() -> Self {
        Self(Self::pointer().load(Ordering::Acquire))
    }

    fn enter(self) {
        Self::pointer().store(self.0, Ordering::Release);
    }

    fn strings(self) -> Vec<*mut c_char> {
        if self.0.is_null() {
            return Vec::new();
        }
        // SAFETY: a table has strings up to a null, and nobody changes it now: this thread calls
        // what may, and no transport changes its variables in a thread of its own.
        let strings = (0..).map(|place| unsafe { *self.0.add(place) });
        strings.take_while(|string| !string.is_null()).collect()
    }

    /// Of these strings. It stays, as they do: another thread may read it at any time.
    fn of(mut strings: Vec<*mut c_char>) -> Self {
        strings.push(std::ptr::null_mut());
        Self(Vec::leak(strings).as_mut_ptr())
    }

    /// The same strings in a table that nobody frees. libc never frees strings of variables.
    fn copy(self) -> Self {
        Self::of(self.strings())
    }

    /// With `variables` in place of what it has by these names.
    fn with(self, variables: &[(String, String)]) -> Result<Self> {
        let mut strings = self.strings();
        for (name, value) in variables {
            let text = CString::new(format!("{name}={value}"))
                .map_err(|_| Error::Usage(format!("{name} has a zero byte in its value")))?;
            let is_other = |string: &*mut c_char| {
                // SAFETY: a string of the environment, which ends with a zero byte.
                let string = unsafe { std::ffi::CStr::from_ptr(*string) }.to_bytes();
                string.strip_prefix(name.as_bytes()).is_none_or(|rest| rest.first() != Some(&b'='))
            };
            strings.retain(is_other);
            strings.push(text.into_raw());
        }
        Ok(Self::of(strings))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn read(name: &CStr) -> Option<String> {
        // SAFETY: as a transport calls it: the value is of a table that is never freed.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        // SAFETY: not null, so a string.
        (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }

    fn set(name: &CStr, value: &CStr) {
        // SAFETY: as a transport calls it, in this thread, while no other one does.
        assert_eq!(unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) }, 0);
    }

    #[test]
    fn each_side_has_its_variables_and_keeps_those_that_it_sets_itself() {
        let variable = |value: &str| [("FERRITE_SIDE".to_owned(), value.to_owned())];
        let path = read(c"PATH");
        let mut both = Environments::new(&[&variable("a"), &variable("b")]).expect("no zero byte");
        assert_eq!(read(c"FERRITE_SIDE").as_deref(), Some("a"));
        for round in ["1", "2", "3"] {
            for (side, name) in [(1, "b"), (0, "a")] {
                both.enter(side);
                assert_eq!(read(c"FERRITE_SIDE").as_deref(), Some(name));
                assert_eq!(read(c"PATH"), path);
                let own = |round| CString::new(format!("FERRITE_{name}_{round}")).expect("text");
                set(&own(round), c"set");
                for earlier in ["1", "2", "3"].into_iter().filter(|one| *one <= round) {
                    assert_eq!(read(&own(earlier)).as_deref(), Some("set"), "{name}");
                }
            }
            assert_eq!(read(c"FERRITE_b_1"), None);
        }
        assert!(Environments::new(&[&variable("a\0")]).is_err());
    }

    #[test]
    fn a_thread_that_reads_beside_a_change_finds_one_value_or_the_other() {
        let variable = |value: &str| [("FERRITE_SIDE".to_owned(), value.to_owned())];
        let mut both = Environments::new(&[&variable("a"), &variable("b")]).expect("no zero byte");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = [0_u32; 2];
                while !is_over.load(Ordering::Relaxed) || seen.contains(&0) {
                    match read(c"FERRITE_SIDE").as_deref() {
                        Some("a") => seen[0] += 1,
                        Some("b") => seen[1] += 1,
                        other => panic!("{other:?}"),
                    }
                }
            });
            for turn in 0.. {
                both.enter(turn % 2);
                if turn > 100_000 {
                    is_over.store(true, Ordering::Relaxed);
                }
                if reader.is_finished() {
                    break;
                }
            }
        });
    }
}
