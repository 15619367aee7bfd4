//! Fabrics of the software device that runs before this one have left.

mod common;

use std::ffi::CString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{dist, ferrite, loopback, scratch};

const LIBRARY: &str = "FERRITE_TEST_HOLD";

/// In a process of its own, which [`hold`] starts: takes part in a fabric until the input ends.
#[test]
fn holds_a_fabric() {
    let Some(library) = std::env::var_os(LIBRARY) else { return };
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
    println!("\nholding");
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that takes part in `fabric` in the folder `shm`.
fn hold(fabric: &str, shm: &Path, library: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["holds_a_fabric", "--exact", "--nocapture"]).env(LIBRARY, library);
    command.env("SOFTRNIC_FABRIC", fabric).env("SOFTRNIC_SHM_DIR", shm).env("SOFTRNIC_QUIET", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    while lines.next().expect("the line").expect("text") != "holding" {}
    child
}

/// No process has the id in their names, as in another process id namespace.
#[test]
fn only_those_that_nobody_takes_part_in_are_removed() {
    let Some(dist) = dist(&["softrnic/libibverbs.so.1"]) else { return };
    let library = dist.join("softrnic/libibverbs.so.1");
    let (shm, plugin) = (scratch("fabrics"), loopback());
    let [living, dead] = ["ferrite-4194305-0", "ferrite-4194305-1-0a0b0c0d"];
    let mut holders = [living, dead].map(|fabric| hold(fabric, &shm, &library));
    holders[1].kill().expect("kill");
    holders[1].wait().expect("wait");
    assert!(shm.join(living).exists() && shm.join(dead).exists());
    let arguments = ["bench", "--plugin", plugin.to_str().expect("text"), "--quick", "--timeout", "60"];
    let environment =
        [("FERRITE_DIST", dist.to_str().expect("text")), ("SOFTRNIC_SHM_DIR", shm.to_str().expect("text"))];
    // It ends by saying that this transport uses no software device.
    let (_, _, said) = ferrite(&arguments, &environment);
    assert!(shm.join(living).exists(), "{said}");
    assert!(!shm.join(dead).exists(), "{said}");
    drop(holders[0].stdin.take());
    assert!(holders[0].wait().expect("wait").success());
}
