//! Symbols and flags of an ELF file, read without loading it: `dlsym` shows no local symbols.

use std::fs::File;
use std::path::Path;

use object::elf::{DF_1_NODELETE, DT_FLAGS_1};
use object::read::ReadCache;
use object::read::elf::{Dyn, ElfFile64};
use object::{Object, ObjectSegment, ObjectSymbol};

use crate::error::{Error, Result};

/// A parsed 64-bit ELF file; its parts are read as they are needed.
type Elf<'file> = ElfFile64<'file, object::Endianness, &'file ReadCache<File>>;

/// Opens and parses the file at `path`, and passes it to `look`.
fn with_file<T>(path: &Path, look: impl FnOnce(&Elf<'_>) -> Result<T>) -> Result<T> {
    let file = File::open(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    let cache = ReadCache::new(file);
    let elf = Elf::parse(&cache).map_err(|problem| not_whole(path, problem))?;
    look(&elf)
}

fn not_whole(path: &Path, problem: object::Error) -> Error {
    Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") }
}

/// The `st_value` of each of the defined symbols `names` in the `.symtab` of the file at `path`: their addresses before
/// the load bias is added.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Load`] if it is no ELF file or incomplete,
/// [`Error::Symbol`] if it has no such symbol (or was stripped).
pub fn local_symbols<const N: usize>(path: &Path, names: [&str; N]) -> Result<[u64; N]> {
    with_file(path, |elf| {
        let mut values = [None; N];
        let mut seen = 0_usize;
        for symbol in elf.symbols() {
            seen += 1;
            let place = names.iter().position(|name| symbol.name_bytes() == Ok(name.as_bytes()));
            if let Some(place) = place.filter(|_| symbol.is_definition()) {
                values[place].get_or_insert_with(|| symbol.address());
            }
        }
        if let Some(missing) = values.iter().position(Option::is_none) {
            return Err(Error::Symbol {
                path: path.into(),
                symbol: names[missing].into(),
                hint: if seen == 0 {
                    "its .symtab is missing or empty: the file was stripped, use the one from the wheel".into()
                } else {
                    format!("none of the {seen} entries of its .symtab has that name")
                },
            });
        }
        Ok(values.map(Option::unwrap_or_default))
    })
}

/// As [`local_symbols`], of one name.
///
/// # Errors
/// As [`local_symbols`].
pub fn local_symbol(path: &Path, name: &str) -> Result<u64> {
    local_symbols(path, [name]).map(|[value]| value)
}

/// The names of the defined dynamic symbols that start with `prefix`.
///
/// # Errors
/// As [`local_symbols`], except that finding none is no error.
pub fn exports(path: &Path, prefix: &str) -> Result<Vec<String>> {
    with_file(path, |elf| {
        let mut names: Vec<String> = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    })
}

/// The size of the defined data symbol `name`, dynamic or local.
///
/// # Errors
/// As [`local_symbols`]; [`Error::Refused`] if the symbol is no data.
pub fn data_size(path: &Path, name: &str) -> Result<u64> {
    with_file(path, |elf| {
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
    })
}

/// Whether the file asks the loader never to unmap it.
///
/// # Errors
/// As [`local_symbols`], without the symbol.
pub fn is_nodelete(path: &Path) -> Result<bool> {
    with_file(path, |elf| {
        let failed = |problem| not_whole(path, problem);
        let dynamic = elf.elf_section_table().dynamic(elf.endian(), elf.data()).map_err(failed)?;
        let entries = dynamic.map_or(&[][..], |(entries, _)| entries);
        let flags = entries.iter().find(|entry| entry.d_tag(elf.endian()) == DT_FLAGS_1);
        Ok(flags.is_some_and(|entry| entry.d_val(elf.endian()) & u64::from(DF_1_NODELETE) != 0))
    })
}

/// The bytes at each of `addresses`, before the load bias is added: `length` of them, or as many as there are.
///
/// # Errors
/// As [`local_symbols`], without the symbol; [`Error::Refused`] if the code is not for x86-64.
pub fn x86_64_code_at(path: &Path, addresses: &[u64], length: u64) -> Result<Vec<Vec<u8>>> {
    with_file(path, |elf| {
        if elf.architecture() != object::Architecture::X86_64 {
            return Err(Error::Refused(format!("{} is not for x86-64", path.display())));
        }
        let segments: Vec<_> = elf.segments().map(|segment| (segment.address(), segment.size(), segment)).collect();
        let code_at = |address: &u64| {
            let found = segments.iter().find(|(start, size, _)| (*start..start + size).contains(address));
            let Some((start, size, segment)) = found else { return Ok(Vec::new()) };
            let length = length.min(start + size - address);
            let bytes = segment.data_range(*address, length).map_err(|problem| not_whole(path, problem))?;
            Ok(bytes.unwrap_or_default().to_vec())
        };
        addresses.iter().map(code_at).collect()
    })
}
