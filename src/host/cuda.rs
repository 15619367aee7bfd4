//! The CUDA driver of this process. It is looked up, never loaded or initialised.

#![allow(unsafe_code)]

use libc::{c_int, c_uint, c_void};
use std::ptr;

type Code = c_uint;
type Context = *mut c_void;

const SUCCESS: Code = 0;
const CAPTURE_MODE_RELAXED: c_int = 2;
const ATTRIBUTE_DMA_BUF_SUPPORTED: c_int = 124;
/// Bytes allocated for a test registration. The driver's allocation granularity is larger.
const PROBE_BYTES: usize = 64 << 10;

macro_rules! driver {
    ($($field:ident: $symbol:literal ($($arg:ty),*);)*) => {
        /// The driver's functions.
        #[derive(Debug)]
        pub struct Cuda {
            $($field: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl Cuda {
            fn bind(library: *mut c_void) -> Option<Self> {
                Some(Self { $($field: {
                    // SAFETY: a handle from dlopen and a C string.
                    let found = unsafe { libc::dlsym(library, $symbol.as_ptr()) };
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: the driver's documented type of that function.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(found) }
                },)* })
            }
        }
    };
}

driver! {
    current: c"cuCtxGetCurrent" (*mut Context);
    push: c"cuCtxPushCurrent_v2" (Context);
    pop: c"cuCtxPopCurrent_v2" (*mut Context);
    count: c"cuDeviceGetCount" (*mut c_int);
    device: c"cuDeviceGet" (*mut c_int, c_int);
    attribute: c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    state: c"cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
    retain: c"cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    allocate: c"cuMemAlloc_v2" (*mut u64, usize);
    capture_mode: c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
}

/// Memory of a GPU, which is never freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuMemory {
    /// Its address.
    pub addr: u64,
    /// Its size.
    pub bytes: usize,
}

impl Cuda {
    /// The driver, if the process has loaded and initialised it.
    pub fn in_use() -> Option<Self> {
        // SAFETY: a C string; the library is only looked for, not loaded.
        let library =
            unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let cuda = if library.is_null() { None } else { Self::bind(library) }?;
        // This call succeeds without a context, but only after cuInit.
        cuda.current_context().is_some().then_some(cuda)
    }

    fn current_context(&self) -> Option<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer.
        (unsafe { (self.current)(&raw mut context) } == SUCCESS).then_some(context)
    }

    /// The GPUs.
    fn devices(&self) -> impl Iterator<Item = c_int> {
        let mut count = 0;
        // SAFETY: writes one number.
        let known = unsafe { (self.count)(&raw mut count) } == SUCCESS;
        (0..if known { count } else { 0 }).filter_map(|ordinal| {
            let mut device = 0;
            // SAFETY: writes one number.
            (unsafe { (self.device)(&raw mut device, ordinal) } == SUCCESS).then_some(device)
        })
    }

    /// Whether GPUs can export their memory as dma-bufs. `None`: there is no GPU, or the driver
    /// does not report it.
    pub fn exports_dmabuf(&self) -> Option<bool> {
        let mut lends = 0;
        let device = self.devices().next()?;
        // SAFETY: writes one number.
        let code = unsafe { (self.attribute)(&raw mut lends, ATTRIBUTE_DMA_BUF_SUPPORTED, device) };
        (code == SUCCESS).then_some(lends != 0)
    }

    /// Allocates a little memory of a GPU that the process uses, for a test registration. Never
    /// frees it: freeing would wait for the GPU, whose kernels may wait for other processes.
    pub fn allocate_probe_memory(&self) -> Option<GpuMemory> {
        let current = self.current_context().filter(|context| !context.is_null());
        let context =
            current.or_else(|| self.devices().find_map(|device| self.active_context(device)))?;
        let (mut addr, mut mode, mut popped) = (0, CAPTURE_MODE_RELAXED, ptr::null_mut());
        // SAFETY: a context that is active; each call writes one value. The relaxed mode keeps a
        // stream capture of this thread valid.
        let code = unsafe {
            if (self.push)(context) != SUCCESS {
                return None;
            }
            (self.capture_mode)(&raw mut mode);
            let code = (self.allocate)(&raw mut addr, PROBE_BYTES);
            (self.capture_mode)(&raw mut mode);
            (self.pop)(&raw mut popped);
            code
        };
        (code == SUCCESS && addr != 0).then_some(GpuMemory { addr, bytes: PROBE_BYTES })
    }

    /// The primary context of `device`, if the application has activated it.
    fn active_context(&self, device: c_int) -> Option<Context> {
        let (mut flags, mut active, mut context) = (0, 0, ptr::null_mut());
        // SAFETY: each call writes its values; a context that is active only gets one more
        // reference, which is kept.
        unsafe {
            let known =
                (self.state)(device, &raw mut flags, &raw mut active) == SUCCESS && active != 0;
            (known && (self.retain)(&raw mut context, device) == SUCCESS).then_some(context)
        }
    }
}
