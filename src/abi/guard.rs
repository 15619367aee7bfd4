//! The boundary to NCCL: turns errors into result codes and one log message, and panics into
//! errors.

use super::nccl::ncclResult_t;
use super::{nccl, process};
use crate::error::{Class, Error, Result};
use crate::net::data::both_ends::Outcome;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// The functions that NCCL's progress thread calls.
const OF_PROGRESS: [&str; 4] = ["isend", "irecv", "iflush", "test"];

/// After this many repeated errors, a thread makes a [`PAUSE`] before each further one.
const WITHOUT_PAUSE: u32 = 2_000_000;
/// NCCL up to 2.25 repeats a failed call until the application aborts, and 2.23 to 2.25 even
/// longer, without a pause and with three log lines each time (`ncclProxyProgress` in proxy.cc).
/// The pause keeps it from using a whole processor, and its log from growing by megabytes a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `body`, the body of NCCL's function `call`.
#[inline(always)]
pub fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    guard_steps(call, || body().map(|()| Code(nccl::ncclSuccess)))
}

/// [`guard`] for a body that ends with the result of its last step.
#[inline(always)]
pub(super) fn guard_steps(call: &'static str, body: impl FnOnce() -> Result<Code>) -> ncclResult_t {
    #[cfg(test)]
    let body = || {
        tests::panic_if_planned();
        body()
    };
    // State that a panic left inconsistent is never used again: the communicator's cell stays
    // entered, so that every later call on it fails.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(Code(code))) => code,
        Ok(Err(error)) => report(call, error),
        Err(panic) => report(call, panic_error(panic)),
    }
}

/// NCCL's result code of a call.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Code(pub(super) ncclResult_t);

impl Outcome for Code {
    const SUCCESS: Self = Self(nccl::ncclSuccess);

    #[inline(always)]
    fn of(call: &'static str, step: impl FnOnce() -> Result<()>) -> Self {
        Self(guard(call, step))
    }

