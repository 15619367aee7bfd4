//! Fabrics of the software device that runs before this one have left.

use crate::common::{dist, ferrite, loopback};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use testkit::process::Process;
use testkit::side::enter;
use testkit::{Peer, Scratch, require};

const LIBRARY: &str = "FERRITE_TEST_LIBRARY";

/// In a process of its own: takes part in the fabric that the environment names until the test lets it end.
fn take_part(_side: usize, mut test: Peer) {
    let library = std::env::var_os(LIBRARY).expect("the test names it");
    let library = CString::new(library.into_vec()).expect("a path");
    // SAFETY: a library of this project, and the function's type in the verbs interface; NULL is no count.
    let list = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let found = libc::dlsym(handle, c"ibv_get_device_list".as_ptr());
        assert!(!found.is_null());
        let devices: extern "C" fn(*mut i32) -> *mut libc::c_void = std::mem::transmute(found);
        devices(std::ptr::null_mut())
    };
    assert!(!list.is_null());
    test.barrier();
    test.barrier();
}

/// No process has the id in their names, as in another process id namespace.
#[test]
fn fabrics_that_no_process_takes_part_in_are_removed_and_others_are_not() {
    enter(take_part);
    let dist = require!(dist(&["softrnic/libibverbs.so.1"]));
    let library = dist.join("softrnic/libibverbs.so.1");
    let (shm, plugin) = (Scratch::new(), loopback());
    let text = |path: &std::path::Path| path.to_str().expect("it is text").to_owned();
    let (library, folder) = (text(&library), text(&shm));
    let [living, dead] = ["ferrite-4194305-0", "ferrite-4194305-1-0a0b0c0d"];
    let join = |fabric| {
        let env = [(LIBRARY, library.as_str()), ("SOFTRNIC_FABRIC", fabric), ("SOFTRNIC_SHM_DIR", &folder)];
        let (process, mut peer) = Process::start(0, &[&env[..], &[("SOFTRNIC_QUIET", "1")]].concat());
        peer.barrier();
        (process, peer)
    };
    let (survivor, mut peer) = join(living);
    let (mut killed, _peer) = join(dead);
    killed.signal(libc::SIGKILL);
    assert!(killed.ended().is_killed_by(libc::SIGKILL));
    assert!(shm.join(living).exists() && shm.join(dead).exists());
    let arguments = ["bench", "--plugin", &text(&plugin), "--quick", "--timeout", "60"];
    // It ends by saying that this transport uses no software device.
    let (_, _, said) = ferrite(&arguments, &[("FERRITE_DIST", &text(&dist)), ("SOFTRNIC_SHM_DIR", &folder)]);
    assert!(shm.join(living).exists(), "{said}");
    assert!(!shm.join(dead).exists(), "{said}");
    peer.barrier();
    survivor.finish();
}
