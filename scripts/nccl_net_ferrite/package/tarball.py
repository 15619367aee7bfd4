"""The tarballs, each of one folder, which may lie anywhere: one of everything, and one of the software RDMA device alone."""

from .archive import gzipped, tar
from .description import DEVICE, Entry, Release


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    return packed(release.name(""), release.tree, release.epoch)


def make_device(release: Release) -> tuple[str, bytes]:
    """Those of the software device."""
    return packed(release.name("", DEVICE), release.device_tree, release.epoch)


def packed(folder: str, tree: list[Entry], epoch: int) -> tuple[str, bytes]:
    return f"{folder}.tar.gz", gzipped(tar([entry.below(folder) for entry in tree], epoch))
