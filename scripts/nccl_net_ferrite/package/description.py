"""What is released: its name, its version, and every file with its place. All packages are made from this."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from .. import elf
from ..errors import Invalid
from ..repository import HERE, JOB, ROOT

NAME = "nccl-net-ferrite"
# Of the package that has the software RDMA device alone.
DEVICE = "softrnic"
SUMMARY = "A network plugin for NCCL over RDMA verbs"
TEXT = """Ferrite is a network plugin for NCCL: one shared library, libnccl-net.so, that moves
NCCL's data over RDMA verbs (InfiniBand and RoCE). With it come ferrite, which checks,
measures and compares transports; softrnic, a software RDMA device for tests; and
programs that compare it with NCCL's built-in transport inside PyTorch."""
LICENCE = "MIT OR Apache-2.0"
MAINTAINER = "The Ferrite authors"
# The programs in Python: all of this package but the part that makes packages.
PYTHON = ("*.py", "ab/*.py", "ddp/*.py", "hang/*.py", "launch/*.py", "matrix/*.py", "matrix/*.c", "nccl/*.py")
# Debian's names of machines.
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Entry:
    """A file, or a link to another one."""

    path: str
    content: bytes = b""
    executable: bool = False
    link: str = ""  # where it leads to; "" for a file

    def below(self, folder: str) -> "Entry":
        return replace(self, path=f"{folder}/{self.path}")


@dataclass(frozen=True)
class Release:
    version: str  # such as 0.1.0
    build: str  # the same with the commit, such as 0.1.0+0123456789ab
    machine: str
    glibc: tuple[int, int]  # the oldest that all its programs can be loaded with
    epoch: int  # seconds since 1970, the time of every file
    programs: tuple[Entry, ...]
    python: tuple[Entry, ...]  # the folder nccl_net_ferrite
    headers: tuple[Entry, ...]  # NCCL's, for what is compiled while it runs
    documents: tuple[Entry, ...]
    device_documents: tuple[Entry, ...]  # those of the software device
    pages: tuple[Entry, ...]  # man pages and completions, below share

    @property
    def tree(self) -> list[Entry]:
        """As it lies in a folder of its own."""
        python = [entry.below("python") for entry in self.python]
        headers = [entry.below("include/nccl") for entry in self.headers]
        return sorted([*self.programs, *python, *headers, *self.documents, *self.pages], key=lambda entry: entry.path)

    @property
    def device_tree(self) -> list[Entry]:
        """The same of the software device alone."""
        folders = (f"{DEVICE}/", f"{DEVICE}-tools/")
        programs = [entry for entry in self.programs if entry.path == f"bin/{DEVICE}" or entry.path.startswith(folders)]
        pages = [entry for entry in self.pages if entry.path.rpartition("/")[2].lstrip("_").startswith(DEVICE)]
        return sorted([*programs, *pages, *self.device_documents], key=lambda entry: entry.path)

    def name(self, suffix: str, package: str = NAME) -> str:
        """Of a file: nccl-net-ferrite-0.1.0-linux-x86_64 and `suffix`."""
        return f"{package}-{self.version}-linux-{self.machine}{suffix}"


def cargo_version() -> str:
    match = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if not match:
        raise Invalid("Cargo.toml has no version")
    return match.group(1)


def programs(built: Path) -> list[Entry]:
    """What scripts/build.sh has put into `built`."""
    found = []
    for folder in ("lib", "softrnic", "softrnic-tools", "bin"):
        for path in sorted((built / folder).glob("*")):
            name = f"{folder}/{path.name}"
            found.append(Entry(name, link=os.readlink(path)) if path.is_symlink() else Entry(name, path.read_bytes(), executable=True))
    if not any(entry.path == "bin/ferrite" for entry in found):
        raise Invalid(f"--built {built}: bin/ferrite is not there; scripts/build.sh makes it")
    return found


def read(built: Path, pages: list[Entry], epoch: int) -> Release:
    elfs = [elf.read(built / entry.path) for entry in programs(built) if not entry.link]
    versions, machines = {one.version for one in elfs if one.version}, {one.machine for one in elfs}
    if len(versions) != 1 or len(machines) != 1:
        raise Invalid(f"--built {built}: files of several builds: {', '.join(sorted(versions | machines))}; run scripts/build.sh again")
    python = {path.relative_to(HERE): path for pattern in PYTHON for path in sorted(HERE.glob(pattern))}
    python[Path(JOB.name)] = JOB
    # docs/SUMMARY.md is for the site alone.
    guides = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "SUMMARY.md"]
    documents = [ROOT / name for name in ("README.md", "CHANGELOG.md", "LICENSE")] + guides
    device = ROOT / "softrnic"
    of_device = {page.relative_to(device): page for page in [device / "README.md", *sorted((device / "docs").glob("*.md"))]}
    of_device[Path("LICENSE")] = ROOT / "LICENSE"
    return Release(
        version=cargo_version(),
        build=versions.pop(),
        machine=machines.pop(),
        glibc=max((2, 17), *(one.glibc for one in elfs)),
        epoch=epoch,
        programs=tuple(programs(built)),
        python=tuple(Entry(f"nccl_net_ferrite/{name}", path.read_bytes()) for name, path in python.items()),
        headers=tuple(Entry(path.name, path.read_bytes()) for path in sorted((ROOT / "include/nccl").glob("*.h"))),
        documents=tuple(Entry(f"share/doc/{NAME}/{path.relative_to(ROOT)}", path.read_bytes()) for path in documents),
        device_documents=tuple(Entry(f"share/doc/{DEVICE}/{name}", path.read_bytes()) for name, path in of_device.items()),
        pages=tuple(pages),
    )
