"""The Debian package: everything in /usr/lib/nccl-net-ferrite, and links to it where programs and the loader look."""

import hashlib
import os
from dataclasses import replace

from . import pages
from .archive import gzipped, tar
from .description import DEBIAN_MACHINES, LICENCE, MAINTAINER, NAME, SUMMARY, TEXT, Entry, Release


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content: an ar archive of three files."""
    machine = DEBIAN_MACHINES[release.machine]
    entries = [placed_for_debian(entry) for entry in installed(release, f"usr/lib/{release.machine}-linux-gnu")]
    doc = f"usr/share/doc/{NAME}"
    entries.append(Entry(f"{doc}/copyright", copyright_of(release)))
    sums = "".join(f"{hashlib.md5(entry.content).hexdigest()}  {entry.path}\n" for entry in entries if not entry.link)
    control = [Entry("control", control_of(release, machine, entries)), Entry("md5sums", sums.encode())]
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", gzipped(tar(control, release.epoch, "./"))),
        ("data.tar.gz", gzipped(tar(entries, release.epoch, "./"))),
    ]
    return f"{NAME}_{release.version}_{machine}.deb", b"!<arch>\n" + b"".join(member(*one, release.epoch) for one in members)


def placed_for_debian(entry: Entry) -> Entry:
    """Debian has completions of zsh in a folder of its own."""
    return replace(entry, path=entry.path.replace(f"usr/{pages.ZSH}", f"usr/{pages.ZSH_OF_DEBIAN}"))


def member(name: str, content: bytes, epoch: int) -> bytes:
    header = f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode() + content + b"\n" * (len(content) % 2)


def installed(release: Release, libraries: str) -> list[Entry]:
    """Where each file lies on a system whose loader looks into `libraries`. Never as libnccl-net.so there: every NCCL of the system would
    take it without being asked."""
    root = f"usr/lib/{NAME}"
    entries = [entry.below(root) for entry in release.tree if not entry.path.startswith("share/")]
    entries += [entry.below("usr") for entry in release.tree if entry.path.startswith("share/")]
    plugin = os.path.relpath(f"{root}/lib/libnccl-net.so", libraries)
    entries += [
        Entry(f"{libraries}/libnccl-net-ferrite.so", link=plugin),
        Entry("usr/bin/ferrite", link=f"../lib/{NAME}/bin/ferrite"),
        Entry("usr/bin/softrnic", link=f"../lib/{NAME}/bin/softrnic"),
        Entry("usr/bin/nccl-net-ferrite", START.encode(), executable=True),
    ]
    return sorted(entries, key=lambda entry: entry.path)


# Python with the folder of the programs first in its path.
START = f"""#!/bin/sh
PYTHONPATH="/usr/lib/{NAME}/python${{PYTHONPATH:+:$PYTHONPATH}}" exec python3 -m nccl_net_ferrite "$@"
"""


def control_of(release: Release, machine: str, entries: list[Entry]) -> bytes:
    size = sum(len(entry.content) for entry in entries)
    description = "\n".join(f" {line}" for line in TEXT.splitlines())
    return f"""Package: {NAME}
Version: {release.version}
Architecture: {machine}
Maintainer: {MAINTAINER}
Installed-Size: {-(-size // 1024)}
Depends: libc6 (>= {release.glibc[0]}.{release.glibc[1]}), libgcc-s1 | libgcc1
Recommends: libibverbs1, ibverbs-providers, python3 (>= 3.10)
Section: net
Priority: optional
Description: {SUMMARY}
{description}
""".encode()


def copyright_of(release: Release) -> bytes:
    licence = next(entry for entry in release.documents if entry.path.endswith("/LICENSE"))
    return f"Licence: {LICENCE}\nBuild: {release.build}\n\n".encode() + licence.content
