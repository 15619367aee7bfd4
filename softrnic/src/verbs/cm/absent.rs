//! What is not here: multicast, sockets over RDMA, queue pairs' shared receive queues, enhanced
//! connection establishment. The names exist, because a program does not start without those that
//! it may call.

use std::ffi::c_int;

use crate::abi::export::export;
use crate::host::set_errno;

/// For functions that return -1 and set errno. Arguments are in registers nobody reads.
unsafe extern "C" fn refused() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// The same, of functions that return a number of bytes.
unsafe extern "C" fn no_bytes() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}

unsafe extern "C" fn nothing() {}

macro_rules! names {
    ($function:path, $version:literal: $($name:literal)*) => {$(
        export!($name, $version, $function);
    )*};
}

names! { refused, "RDMACM_1.0": "rdma_join_multicast" "rdma_leave_multicast" "rdma_create_srq" "rdma_create_srq_ex" "rdma_notify" }
names! { refused, "RDMACM_1.1": "rdma_join_multicast_ex" }
names! { refused, "RDMACM_1.3": "rdma_set_local_ece" "rdma_get_remote_ece" }
names! { nothing, "RDMACM_1.0": "rdma_destroy_srq" }
names! { refused, "RDMACM_1.0":
    "rsocket" "rbind" "rlisten" "raccept" "rconnect" "rshutdown" "rclose" "rpoll" "rselect" "rgetpeername" "rgetsockname" "rsetsockopt"
    "rgetsockopt" "rfcntl" "riounmap"
}
names! { no_bytes, "RDMACM_1.0":
    "rrecv" "rrecvfrom" "rrecvmsg" "rsend" "rsendto" "rsendmsg" "rread" "rreadv" "rwrite" "rwritev" "riomap" "riowrite"
}
