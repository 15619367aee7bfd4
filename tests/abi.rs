//! The plugin as a file.

use object::{Object, ObjectSymbol};
use testkit::{Missing, require};

/// The built plugin.
fn plugin() -> Result<Vec<u8>, Missing> {
    let path = testkit::dist::plugin()?;
    Ok(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

#[test]
fn the_plugin_exports_its_tables_and_nothing_else() {
    let bytes = require!(plugin());
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exports = file.exports().expect("it has dynamic symbols");
    let mut exported: Vec<_> =
        exports.iter().map(|e| String::from_utf8_lossy(e.name()).into_owned()).collect();
    exported.sort();
    // As NCCL's versions have them: 19, 20, 20, 22 and 22 slots.
    let tables = [(8, 152), (9, 160), (10, 160), (11, 176), (12, 176)];
    let names = tables.map(|(version, _)| format!("ncclNetPlugin_v{version}"));
    for ((_, bytes), name) in tables.iter().zip(&names) {
        let symbol =
            file.dynamic_symbols().find(|s| s.name() == Ok(name.as_str())).expect("exported");
        assert_eq!((symbol.size(), symbol.kind()), (*bytes, object::SymbolKind::Data), "{name}");
    }
    let profilers = ["ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"];
    for name in profilers {
        let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(name)).expect("exported");
        assert_eq!((symbol.size(), symbol.kind()), (48, object::SymbolKind::Data), "{name}");
    }
    let mut names = names.to_vec();
    names.extend(profilers.map(str::to_owned));
    names.sort();
    assert_eq!(exported, names);
}

#[test]
fn the_plugin_needs_nothing_but_libc_and_its_kin() {
    let bytes = require!(plugin());
    use object::read::elf::{Dyn, FileHeader};
    let header =
        object::elf::FileHeader64::<object::Endianness>::parse(&*bytes).expect("a 64-bit ELF file");
    let endian = header.endian().expect("known byte order");
    let sections = header.sections(endian, &*bytes).expect("sections");
    let (dynamic, strings) = sections.dynamic(endian, &*bytes).expect("readable").expect("dynamic");
    let strings = sections.strings(endian, &*bytes, strings).expect("strings");
    let text = |offset: u64| {
        String::from_utf8_lossy(strings.get(offset as u32).expect("a string")).into_owned()
    };
    let value = |tag: i64| dynamic.iter().find(|d| d.d_tag(endian) == tag).map(|d| d.d_val(endian));
    let needed: Vec<_> = dynamic
        .iter()
        .filter(|d| d.d_tag(endian) == object::elf::DT_NEEDED)
        .map(|d| text(d.d_val(endian)))
        .collect();
    for library in &needed {
        let kin = [
            "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux",
            "libgcc_s.so",
        ];
        assert!(kin.iter().any(|k| library.starts_with(k)), "the plugin needs {library}");
    }
    assert_eq!(value(object::elf::DT_SONAME).map(text).as_deref(), Some("libnccl-net.so"));
    let flags = value(object::elf::DT_FLAGS_1).unwrap_or(0);
    assert_ne!(
        flags & u64::from(object::elf::DF_1_NODELETE),
        0,
        "it has threads and must not be unmapped"
    );
    assert_ne!(
        flags & u64::from(object::elf::DF_1_NOW),
        0,
        "all symbols are resolved when it is loaded"
    );
}

/// NCCL 2.28 and 2.29 unload a plugin with the last communicator, forget its name, and load
/// `libnccl-net.so` for the next one.
#[test]
fn a_plugin_of_any_file_name_is_found_again_by_the_name_that_nccl_falls_back_to() {
    let plugin = require!(testkit::dist::plugin());
    let folder = testkit::Scratch::new();
    let other = folder.join("another-name.so");
    std::fs::copy(plugin, &other).expect("copied");
    let open = |name: &std::ffi::OsStr| {
        let name = std::ffi::CString::new(name.as_encoded_bytes()).expect("no zero byte");
        // SAFETY: a library whose constructors only set it up; the name ends with a zero byte.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
    };
    let name = std::ffi::OsStr::new("libnccl-net.so");
    assert!(open(name).is_null(), "another plugin is where the loader looks: this shows nothing");
    let first = open(other.as_os_str());
    assert!(!first.is_null(), "it can be loaded");
    // SAFETY: opened above, and not used any more.
    unsafe { libc::dlclose(first) };
    let again = open(name);
    assert!(!again.is_null(), "NCCL finds no plugin");
    // SAFETY: an open library, and a name that ends with a zero byte.
    let table = unsafe { libc::dlsym(again, c"ncclNetPlugin_v11".as_ptr()) };
    assert!(!table.is_null(), "NCCL finds another library");
}
