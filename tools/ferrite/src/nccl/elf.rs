//! Symbols that `dlsym` does not show: an ELF file's `.symtab`, read without loading the file.

use std::fs::File;
use std::path::Path;

use object::elf::{DF_1_NODELETE, DT_FLAGS_1, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, Object, ObjectSymbol};

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

/// The size of the defined data symbol `name`, dynamic or local.
///
/// # Errors
/// As [`local_symbol`]; [`Error::Refused`] if the symbol is no data.
pub fn data_size(path: &Path, name: &str) -> Result<u64> {
    let file = File::open(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)
        .map_err(|problem| Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") })?;
    let mut symbols = elf.dynamic_symbols().chain(elf.symbols());
    let found = symbols.find(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(name.as_bytes()));
    match found {
        Some(symbol) if symbol.kind() == object::SymbolKind::Data => Ok(symbol.size()),
        Some(symbol) => Err(Error::Refused(format!("{name} is no data object but {:?}", symbol.kind()))),
        None => Err(Error::Symbol {
            path: path.into(),
            symbol: name.into(),
            hint: "it is neither exported nor in .symtab".into(),
        }),
    }
}

/// Whether the file asks the loader never to unmap it.
///
/// # Errors
/// As [`local_symbol`], without the symbol.
pub fn is_nodelete(path: &Path) -> Result<bool> {
    let bytes = std::fs::read(path).map_err(|source| Error::io(format!("cannot read {}", path.display()), source))?;
    let failed = |problem| Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") };
    let header = FileHeader64::<Endianness>::parse(&*bytes).map_err(failed)?;
    let endian = header.endian().map_err(failed)?;
    let sections = header.sections(endian, &*bytes).map_err(failed)?;
    let entries = sections.dynamic(endian, &*bytes).map_err(failed)?.map_or(&[][..], |(entries, _)| entries);
    let flags = entries.iter().find(|entry| entry.d_tag(endian) == DT_FLAGS_1);
    Ok(flags.is_some_and(|entry| entry.d_val(endian) & u64::from(DF_1_NODELETE) != 0))
}
