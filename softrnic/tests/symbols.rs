//! The symbol table: names, versions, soname.

mod common;

use common::prelude::*;
use common::{elf, tools};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int};
use std::fs::File;
use std::io::{Read, Seek};
use std::mem::transmute;
use std::os::fd::{AsRawFd, FromRawFd};

const TABLE: &[(&str, &[&str])] = &[
    (
        "IBVERBS_1.1",
        &[
            "ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name",
            "ibv_get_device_guid", "ibv_open_device", "ibv_close_device", "ibv_get_async_event",
            "ibv_ack_async_event", "ibv_query_device", "ibv_query_port", "ibv_query_gid",
            "ibv_query_pkey", "ibv_query_qp", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr",
            "ibv_dereg_mr", "ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp", "ibv_modify_qp",
            "ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str", "ibv_wc_status_str",
            "ibv_node_type_str", "ibv_port_state_str", "ibv_get_cq_event", "ibv_ack_cq_events",
            "ibv_create_srq", "ibv_modify_srq", "ibv_query_srq", "ibv_destroy_srq",
            "ibv_create_ah", "ibv_destroy_ah", "ibv_create_ah_from_wc", "ibv_init_ah_from_wc",
            "ibv_attach_mcast", "ibv_detach_mcast", "ibv_resize_cq", "ibv_rereg_mr",
            "ibv_dontfork_range", "ibv_dofork_range", "ibv_resolve_eth_l2_from_gid",
            "ibv_copy_ah_attr_from_kern",
        ],
    ),
    (
        "IBVERBS_1.0",
        &[
            "ibv_create_comp_channel", "ibv_destroy_comp_channel", "ibv_read_sysfs_file",
            "ibv_get_sysfs_path", "ibv_copy_qp_attr_from_kern", "ibv_copy_path_rec_from_kern",
            "ibv_copy_path_rec_to_kern",
        ],
    ),
    ("IBVERBS_1.5", &["ibv_get_pkey_index"]),
    ("IBVERBS_1.6", &["ibv_qp_to_qp_ex"]),
    ("IBVERBS_1.7", &["ibv_reg_mr_iova"]),
    ("IBVERBS_1.8", &["ibv_reg_mr_iova2"]),
    ("IBVERBS_1.9", &["ibv_get_device_index"]),
    ("IBVERBS_1.10", &["ibv_query_ece", "ibv_set_ece"]),
    ("IBVERBS_1.11", &["_ibv_query_gid_ex", "_ibv_query_gid_table"]),
    ("IBVERBS_1.12", &["ibv_reg_dmabuf_mr"]),
    ("IBVERBS_1.13", &["ibv_is_fork_initialized"]),
    ("IBVERBS_1.16", &["ibv_query_port_speed"]),
];

#[test]
fn every_name_is_found_under_its_version() {
    for (version, names) in TABLE {
        for name in *names {
            assert!(!symbol(name, version).is_null(), "{name}@{version}");
        }
    }
}

#[test]
fn a_version_is_not_just_ignored() {
    assert!(symbol("ibv_get_device_list", "IBVERBS_1.16").is_null());
    assert!(symbol("ibv_get_device_list", "IBVERBS_PRIVATE_34").is_null());
    assert!(symbol("no_such_name", "IBVERBS_1.1").is_null());
}

#[test]
fn the_library_calls_itself_libibverbs() {
    let bytes = std::fs::read(library_path()).expect("library");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
    assert!(has(b"\0libibverbs.so.1\0"), "soname");
    // With a private node the system's driver libraries would load against us.
    assert_eq!(has(b"\0IBVERBS_PRIVATE"), cfg!(feature = "tools"), "private version nodes");
}

#[test]
fn versions_are_those_of_the_systems_library() {
    let missing = Missing::new("libibverbs.so.1 is missing (package libibverbs1)");
    let system = require!(elf::libraries(&["libibverbs.so.1"]).next().ok_or(missing));
    let theirs = elf::exports(&system);
    let known: HashSet<_> = theirs.iter().filter_map(|name| name.split('@').next()).collect();
    let ours = elf::exports(&library_path());
    let shared: Vec<_> =
        ours.iter().filter(|name| known.contains(name.split('@').next().unwrap_or(name))).collect();
    let wrong: Vec<_> = shared
        .iter()
        .filter(|name| !name.contains("_PRIVATE_") && !theirs.contains(**name))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(shared.len() > 50, "{} names: too few to believe", shared.len());
}

#[test]
fn the_tools_flavour_has_all_that_installed_programs_want() {
    let library = require!(tools::library());
    let offered = elf::exports(&library);
    let files = elf::programs(tools::PROGRAMS).chain(elf::libraries(tools::LIBRARIES));
    let mut wanted = 0;
    for file in files {
        let mut imports = elf::imports(&file, "IBVERBS_");
        imports.extend(elf::imports(&file, "RDMACM_"));
        let missing: Vec<_> = imports.iter().filter(|name| !offered.contains(*name)).collect();
        assert!(missing.is_empty(), "{} wants {missing:?}", file.display());
        wanted += imports.len();
    }
    assert!(wanted > 100, "{wanted} names: too few to believe");
}

/// A driver library that uses the kernel gets an answer, and the user a line; nothing is aborted.
#[test]
fn private_names_answer_that_there_is_no_kernel_device() {
    let library = require!(tools::library());
    Softrnic::new().alone(|| {
        let path = CString::new(library.to_str().expect("UTF-8")).expect("path");
        // SAFETY: a valid path; the library has no initialisers of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        let private = |name: &CStr, version: &CStr| {
            // SAFETY: valid handle and C strings.
            let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
            assert!(!found.is_null(), "{name:?}@{version:?}");
            found
        };
        let said = stderr_of(|| {
            for version in [c"IBVERBS_PRIVATE_25", c"IBVERBS_PRIVATE_34", c"IBVERBS_PRIVATE_64"] {
                let alloc_pd = private(c"ibv_cmd_alloc_pd", version);
                let open = private(c"verbs_open_device", version);
                let register = private(c"verbs_register_driver_34", version);
                let flag = private(c"verbs_allow_disassociate_destroy", version);
                // SAFETY: stubs that read no arguments, of these return types; the last is a
                // variable.
                unsafe {
                    assert_eq!(
                        transmute::<Ptr, extern "C" fn() -> c_int>(alloc_pd)(),
                        libc::ENOSYS
                    );
                    assert!(transmute::<Ptr, extern "C" fn() -> Ptr>(open)().is_null());
                    transmute::<Ptr, extern "C" fn()>(register)();
                    assert!(!*flag.cast::<bool>());
                }
            }
        });
        let lines: Vec<_> =
            said.lines().map(|l| l.split_whitespace().nth(1).unwrap_or_default()).collect();
        assert_eq!(lines, ["ibv_cmd_alloc_pd", "verbs_open_device"].repeat(3), "{said}");
    });
}

/// What is written to descriptor 2 meanwhile.
fn stderr_of(work: impl FnOnce()) -> String {
    let mut file = tempfile();
    // SAFETY: plain system calls on descriptors of this process.
    let before = unsafe { libc::dup(2) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
    work();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(before, 2) }, 2);
    let mut text = String::new();
    file.rewind().expect("a file");
    file.read_to_string(&mut text).expect("text");
    text
}

/// A file without a name.
fn tempfile() -> File {
    // SAFETY: a valid name; the descriptor is new and ours.
    unsafe {
        let fd = libc::memfd_create(c"stderr".as_ptr(), 0);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    }
}
