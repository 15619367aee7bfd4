"""The tarball: everything in one folder, which may lie anywhere."""

from .archive import gzipped, tar
from .description import Release


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    folder = release.name("")
    return f"{folder}.tar.gz", gzipped(tar([entry.below(folder) for entry in release.tree], release.epoch))
