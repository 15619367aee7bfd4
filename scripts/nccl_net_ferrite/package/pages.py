"""Man pages and completions of the programs, which scripts/package.sh has had them write."""

from pathlib import Path

from ..errors import Invalid
from .archive import gzipped
from .description import Entry

ZSH = "share/zsh/site-functions/"
# Where Debian's zsh looks.
ZSH_OF_DEBIAN = "share/zsh/vendor-completions/"


def read(share: Path) -> list[Entry]:
    """All files of the folder, below share. Man pages are compressed, as they lie on systems."""
    found = []
    for path in sorted(path for path in share.rglob("*") if path.is_file()):
        name = f"share/{path.relative_to(share)}"
        manual = name.startswith("share/man/")
        found.append(Entry(f"{name}.gz", gzipped(path.read_bytes(), 9)) if manual else Entry(name, path.read_bytes()))
    if not any(entry.path == "share/man/man1/ferrite.1.gz" for entry in found):
        raise Invalid(f"--share {share}: man/man1/ferrite.1 is not there; scripts/package.sh makes it")
    return found
