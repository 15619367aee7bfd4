"""What the tests share: where the scripts are, environments without anything of the caller's, a library that stands in for NCCL."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from nccl_net_ferrite import elf, launch, repository

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent
ROOT = SCRIPTS.parent
# As in scripts/setup.sh.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ferrite"

# Of launchers, of NCCL, of Ferrite, of the software device, and of these tests themselves.
PREFIXES = ("FAKE", "FERRITE", "NCCL", "SOFTRNIC", "OMPI_", "PMI_", "SLURM_", "MPI_", "MASTER_", "TORCHELASTIC_")
NAMES = ("PYTHONUNBUFFERED", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class InFolder(unittest.TestCase):
    """Each test has a temporary folder `out`."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Of a module, for this test."""
        patch = mock.patch.object(owner, name, value)
        patch.start()
        self.addCleanup(patch.stop)


class WithFakeNccl(InFolder):
    """Each class has a library that stands in for NCCL and the CUDA driver; needs a C compiler."""

    library: Path

    @classmethod
    def setUpClass(cls) -> None:
        built = tempfile.TemporaryDirectory()
        cls.addClassCleanup(built.cleanup)
        cls.library = Path(built.name) / "libnccl.so.2"
        command: list[str | Path] = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", cls.library, HERE / "fake_nccl.c"]
        subprocess.run(command, check=True)


def own_ports(test: unittest.TestCase, count: int) -> int:
    """The first of as many TCP ports in a row, which nobody else gets before the end of the test."""
    held = contextlib.ExitStack()
    test.addCleanup(held.close)
    return held.enter_context(launch.own_ports(count))


def library_of(machine: int, *texts: bytes) -> bytes:
    """What looks like a shared library for the machine that ELF numbers so, with these texts in it."""
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + b"\0".join([b"", *texts, b""])


def library_here() -> bytes:
    """What looks like a plugin for this machine."""
    [machine] = [number for number, name in elf.MACHINES.items() if name == os.uname().machine]
    return library_of(machine, b"ferrite-version=1.2.3+0123456789ab___")


# What scripts/test.sh has built.
BUILT = {"FERRITE_DIST": os.path.abspath(os.environ["FERRITE_DIST"])} if os.environ.get("FERRITE_DIST") else {}

needs_ferrite = unittest.skipUnless((repository.DIST / "bin/ferrite").is_file(), "no program ferrite; scripts/build.sh makes it")


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES) and name not in NAMES}
    return {**clean, **more}


def built_environment(**more: str) -> dict[str, str]:
    """For a program of the repository, which uses what scripts/test.sh has built."""
    return environment(**BUILT, **more)


def run(program: str, *arguments: str | Path, timeout: float | None = None, **more: str) -> "subprocess.CompletedProcess[str]":
    """One of the scripts, as a user starts it."""
    command = [sys.executable, SCRIPTS / program, *arguments]
    return subprocess.run(command, env=built_environment(**more), capture_output=True, text=True, check=False, timeout=timeout)


def found(pattern: str, text: str) -> tuple[str, ...]:
    """The groups of the first place that matches."""
    match = re.search(pattern, text, re.DOTALL)
    assert match, pattern
    return match.groups()


def obey_interrupts() -> None:
    """For a process that is to be interrupted: where the tests run in the background SIGINT may be ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def has_ended(pid: str) -> bool:
    """A zombie, which nobody has waited for yet, has an entry in /proc still, but has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # The name before it is in parentheses, and may have any character.
    return status.rpartition(")")[2].split()[0] in ("Z", "X")
