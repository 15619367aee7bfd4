//! Features that these devices do not have. The names exist, because some programs look all of them
//! up before they use any; each answers that the operation is not supported.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::abi::export::export;
use crate::host::set_errno;

/// For functions that return a pointer. Arguments are in registers nobody reads.
unsafe extern "C" fn no_object() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}
export!("ibv_import_device", "IBVERBS_1.10", no_object);
export!("ibv_import_pd", "IBVERBS_1.10", no_object);
export!("ibv_import_mr", "IBVERBS_1.10", no_object);
export!("ibv_import_dm", "IBVERBS_1.13", no_object);
export!("ibv_alloc_dmah", "IBVERBS_1.15", no_object);
export!("ibv_reg_mr_ex", "IBVERBS_1.15", no_object);

/// For functions that return an errno value.
unsafe extern "C" fn no_operation() -> c_int {
    libc::EOPNOTSUPP
}
export!("ibv_attach_mcast", "IBVERBS_1.1", no_operation);
export!("ibv_detach_mcast", "IBVERBS_1.1", no_operation);
export!("ibv_dealloc_dmah", "IBVERBS_1.15", no_operation);

/// For functions that return -1 and set errno.
unsafe extern "C" fn no_answer() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}
export!("ibv_resolve_eth_l2_from_gid", "IBVERBS_1.1", no_answer);

/// For what follows an import, which nobody can have made, and for conversions of what a kernel
/// device said: there is none, so nothing is converted.
unsafe extern "C" fn nothing() {}
export!("ibv_unimport_pd", "IBVERBS_1.10", nothing);
export!("ibv_unimport_mr", "IBVERBS_1.10", nothing);
export!("ibv_unimport_dm", "IBVERBS_1.13", nothing);
export!("ibv_copy_ah_attr_from_kern", "IBVERBS_1.1", nothing);
export!("ibv_copy_qp_attr_from_kern", "IBVERBS_1.0", nothing);
export!("ibv_copy_path_rec_from_kern", "IBVERBS_1.0", nothing);
export!("ibv_copy_path_rec_to_kern", "IBVERBS_1.0", nothing);

/// Data of a message arrives in order, but that is no promise to build on.
unsafe extern "C" fn no_promise() -> c_int {
    0
}
export!("ibv_query_qp_data_in_order", "IBVERBS_1.14", no_promise);
