"""Executables and shared libraries: for which machines they are, and which build."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from .exit_codes import Invalid

# Numbers of the ELF header, as uname names the machines.
MACHINES = {62: "x86_64", 183: "aarch64"}
# As src/version.rs lays it out and scripts/build.sh completes it.
VERSION = re.compile(rb"ferrite-version=(\d[0-9A-Za-z.-]*\+[0-9a-z.]+)")
GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


@dataclass(frozen=True)
class Elf:
    """Of one file."""

    machine: str
    glibc: tuple[int, int]  # the oldest that it can be loaded with
    version: str  # such as 0.1.0+0123456789ab, with the commit; "" if it does not tell


def read(path: Path) -> Elf:
    content = path.read_bytes()
    if content[:4] != b"\x7fELF" or len(content) < 20:
        raise Invalid(f"{path} is no program and no shared library")
    number = int.from_bytes(content[18:20], "little")
    needed = [(int(major), int(minor)) for major, minor in GLIBC.findall(content)]
    return Elf(MACHINES.get(number, f"machine {number}"), max(needed, default=(0, 0)), version_in(content))


def version_in(content: bytes) -> str:
    match = VERSION.search(content)
    return match.group(1).decode() if match else ""


def glibc_here() -> tuple[int, int] | None:
    """None where the C library is another."""
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (OSError, ValueError):
        return None
    return numbers(words[1]) if len(words) == 2 else None


def numbers(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def check_machine(path: Path, machine: str | None = None, glibc: tuple[int, int] | None = None) -> Elf:
    """What `path` is; raises Invalid, with the cure, where this machine cannot load it. `machine` and `glibc` stand in for this one's."""
    found = read(path)
    machine = machine or platform.machine()
    if found.machine != machine:
        raise Invalid(f"{path} is for {found.machine}, and this machine is {machine}: install the package for {machine}")
    glibc = glibc or glibc_here()
    needed = text_of(found.glibc)
    if not glibc:
        raise Invalid(f"{path} needs glibc {needed} or newer, and this system has another C library: use an image with glibc")
    if glibc < found.glibc:
        raise Invalid(
            f"{path} needs glibc {needed} or newer, and this system has {text_of(glibc)}: install the released package, "
            "or build it with scripts/build.sh --portable"
        )
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise Invalid(f"{path} cannot be loaded, since its file system is mounted noexec: install the package on another one")
    return found


def text_of(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
