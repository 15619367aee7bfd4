"""Tar files: equal entries make equal bits."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import PurePosixPath

from .description import Entry


def folders(entries: Iterable[Entry]) -> list[str]:
    """All that the entries lie in, each before what is in it."""
    found = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
    return sorted(found - {"."})


def tar(entries: Iterable[Entry], epoch: int, prefix: str = "") -> bytes:
    """Of these entries and the folders that they lie in; `prefix` comes before each name."""
    entries = list(entries)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as file:
        for folder in folders(entries):
            add(file, prefix + folder, tarfile.DIRTYPE, 0o755, epoch)
        for entry in entries:
            if entry.link:
                add(file, prefix + entry.path, tarfile.SYMTYPE, 0o777, epoch, link=entry.link)
            else:
                add(file, prefix + entry.path, tarfile.REGTYPE, 0o755 if entry.executable else 0o644, epoch, entry.content)
    return buffer.getvalue()


def add(file: tarfile.TarFile, name: str, kind: bytes, mode: int, epoch: int, content: bytes = b"", link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname, info.size = kind, mode, epoch, link, len(content)
    info.uname = info.gname = "root"
    file.addfile(info, io.BytesIO(content))


def gzipped(content: bytes, level: int = 6) -> bytes:
    """Without a name and a time."""
    return gzip.compress(content, level, mtime=0)
