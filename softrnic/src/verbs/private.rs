//! The private interface between the system's libibverbs and its driver libraries.
//!
//! Programs such as perftest link driver libraries (libmlx5, libefa) and librdmacm directly, and
//! those do not load unless every private name they were built against is here. With these names
//! the drivers load, find no device of theirs and stay idle. Under NCCL they are better not loaded
//! at all, hence a flavour of its own: feature `tools`.
//!
//! The node is named after the release of the driver interface: 34 is that of Debian 12, Ubuntu
//! 22.04 and 24.04. Each name is in every node, which is more than any one release has and hurts
//! nobody.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::host::{say, set_errno};

/// `export_private!(name, function)`: under every private version.
macro_rules! export_private {
    ($name:ident, $function:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            concat!(".globl softrnic_", stringify!($name)),
            concat!(".type softrnic_", stringify!($name), ",@function"),
            concat!("softrnic_", stringify!($name), ":"),
            concat!($crate::abi::export::jump!(), " {f}"),
            concat!(".size softrnic_", stringify!($name), ", .-softrnic_", stringify!($name)),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_25"),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_33"),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_34"),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_57"),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_59"),
            concat!(".symver softrnic_", stringify!($name), ",", stringify!($name), "@IBVERBS_PRIVATE_64"),
            ".popsection",
            f = sym $function,
        );
    };
}

/// A driver got as far as to use the kernel.
fn complain(name: &str) {
    say(format_args!(
        "{name} was called: a driver library wants a kernel device, and there is none (ENOSYS)"
    ));
    set_errno(libc::ENOSYS);
}

/// Functions that return an errno value.
macro_rules! answer_enosys {
    ($($name:ident)*) => {$(
        unsafe extern "C" fn $name() -> c_int {
            complain(stringify!($name));
            libc::ENOSYS
        }
        export_private!($name, $name);
    )*};
}

/// Functions that return a pointer.
macro_rules! answer_null {
    ($($name:ident)*) => {$(
        unsafe extern "C" fn $name() -> *mut c_void {
            complain(stringify!($name));
            ptr::null_mut()
        }
        export_private!($name, $name);
    )*};
}

/// Functions that need not do anything.
macro_rules! accept {
    ($($name:ident)*) => {$(
        unsafe extern "C" fn $name() {}
        export_private!($name, $name);
    )*};
}

// At load time each driver offers itself; these devices need none.
accept! {
    verbs_register_driver_25 verbs_register_driver_33 verbs_register_driver_34
    verbs_register_driver_57 verbs_register_driver_59 verbs_register_driver_64
    __verbs_log
}

// Contexts that are made of a kernel device.
answer_null! { _verbs_init_and_alloc_context verbs_open_device }
answer_enosys! {
    verbs_set_ops verbs_init_cq verbs_uninit_context
    ibv_cmd_get_context ibv_cmd_query_context
    ibv_cmd_query_device ibv_cmd_query_device_any ibv_cmd_query_device_ex
    ibv_cmd_query_port ibv_cmd_query_port_speed
    ibv_get_fw_ver ibv_read_ibdev_sysfs_file
}

// Protection domains, memory.
answer_enosys! {
    ibv_cmd_alloc_pd ibv_cmd_dealloc_pd ibv_cmd_open_xrcd ibv_cmd_close_xrcd
    ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_rereg_mr ibv_cmd_dereg_mr ibv_cmd_query_mr ibv_cmd_advise_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_export_dmabuf_fd
    ibv_cmd_alloc_mw ibv_cmd_dealloc_mw
    ibv_cmd_alloc_dm ibv_cmd_free_dm ibv_cmd_reg_dm_mr ibv_cmd_alloc_dmah ibv_cmd_free_dmah
    ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
}
answer_null! { ibv_dmabuf_heap_alloc }

// Queues.
answer_enosys! {
    ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_modify_cq ibv_cmd_resize_cq ibv_cmd_destroy_cq
    ibv_cmd_poll_cq ibv_cmd_req_notify_cq
    ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_open_qp
    ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_query_qp ibv_cmd_destroy_qp
    ibv_cmd_post_send ibv_cmd_post_recv ibv_cmd_post_srq_recv
    ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_modify_srq ibv_cmd_query_srq ibv_cmd_destroy_srq
    ibv_cmd_create_wq ibv_cmd_modify_wq ibv_cmd_destroy_wq
    ibv_cmd_create_rwq_ind_table ibv_cmd_destroy_rwq_ind_table
}
answer_null! { ibv_wr_opcode_str }

// Addresses, flows, counters, and the ioctl beneath all of them.
answer_enosys! {
    ibv_cmd_create_ah ibv_cmd_destroy_ah ibv_cmd_attach_mcast ibv_cmd_detach_mcast
    ibv_cmd_create_flow ibv_cmd_destroy_flow
    ibv_cmd_create_flow_action_esp ibv_cmd_modify_flow_action_esp ibv_cmd_destroy_flow_action
    ibv_cmd_create_counters ibv_cmd_read_counters ibv_cmd_destroy_counters
    execute_ioctl __ioctl_final_num_attrs
}

// The one that tools call for our own devices.
export_private!(ibv_query_gid_type, crate::verbs::device::query_gid_type);

// `bool verbs_allow_disassociate_destroy`, which drivers read: false.
std::arch::global_asm!(
    ".pushsection .bss.verbs_allow_disassociate_destroy,\"aw\",@nobits",
    ".globl softrnic_allow_disassociate_destroy",
    ".type softrnic_allow_disassociate_destroy,@object",
    "softrnic_allow_disassociate_destroy:",
    ".zero 1",
    ".size softrnic_allow_disassociate_destroy, 1",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_25",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_33",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_34",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_57",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_59",
    ".symver softrnic_allow_disassociate_destroy,verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_64",
    ".popsection",
);
