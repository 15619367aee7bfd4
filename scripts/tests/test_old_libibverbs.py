"""Ferrite on a libibverbs that lacks what came after its first version: it works, with less, and the doctor says what."""

import re
import shutil
import subprocess
import unittest

from . import fixtures
from .test_container import DIST

# Versions of symbols that the plugin can do without, and what the doctor says of each.
OPTIONAL = {
    "IBVERBS_1.8": "relaxed ordering",
    "IBVERBS_1.10": "ECE",
    "IBVERBS_1.11": "RoCE versions of GIDs",
    "IBVERBS_1.12": "dma-buf",
    "IBVERBS_1.16": "",  # it is too new to be missed
}


@unittest.skipUnless((DIST / "bin/ferrite").exists(), f"{DIST}/bin/ferrite is missing (scripts/build.sh makes it)")
class OldLibibverbs(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.dist = self.out / "dist"
        shutil.copytree(DIST / "softrnic", self.dist / "softrnic", symlinks=True)
        library = self.dist / "softrnic/libibverbs.so.1"
        content = library.read_bytes()
        for version in OPTIONAL:
            # A symbol that is looked up with its version is not found under another.
            content, replaced = re.subn(version.encode() + rb"\0", version.replace("_1.", "_9.").encode() + rb"\0", content)
            self.assertGreater(replaced, 0, version)
        library.write_bytes(content)

    def ferrite(self, *arguments: str, **more: str) -> str:
        environment = fixtures.environment(FERRITE_DIST=str(self.dist), SOFTRNIC_QUIET="1", **more)
        done = subprocess.run([DIST / "bin/ferrite", *arguments], env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_every_byte_arrives(self) -> None:
        self.assertIn("valid run, data right", self.ferrite("verify", "--plugin", str(DIST / "lib/libnccl-net.so"), "--over", "single"))

    def test_the_doctor_says_what_is_missing(self) -> None:
        arguments = ["doctor", "--only", "libibverbs,loopback", "--plugin", str(DIST / "lib/libnccl-net.so")]
        said = self.ferrite(*arguments, LD_LIBRARY_PATH=str(self.dist / "softrnic"), SOFTRNIC_FABRIC=self.out.name)
        [lacks] = fixtures.found(r"warn +libibverbs +\S+ is old: it lacks (.*)", said)
        for words in OPTIONAL.values():
            self.assertIn(words, lacks)
        self.assertRegex(said, r"ok +loopback +softrnic0:1: 1 MiB arrived right")
