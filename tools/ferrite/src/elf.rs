//! Symbols that `dlsym` does not show: an ELF file's `.symtab`, read without loading the file.

use std::fs::File;
use std::path::Path;

use object::read::ReadCache;
use object::{Object, ObjectSymbol};

use crate::error::{Error, Result};

/// The `st_value` of the defined symbol `name` in the `.symtab` of the file at `path`: its address
/// before the load bias is added.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Load`] if it is no ELF file or cut short,
/// [`Error::Symbol`] if it has no such symbol (or was stripped).
pub fn local_symbol(path: &Path, name: &str) -> Result<u64> {
    let file = File::open(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)
        .map_err(|problem| Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") })?;
    let mut seen = 0_usize;
    for symbol in elf.symbols() {
        seen += 1;
        if symbol.is_definition() && symbol.name_bytes() == Ok(name.as_bytes()) {
            return Ok(symbol.address());
        }
    }
    Err(Error::Symbol {
        path: path.into(),
        symbol: name.into(),
        hint: if seen == 0 {
            "its .symtab is missing or empty: the file was stripped, use the one from the wheel".into()
        } else {
            format!("none of the {seen} entries of its .symtab has that name")
        },
    })
}

/// The names of the defined dynamic symbols that start with `prefix`.
///
/// # Errors
/// As [`local_symbol`], except that finding none is no error.
pub fn exports(path: &Path, prefix: &str) -> Result<Vec<String>> {
    let file = File::open(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)
        .map_err(|problem| Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") })?;
    let mut names: Vec<String> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
