//! The library, or copies of it, through `dlopen` and `dlvsym`.

use std::ffi::{CStr, CString, c_void};
use std::mem::transmute_copy;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

pub type Ptr = *mut c_void;

/// The built library, beside the test program's folder; or another one, to look at what that does.
pub fn library_path() -> PathBuf {
    if let Some(other) = std::env::var_os("SOFTRNIC_TEST_LIBRARY") {
        return other.into();
    }
    let exe = std::env::current_exe().expect("own path");
    exe.ancestors()
        .skip(1)
        .map(|dir| dir.join("libibverbs.so"))
        .find(|path| path.exists())
        .expect("libibverbs.so next to the tests: cargo builds it with them")
}

/// The library whose functions are called: the built one, unless [`use_library`] has named another.
pub fn handle() -> Ptr {
    match HANDLE.load(SeqCst) {
        0 => {
            use_library(load(&library_path(), libc::LM_ID_BASE));
            handle()
        }
        handle => handle as Ptr,
    }
}

static HANDLE: AtomicUsize = AtomicUsize::new(0);

/// From now on the functions are those of this library.
pub fn use_library(handle: Ptr) {
    HANDLE.store(handle as usize, SeqCst);
}

/// Loads the library in this file, in this namespace of the loader.
pub fn load(path: &Path, namespace: libc::Lmid_t) -> Ptr {
    let path = CString::new(path.to_str().expect("UTF-8 path")).expect("path");
    // SAFETY: a valid C string; loading the library has no side effects but its own.
    let handle = unsafe { libc::dlmopen(namespace, path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: dlerror returns a C string after a failure.
    assert!(!handle.is_null(), "dlmopen: {:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
    handle
}

pub fn symbol(name: &str, version: &str) -> Ptr {
    let (name, version) =
        (CString::new(name).expect("name"), CString::new(version).expect("version"));
    // SAFETY: valid handle and C strings.
    unsafe { libc::dlvsym(handle(), name.as_ptr(), version.as_ptr()) }
}

/// A function of the library, version IBVERBS_1.1.
///
/// # Safety
/// `F` is the function's type.
pub unsafe fn function<F>(name: &str) -> F {
    let found = symbol(name, "IBVERBS_1.1");
    assert!(!found.is_null(), "{name} is missing");
    // SAFETY: a function pointer has the size of a pointer; its type is the caller's word.
    unsafe { transmute_copy(&found) }
}
