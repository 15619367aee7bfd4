"""Tests of the layer between NCCL and a plugin that counts calls."""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from nccl_net_ferrite import matrix
from nccl_net_ferrite.matrix import Calls, Case, Outcome, RankResult
from nccl_net_ferrite.repository import INCLUDE

from . import fixtures


@unittest.skipUnless(shutil.which("cc"), "no C compiler")
class Layer(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        layer = matrix.build_counter(self.out)
        assert layer
        self.layer = layer
        self.plugin = self.out / "plugin.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-I", INCLUDE, "-o", self.plugin, fixtures.HERE / "fake_plugin.c"], check=True)

    def use(self, plugin: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tests.use_plugin", self.layer],
            cwd=fixtures.HERE.parent,
            env={**os.environ, "COUNTED_PLUGIN": str(plugin)},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_everything_is_counted_and_handed_on(self) -> None:
        done = self.use(self.plugin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(matrix.calls_counted(done.stderr), Calls(3, 1, 1, 2, 1))

    def test_without_a_plugin_there_is_none(self) -> None:
        done = self.use(Path("/none.so"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("COUNTED_PLUGIN=/none.so: /none.so: cannot open shared object file", done.stderr)


class Checks(unittest.TestCase):
    def wrong(self, case: Case, calls: Calls, version: str = "2.21.5") -> list[str]:
        outcome = Outcome(case, {0: RankResult("fake", version, [])}, {}, {}, {}, {}, set(), None, calls)
        return matrix.check_calls(outcome).wrong

    def test_the_way_of_registration(self) -> None:
        for gdr, by_address, by_dmabuf in [("off", 0, 0), ("peermem", 3, 0), ("dmabuf", 0, 3), ("both", 0, 3)]:
            case = Case("setups", 2, gdr)
            self.assertEqual(self.wrong(case, Calls(1, 0, 0, by_address, by_dmabuf)), [])
            self.assertEqual(len(self.wrong(case, Calls(1, 0, 0, 2, 2))), 1)

    def test_flushes_and_truncated_sends(self) -> None:
        self.assertEqual(self.wrong(Case("flush", 2, "on"), Calls(1, 0, 2, 0, 1)), ["2 calls of iflush"])
        self.assertEqual(self.wrong(Case("flush", 2, "on", is_flushing=True), Calls(1, 0, 2, 0, 1)), [])
        register, none = Case("register", 2, "both"), Calls(9, 0, 0, 0, 1)
        self.assertIn("no send was truncated", self.wrong(register, none)[0])
        self.assertEqual(self.wrong(register, none, "2.28.9"), [])
        self.assertEqual(self.wrong(register, Calls(9, 1, 0, 0, 1)), [])
