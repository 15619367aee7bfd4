//! A CUDA driver without a GPU (`cuda/fake.c`), whose memory no processor can touch.

use std::ffi::{CString, c_int};
use std::path::{Path, PathBuf};
use std::ptr;
use testkit::c_library;

use super::node::{Address, Node};
use super::verbs::*;

/// The driver, loaded into this process as an application would have it.
pub struct Driver {
    handle: Ptr,
}

impl Driver {
    pub fn load() -> Self {
        let built = Self::build();
        let path = CString::new(built.to_str().expect("UTF-8")).expect("path");
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", built.display());
        Self { handle }
    }

    fn build() -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/fake.c");
        let flags = ["-O1", "-pthread", "-Wl,-soname,libcuda.so.1"];
        c_library::shared_object(env!("CARGO_TARGET_TMPDIR"), &source, &flags)
    }

    pub fn function<F>(&self, name: &str) -> F {
        let name = CString::new(name).expect("name");
        // SAFETY: the callers name functions of fake.c with their types.
        unsafe {
            let found = libc::dlsym(self.handle, name.as_ptr());
            assert!(!found.is_null());
            std::mem::transmute_copy(&found)
        }
    }

    /// Memory of the GPU, as cudaMalloc makes it.
    pub fn allocate(&self, bytes: usize) -> u64 {
        self.allocated("fake_allocate", bytes)
    }

    /// As cuMemCreate makes it.
    pub fn allocate_exportable(&self, bytes: usize) -> u64 {
        self.allocated("fake_allocate_exportable", bytes)
    }

    fn allocated(&self, by: &str, bytes: usize) -> u64 {
        let at = self.function::<extern "C" fn(usize) -> u64>(by)(bytes);
        assert_ne!(at, 0);
        at
    }

    pub fn shadow(&self, at: u64) -> *mut u8 {
        self.function::<extern "C" fn(u64) -> *mut u8>("fake_shadow")(at)
    }

    /// What is in it.
    pub fn bytes(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: inside an allocation, which stays for good.
        unsafe { std::slice::from_raw_parts(self.shadow(at), len) }
    }

    /// Puts `data` there.
    pub fn put(&self, at: u64, data: &[u8]) {
        // SAFETY: inside an allocation; no slice of it is alive.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.shadow(at), data.len()) };
    }

    pub fn copies(&self) -> c_int {
        self.function::<extern "C" fn() -> c_int>("fake_copies")()
    }

    /// From here on no call of the driver returns in this process, until it is `false`.
    pub fn hold(&self, is_held: bool) {
        self.function::<extern "C" fn(c_int)>("fake_hold")(is_held.into());
    }

    pub fn fail(&self, is_failing: bool) {
        self.function::<extern "C" fn(c_int)>("fake_fail")(is_failing.into());
    }
}

/// A node whose memory region is `bytes` of the GPU.
pub struct GpuNode {
    pub node: Node,
    pub at: u64,
}

impl GpuNode {
    pub fn new(driver: &Driver, device: usize, bytes: usize) -> Self {
        Self::of(driver.allocate(bytes), device, bytes)
    }

    /// With the GPU's memory `at`.
    pub fn of(at: u64, device: usize, bytes: usize) -> Self {
        let mut node = Node::new(device, 4096);
        assert_eq!(ibv_dereg_mr(node.mr), 0);
        node.mr = ibv_reg_mr(node.pd, at as Ptr, bytes, ALL_ACCESS | REMOTE_ATOMIC);
        assert!(!node.mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
        Self { node, at }
    }

    pub fn address(&self) -> Address {
        Address { addr: self.at, ..self.node.address() }
    }

    pub fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { addr: self.at + at as u64, length: length as u32, lkey: self.node.key() }
    }
}

/// Settings with which a helper copies GPU memory.
///
/// # Errors
/// The program has not been built.
pub fn helper() -> Result<[(&'static str, String); 4], testkit::Missing> {
    let program = testkit::dist::softrnic_program()?;
    Ok([
        ("SOFTRNIC_GPU", "both".into()),
        (
            "SOFTRNIC_GPU_HELPER",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/helper.sh").into(),
        ),
        ("SOFTRNIC_TEST_DRIVER", Driver::build().display().to_string()),
        ("SOFTRNIC_TEST_PROGRAM", program.display().to_string()),
    ])
}

/// Bytes of which hardly any two neighbours are equal.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}
