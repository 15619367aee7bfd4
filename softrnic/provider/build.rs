//! Keeps softrnic's own `ibv_` functions out of the library's dynamic symbols, so that programs
//! find those of the system's libibverbs. A version script for the linker makes each of them local,
//! in the version that `export!` gives it (softrnic/src/abi/export.rs).

/// What Rust's own version script keeps local: some linkers take only the last script. A wildcard may
/// match nothing; a name may not.
const OTHERS: &str = "OTHERS { local: _R*; _ZN*; softrnic_*; rust_eh_personality; AUDITABLE_*; };";

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let folder = Path::new("../src/verbs");
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let files = std::fs::read_dir(folder).expect("softrnic's sources").flatten();
    // The files in folders, and private.rs, belong to the flavour for tools only.
    let sources = files.map(|file| file.path()).filter(|path| !path.ends_with("private.rs"));
    for path in sources.filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&path).expect("a source");
        for export in text.split("export!(").skip(1) {
            let mut quoted = export.split('"').skip(1).step_by(2).map(str::to_owned);
            if let (Some(name), Some(version)) = (quoted.next(), quoted.next()) {
                versions.entry(version).or_default().insert(name);
            }
        }
    }
    let script = versions.iter().fold(String::new(), |mut script, (version, names)| {
        let names: String = names.iter().map(|name| format!("{name}; ")).collect();
        let _ = writeln!(script, "{version} {{ local: {names}}};");
        script
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let file = out.join("local.map");
    std::fs::write(&file, script + OTHERS).expect("OUT_DIR can be written to");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", file.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsoftrnic-provider.so");
    // Threads and hooks outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", folder.display());
}
