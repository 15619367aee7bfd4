//! The hash of a file.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// [`Error::Io`].
pub fn sha256(path: &Path) -> Result<String> {
    let failed = |source| Error::io(format!("cannot read {}", path.display()), source);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).map_err(failed)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
