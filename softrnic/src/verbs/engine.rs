//! The engine of this process: attached on first use, left at the exit.

use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::{ptr, thread};

use crate::copy::gpu;
use crate::drivers;
use crate::engine::Engine;
use crate::engine::requester;
use crate::faults::Injector;
use crate::host;
use crate::process::fabric;
use crate::process::fabric::Fabric;
use crate::process::settings::Settings;
use crate::shm::file::Failure;

static CURRENT: AtomicPtr<Engine> = AtomicPtr::new(ptr::null_mut());
static ATTACHING: AtomicBool = AtomicBool::new(false);
static HANDLERS: Once = Once::new();

/// The engine of this process; attaches on first use. Failures are printed on standard error.
pub(crate) fn engine() -> Result<&'static Engine, i32> {
    if let Some(engine) = current() {
        return Ok(engine);
    }
    while ATTACHING.swap(true, SeqCst) {
        thread::yield_now();
    }
    let result = current().map_or_else(attach, Ok);
    ATTACHING.store(false, SeqCst);
    result.map_err(|(what, code)| {
        host::say(format_args!("{what}"));
        code
    })
}

/// The engine for an object of `fabric`; ENODEV if this process may no longer use it, being a
/// forked child, or if another copy of the library in this process has made it.
#[inline]
pub(crate) fn engine_of(fabric: &Fabric) -> Result<&'static Engine, i32> {
    let own = current().filter(|engine| ptr::eq(engine.fabric, fabric));
    if fabric.is_gone() { Err(libc::ENODEV) } else { own.ok_or(libc::ENODEV) }
}

#[inline]
fn current() -> Option<&'static Engine> {
    // SAFETY: set once from a leaked box, or null.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

fn attach() -> Result<&'static Engine, Failure> {
    let fabric = Fabric::attach()?;
    let engine: &'static Engine =
        Box::leak(Box::new(Engine::new(fabric, Box::new(Injector::new(fabric)))));
    requester::start(engine)
        .map_err(|code| ("cannot start the service thread".to_owned(), code))?;
    // SAFETY: lets peers of the same user reach our memory where Yama restricts that; fails
    // harmlessly elsewhere.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    HANDLERS.call_once(|| {
        // SAFETY: both are plain functions of a library that is never unloaded (-z nodelete).
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
    CURRENT.store(ptr::from_ref(engine).cast_mut(), SeqCst);
    for name in Settings::unknown_variables() {
        host::say(format_args!(
            "{name} is no setting, and is ignored; the crate page of softrnic lists them"
        ));
    }
    if !fabric.settings.quiet {
        let driver = fabric.settings.driver.name;
        let like = if driver == drivers::own().name {
            String::new()
        } else {
            format!(" like those of {driver}")
        };
        host::say(format_args!(
            "a software RDMA device for tests; not for production traffic; {} device(s){like}, fabric {}",
            fabric.topology.devices(),
            fabric.settings.shm_dir.join(&fabric.settings.fabric).display()
        ));
    }
    Ok(engine)
}

extern "C" fn at_exit() {
    if let Some(engine) = current() {
        if engine.fabric.settings.stat {
            fabric::print();
        }
        engine.fabric.leave();
    }
}

/// After fork, in the child: what was inherited is dead; a new device list attaches anew.
extern "C" fn in_child() {
    if let Some(engine) = current() {
        engine.fabric.abandon();
        gpu::abandon();
    }
    CURRENT.store(ptr::null_mut(), SeqCst);
    ATTACHING.store(false, SeqCst);
}
