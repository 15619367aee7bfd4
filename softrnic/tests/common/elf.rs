//! Dynamic symbols of programs and libraries, with their versions.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, Sym};

/// `name@version`.
pub type Names = HashSet<String>;

/// What the library offers.
pub fn exports(path: &Path) -> Names {
    names(path, |is_undefined| !is_undefined)
}

/// What the file takes from others, of versions that begin so.
pub fn imports(path: &Path, version: &str) -> Names {
    let mut found = names(path, |is_undefined| is_undefined);
    found.retain(|name| name.split('@').nth(1).is_some_and(|v| v.starts_with(version)));
    found
}

fn names(path: &Path, wanted: impl Fn(bool) -> bool) -> Names {
    let bytes = std::fs::read(path).expect("readable");
    let data = bytes.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).expect("ELF");
    let endian = header.endian().expect("byte order");
    let sections = header.sections(endian, data).expect("sections");
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM).expect("dynamic symbols");
    let versions = sections.versions(endian, data).expect("versions").expect("a versioned file");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found = Names::new();
    for (index, symbol) in symbols.enumerate().filter(|(_, s)| wanted(s.is_undefined(endian))) {
        let version =
            versions.version(versions.version_index(endian, index)).expect("a known version");
        if let Some(version) = version {
            let name = symbols.symbol_name(endian, symbol).expect("a name");
            found.insert(format!("{}@{}", text(name), text(version.name())));
        }
    }
    found
}

/// Those of the programs that are installed.
pub fn programs(names: &[&str]) -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    find(names, folders)
}

/// Those of the libraries that are installed.
pub fn libraries(names: &[&str]) -> impl Iterator<Item = PathBuf> {
    let folders =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    find(names, folders.iter().map(PathBuf::from).collect())
}

fn find(names: &[&str], folders: Vec<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let first =
        |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|file| file.exists());
    names.iter().filter_map(first).collect::<Vec<_>>().into_iter()
}