    #[inline(always)]
    fn from_result(call: &'static str, result: Result<()>) -> Self {
        Self(result.map_or_else(|error| report(call, error), |()| nccl::ncclSuccess))
    }
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn panic_error(panic: Box<dyn Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::internal(format!("a bug in Ferrite: {text}"))
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn report(call: &'static str, error: Error) -> ncclResult_t {
    if !error.is_logged {
        // NCCL shows the target before the message: the name of the call is more useful than a
        // source file.
        log::warn!(target: call, "{call}: {error}");
        if OF_PROGRESS.contains(&call) {
            process::warn_of_what_nccl_makes_of_errors();
        }
    } else if OF_PROGRESS.contains(&call) && process::repeats_failed_calls() {
        pause_if_repeated();
    }
    match error.class {
        Class::System => nccl::ncclSystemError,
        Class::Internal => nccl::ncclInternalError,
        Class::Argument => nccl::ncclInvalidArgument,
        Class::Usage => nccl::ncclInvalidUsage,
        Class::Remote => nccl::ncclRemoteError,
    }
}

thread_local! {
    /// The number of repeated errors of the thread, as far as counted.
    static REPEATED: Cell<u32> = const { Cell::new(0) };
}

/// Counts a repeated error of the thread, and pauses if there were too many.
fn pause_if_repeated() {
    let repeated = REPEATED.get();
    if repeated < WITHOUT_PAUSE {
        REPEATED.set(repeated + 1);
    } else {
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::Answer;
    use super::super::table::Exported;
    use super::super::{datapath, profiler, v8, v9, v10, v11, v12};
    use super::*;
    use crate::net::data::recv::RecvComm;
    use crate::net::data::send::SendComm;
    use std::ffi::{c_int, c_void};
    use std::ptr::null_mut;
    use std::time::Instant;

    thread_local! {
        /// How many bodies have panicked; `None`: they shall not.
        static PLANNED: Cell<Option<u32>> = const { Cell::new(None) };
    }

    pub(super) fn panic_if_planned() {
        if let Some(panics) = PLANNED.get() {
            PLANNED.set(Some(panics + 1));
            panic!("on purpose");
        }
    }

    /// Runs `call`, whose guarded body panics. Returns its code; `None` if it has no such body.
    fn with_panic(call: impl FnOnce() -> ncclResult_t) -> Option<ncclResult_t> {
        PLANNED.set(Some(0));
        let code = call();
        PLANNED.replace(None).filter(|panics| *panics > 0).map(|_| code)
    }

    /// A function of a table. None takes more arguments; in C, a call may pass more than it takes.
    type Slot = unsafe extern "C" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> ncclResult_t;

    /// The functions of `table`, after the name. All of its fields are pointers.
    fn slots<T>(table: &Exported<T>) -> impl Iterator<Item = (usize, Slot)> {
        let first = std::ptr::from_ref(table).cast::<Option<Slot>>();
        // SAFETY: the table consists of pointers, and a slot without a function is NULL.
        let all = unsafe { std::slice::from_raw_parts(first, size_of::<T>() / size_of::<Slot>()) };
        all.iter().copied().enumerate().skip(1).filter_map(|(i, slot)| Some((i, slot?)))
    }

    fn codes<T>(table: &Exported<T>) -> Vec<(usize, Option<ncclResult_t>)> {
        // SAFETY: all pointers are NULL, and the body panics before it reads any.
        let call = |slot: Slot| with_panic(|| unsafe { slot(0, 0, 0, 0, 0, 0, 0, 0) });
        slots(table).map(|(i, slot)| (i, call(slot))).collect()
    }

    #[test]
    fn a_panic_in_any_function_of_a_table_becomes_an_internal_error() {
        let internal = Some(nccl::ncclInternalError);
        for (version, codes, count) in [
            (8, codes(&v8::ncclNetPlugin_v8), 16),
            (9, codes(&v9::ncclNetPlugin_v9), 17),
            (10, codes(&v10::ncclNetPlugin_v10), 17),
            (11, codes(&v11::ncclNetPlugin_v11), 19),
            (12, codes(&v12::ncclNetPlugin_v12), 19),
        ] {
            assert_eq!(codes.len(), count, "version {version}");
            let others: Vec<_> = codes.iter().filter(|(_, code)| *code != internal).collect();
            assert!(others.is_empty(), "version {version}: {others:?}");
        }
    }

    #[test]
    fn a_panic_in_any_function_of_the_profiler_stays_inside() {
        for codes in [
            codes(&profiler::ncclProfiler_v4),
            codes(&profiler::ncclProfiler_v5),
            codes(&profiler::ncclProfiler_v6),
        ] {
            // recordEventState does nothing.
            let unguarded: Vec<_> = codes.iter().filter(|(_, code)| code.is_none()).collect();
            assert_eq!((codes.len(), unguarded), (5, vec![&(4, None)]));
        }
    }

    #[test]
    fn a_panic_in_the_test_of_any_request_becomes_an_internal_error() {
        type Test = unsafe extern "C" fn(*mut c_void, Answer) -> ncclResult_t;
        let tests: [Test; 3] = [
            datapath::test_message::<SendComm>,
            datapath::test_message::<RecvComm>,
            datapath::test_flush,
        ];
        let (mut done, mut size): (c_int, c_int) = (0, 0);
        let answer = Answer { done: &raw mut done, sizes: &raw mut size };
        for test in tests {
            // SAFETY: the body panics before it reads the request.
            let code = with_panic(|| unsafe { test(null_mut(), answer) });
            assert_eq!(code, Some(nccl::ncclInternalError));
        }
    }

    #[test]
    fn a_panic_in_the_last_step_of_a_call_becomes_an_internal_error() {
        let Code(code) = Code::of("isend", || panic!("on purpose"));
        assert_eq!(code, nccl::ncclInternalError);
    }

    #[test]
    fn a_call_that_is_repeated_without_end_takes_a_pause() {
        const MORE: u32 = 5;
        let repeat = || guard("test", || Err(Error::remote("gone").logged()));
        REPEATED.set(WITHOUT_PAUSE - 1);
        let begin = Instant::now();
        for _ in 0..=MORE {
            assert_eq!(repeat(), nccl::ncclRemoteError);
        }
        // A sleep is never shorter than requested.
        assert!(begin.elapsed() >= PAUSE * MORE);
    }

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(guard("test", || panic!("on purpose")), nccl::ncclInternalError);
        assert_eq!(guard("test", || Err(Error::remote("gone"))), nccl::ncclRemoteError);
        assert_eq!(guard("test", || Ok(())), nccl::ncclSuccess);
    }
}
