//! The files libnccl.so.2 of a machine, and which of them PyTorch takes.

use std::path::{Path, PathBuf};

use crate::nccl::dynamic_loader::DynamicLoader;

/// Major, minor and patch number.
pub type Version = (u32, u32, u32);

/// A file libnccl.so.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclFile {
    pub path: PathBuf,
    /// `None`: it does not tell.
    pub version: Option<Version>,
    /// PyTorch of the same Python takes it, whatever the loader's folders have.
    pub is_of_pytorch: bool,
}

const FILE: &str = "libnccl.so.2";

/// Where the loader and Python look: those of the loader first, in its order; then those of Python, the job's own first.
pub fn find(loader: DynamicLoader<'_>) -> Vec<NcclFile> {
    let mut found: Vec<NcclFile> = Vec::new();
    let mut add = |path: PathBuf, is_of_pytorch: bool| {
        let resolved = loader.root.resolved(&path);
        match found.iter_mut().find(|known| loader.root.resolved(&known.path) == resolved) {
            Some(known) => known.is_of_pytorch |= is_of_pytorch,
            None => {
                let version = version(&loader.root.path(&path));
                found.push(NcclFile { path, version, is_of_pytorch });
            }
        }
    };
    loader.places(FILE).into_iter().for_each(|path| add(path, false));
    for folder in python_folders(loader) {
        let path = folder.join("nvidia/nccl/lib").join(FILE);
        if loader.root.exists(&path) {
            add(path, loader.root.exists(folder.join("torch/lib")));
        }
    }
    found
}

/// The folders of Python's packages: of `$PYTHONPATH`, of the first Python in `$PATH`, of `$VIRTUAL_ENV` and `$CONDA_PREFIX`, of the user,
/// and the usual ones.
fn python_folders(loader: DynamicLoader<'_>) -> Vec<PathBuf> {
    let list = |name| loader.var(name).unwrap_or_default().split(':').filter(|part| !part.is_empty());
    let mut folders: Vec<PathBuf> = list("PYTHONPATH").map(|part| loader.absolute(part)).collect();
    let has_python = |folder: &PathBuf| ["python3", "python"].iter().any(|name| loader.root.exists(folder.join(name)));
    let mut in_path = list("PATH").map(|part| loader.absolute(part)).filter(has_python);
    // The folder's own name counts: the programs of a virtual environment are links.
    let first = in_path.next().and_then(|folder| Some(folder.parent()?.to_owned()));
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| loader.var(name)).map(PathBuf::from);
    let home = loader.var("HOME").map(|home| Path::new(home).join(".local"));
    let usual = ["/usr/local", "/usr", "/opt/conda"].map(PathBuf::from);
    for prefix in first.into_iter().chain(named).chain(home).chain(usual) {
        for lib in ["lib", "lib64"].map(|lib| prefix.join(lib)) {
            for python in loader.root.names(&lib).iter().filter(|name| name.starts_with("python3")) {
                folders.extend(["site-packages", "dist-packages"].map(|packages| lib.join(python).join(packages)));
            }
        }
    }
    folders
}

/// The version in the text `NCCL version 2.21.5` of the library.
fn version(file: &Path) -> Option<Version> {
    const MARK: &[u8] = b"NCCL version ";
    let bytes = std::fs::read(file).ok()?;
    let mut starts = bytes.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    starts.find_map(|(at, _)| {
        let text = &bytes[at + MARK.len()..(at + MARK.len() + 16).min(bytes.len())];
        let text = String::from_utf8_lossy(text);
        let mut parts = text.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
        Some((parts.next()?, parts.next()?, parts.next()?))
    })
}
