"""Whether this machine can load a file: a sentence with the cure where it cannot."""

import os
from pathlib import Path
from types import SimpleNamespace

from nccl_net_ferrite import elf
from nccl_net_ferrite.exit_codes import Invalid

from .fixtures import InFolder, library_of, run


class CheckMachine(InFolder):
    def library(self, machine: int, *texts: bytes) -> Path:
        path = self.out / "libnccl-net.so"
        path.write_bytes(library_of(machine, *texts))
        return path

    def test_one_that_suits(self) -> None:
        path = self.library(183, b"GLIBC_2.2.5", b"GLIBC_2.17", b"ferrite-version=1.0.0-rc.1+0123456789ab.modified______")
        found = elf.check_machine(path, "aarch64", (2, 17))
        self.assertEqual(found, elf.Elf("aarch64", (2, 17), "1.0.0-rc.1+0123456789ab.modified"))

    def test_one_of_another_machine(self) -> None:
        with self.assertRaisesRegex(Invalid, "is for aarch64, and this machine is x86_64: install the package for x86_64$"):
            elf.check_machine(self.library(183), "x86_64", (2, 36))

    def test_one_of_a_newer_glibc(self) -> None:
        with self.assertRaisesRegex(Invalid, r"needs glibc 2\.34 or newer, and this system has 2\.9: install the released package"):
            elf.check_machine(self.library(62, b"GLIBC_2.34", b"GLIBC_2.4"), "x86_64", (2, 9))

    def test_where_the_c_library_is_another(self) -> None:
        self.replace(os, "confstr", lambda name: None)
        with self.assertRaisesRegex(Invalid, "this system has another C library: use an image with glibc$"):
            elf.check_machine(self.library(62, b"GLIBC_2.17"), "x86_64")

    def test_where_nothing_may_be_executed(self) -> None:
        path = self.library(62, b"GLIBC_2.17")
        elf.check_machine(path, "x86_64", (2, 36))
        self.replace(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
        with self.assertRaisesRegex(
            Invalid, "libnccl-net.so cannot be loaded, since its file system is mounted noexec: install the package on"
        ):
            elf.check_machine(path, "x86_64", (2, 36))

    def test_what_is_no_library(self) -> None:
        path = self.out / "libnccl-net.so"
        path.write_text("#!/bin/sh\n")
        with self.assertRaisesRegex(Invalid, "libnccl-net.so is no program and no shared library$"):
            elf.check_machine(path)

    def test_a_comparison_is_refused_before_it_begins(self) -> None:
        other = 62 if os.uname().machine == "aarch64" else 183
        done = run("ab.py", "--plugin", self.library(other), "--out", self.out / "report")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^not valid: \S+libnccl-net.so is for ")
