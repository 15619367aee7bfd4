//! Finding a vtable, and refusing what is not the thing that was named.

use std::path::Path;

use crate::common::{fake_nccl, loopback, shared_object};
use lab::error::Error;
use lab::nccl::library;
use lab::nccl::library::Library;
use lab::nccl::library::Source;
use lab::nccl::release;
use testkit::Scratch;

fn refusal(source: &Source) -> String {
    match Library::open(source) {
        Err(problem) => problem.to_string(),
        Ok(library) => panic!("{source:?} was taken as {library:?}"),
    }
}

#[test]
fn a_plugin_is_loaded_and_identified() {
    let path = loopback();
    let library = Library::open(&Source::plugin(&path)).expect("the loopback is a plugin");
    let identity = library.identity();
    assert_eq!(identity.name, "Loopback");
    assert_eq!(identity.symbol, "ncclNetPlugin_v8");
    assert_eq!(identity.functions, 15);
    assert_eq!(identity.file, std::fs::canonicalize(path).expect("it exists"));
    assert_eq!((identity.nccl_version, identity.interface), (None, 8));
}

/// glibc says of it that there is no such file.
#[test]
fn a_plugin_for_another_processor_is_refused_with_what_helps() {
    let folder = Scratch::new();
    let mut bytes = std::fs::read(loopback()).expect("it is there");
    // `e_machine` of the ELF header: SPARC.
    bytes[18..20].copy_from_slice(&2u16.to_le_bytes());
    let path = folder.join("other.so");
    std::fs::write(&path, bytes).expect("it can be written");
    let words = refusal(&Source::plugin(&path));
    assert!(words.contains("it is for another processor (ELF machine 2): install the package for "), "{words}");
}

#[test]
fn the_built_in_transport_is_found_by_its_local_symbol() {
    let library = Library::open(&Source::stock(fake_nccl())).expect("it has the shape");
    assert_eq!(library.identity().name, "IB");
    assert_eq!(library.identity().nccl_version, Some(22105));
}

#[test]
fn a_built_in_transport_of_another_name_is_refused() {
    let path = shared_object("loopback", &["-DAS_NCCL=22105", "-DVTABLE_NAME=\"Socket\""]);
    assert!(refusal(&Source::stock(path)).contains("is named \"Socket\", not \"IB\""));
}

#[test]
fn another_version_is_refused() {
    let path = shared_object("loopback", &["-DAS_NCCL=21903", "-DVTABLE_NAME=\"IB\""]);
    let words = refusal(&Source::stock(&path));
    assert!(
        words.ends_with("is NCCL 2.19.3; known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.30.7, 2.32.3"),
        "{words}"
    );
    assert!(release::verify(&path).is_err());
}

#[test]
fn a_missing_symbol_names_file_and_symbol() {
    let path = loopback();
    let words = refusal(&Source::stock(&path));
    assert!(words.contains(&path.file_name().expect("it has a name").to_string_lossy().into_owned()), "{words}");
    assert!(words.contains("has no symbol ncclNetIb"), "{words}");
}

#[test]
fn an_older_plugin_is_named_as_such() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DONLY_V6"])));
    assert!(words.ends_with("it exports ncclNetPlugin_v5, ncclNetPlugin_v6 only"), "{words}");
}

#[test]
fn a_vtable_with_a_null_function_is_refused() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DNO_TEST"])));
    assert!(words.ends_with("has no test"), "{words}");
}

#[test]
fn a_function_of_another_library_is_refused() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DFOREIGN_TEST"])));
    assert!(words.contains("refused: test of the vtable in"), "{words}");
    assert!(words.contains("libc.so"), "{words}");
}

#[test]
fn what_is_no_library_is_refused() {
    assert!(refusal(&Source::plugin("/etc/passwd")).contains("not a whole ELF file"));
    assert!(refusal(&Source::stock("/no/such/file")).contains("cannot open /no/such/file"));
}

#[test]
fn a_file_cut_short_is_not_even_loaded() {
    let whole = std::fs::read(fake_nccl()).expect("it can be read");
    let folder = Scratch::new();
    let cut = folder.write("libnccl.so.2", &whole[..whole.len() * 2 / 3]);
    let words = refusal(&Source::stock(&cut));
    assert!(words.contains("not a whole ELF file") || words.contains("has no symbol"), "{words}");
}

#[test]
fn a_stripped_file_says_so() {
    let stripped = shared_object("loopback", &["-DAS_NCCL=22105", "-DVTABLE_NAME=\"IB\"", "-s"]);
    match library::local_symbol(&stripped, "ncclNetIb") {
        Err(Error::Symbol { hint, .. }) => assert!(hint.contains("stripped"), "{hint}"),
        other => panic!("{other:?}"),
    }
    assert!(library::exports(&stripped, "ncclGet").expect("it is an ELF file") == ["ncclGetVersion"]);
}

#[test]
fn a_symbol_of_this_program_is_found() {
    let own = std::env::current_exe().expect("it runs");
    assert!(library::local_symbol(&own, "main").is_ok_and(|value| value > 0));
    assert!(library::local_symbol(Path::new("/etc/hostname"), "x").is_err());
}
