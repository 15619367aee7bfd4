//! Two copies of the library in one process: a folder that was copied with its links followed, two folders, two namespaces of the loader.

use std::io::Error;
use std::ptr;

use crate::common::node::{Node, Terms, Work};
use crate::common::verbs::*;
use testkit::Scratch;
use testkit::softrnic::Softrnic;

/// Another copy of the library; its file has another name.
fn load_copy(folder: &Scratch, name: &str, namespace: libc::Lmid_t) -> Ptr {
    let path = folder.path().join(name);
    std::fs::copy(library_path(), &path).expect("a copy");
    load(&path, namespace)
}

/// Each end belongs to a copy of its own.
fn exchange(ends: [(Ptr, &Node); 2]) {
    for (end, peer) in [(0, 1), (1, 0)] {
        use_library(ends[end].0);
        ends[end].1.connect(&ends[peer].1.address(), &Terms::default());
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (ends[from].1, ends[to].1);
        to.recv(1, &[to.sge(0, 64)]);
        from.send(Work { opcode: SEND, sges: &[from.sge(64, 64)], ..Work::default() });
        assert_eq!((from.next().status, to.next().status), (OK, OK));
        assert_eq!(to.memory[..64], from.memory[64..128]);
    }
}

fn two_copies_in(namespace: libc::Lmid_t) {
    let folder = Scratch::new();
    let first = handle();
    let mut one = Node::new(0, 128);
    one.memory[64..].fill(1);

    // A copy that is refused takes nothing from the first one.
    // SAFETY: no other thread reads or writes the environment: the device's has read it.
    unsafe { std::env::set_var("SOFTRNIC_DEVICES", "5") };
    use_library(load_copy(&folder, "refused.so", libc::LM_ID_BASE));
    assert!(ibv_get_device_list(&mut 0).is_null());
    // SAFETY: as above.
    unsafe { std::env::remove_var("SOFTRNIC_DEVICES") };

    let second = load_copy(&folder, "libibverbs.so", namespace);
    assert_ne!(first, second);
    use_library(second);
    let mut other = Node::new(1, 128);
    other.memory[64..].fill(2);
    exchange([(first, &one), (second, &other)]);

    // What one copy has made is nothing to the other.
    assert!(ibv_create_cq(one.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
    if namespace == libc::LM_ID_BASE {
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    }
    other.close();
    use_library(first);
    one.close();
}

#[test]
fn two_copies_in_one_process_are_as_two_processes() {
    Softrnic::new().alone(|| two_copies_in(libc::LM_ID_BASE));
}

#[test]
fn a_copy_in_another_namespace_of_the_loader_is_as_another_process() {
    Softrnic::new().alone(|| two_copies_in(libc::LM_ID_NEWLM));
}
