"""Files that a program reads or writes: the sum of a library, a folder for the report, JSON."""

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import elf
from .exit_codes import Invalid


@dataclass(frozen=True)
class Library:
    """A file, and its sum."""

    path: str
    sha256: str
    version: str = ""  # of Ferrite, with the commit; "" if it does not tell, as NCCL

    def text(self) -> str:
        """In a report."""
        return f"{self.version}, sha256 `{self.sha256}`" if self.version else f"sha256 `{self.sha256}`"


def library(path: Path) -> Library:
    return Library(str(path.resolve()), sha256(path), elf.version_in(path.read_bytes()))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_writable(folder: Path) -> None:
    """Something can be written into `folder`, the value of --out, or into the nearest folder above it that is there: it is made when
    there is something to write, so that a program that fails before leaves no empty folder."""
    try:
        tempfile.TemporaryFile(dir=next(one for one in (folder, *folder.parents) if one.exists())).close()
    except OSError as error:
        raise Invalid(f"--out {folder}: {error.strerror}; name a folder that can be written to") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path} has no JSON object")
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def report(folder: Path, title: str, summary: str, parts: list[str], raw: dict[str, Any] | None = None) -> None:
    """Writes report.md, and raw.json if there is one, and prints the summary: even if the report cannot be written, and the report is
    written even if standard output is closed."""
    failed = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if raw is not None:
            write_json(folder / "raw.json", raw)
        page = [f"# {title}", summary[:1].upper() + summary[1:] + ".", *parts]
        (folder / "report.md").write_text("\n\n".join(page) + "\n")
    except OSError as error:
        failed = error
    print(summary)
    if failed:
        raise Invalid(f"the report was not written to {folder}: {failed.strerror}") from failed
    print(f"report: {folder / 'report.md'}")
