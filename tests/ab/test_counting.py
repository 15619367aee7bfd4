"""Tests of the layer between NCCL and a plugin that counts calls."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

from nccltest import counting, plan, runs, verdict  # noqa: E402


@unittest.skipUnless(shutil.which("cc"), "no C compiler")
class Layer(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.layer = counting.build(Path(self.folder.name))
        self.plugin = Path(self.folder.name) / "plugin.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-I", counting.INCLUDE, "-o", self.plugin, HERE / "fake_plugin.c"], check=True)

    def go(self, plugin: Path) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, HERE / "use_plugin.py", self.layer], env={**os.environ, "COUNTED_PLUGIN": str(plugin)},
                              capture_output=True, text=True, check=False)

    def test_everything_is_counted_and_handed_on(self):
        done = self.go(self.plugin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(counting.read(done.stderr), counting.Calls(3, 1, 1, 2, 1))

    def test_without_a_plugin_there_is_none(self):
        done = self.go(Path("/none.so"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("COUNTED_PLUGIN=/none.so: /none.so: cannot open shared object file", done.stderr)


class Verdicts(unittest.TestCase):
    def wrong(self, case: plan.Case, calls: counting.Calls, version: str = "2.21.5") -> list[str]:
        outcome = runs.Outcome(case, {}, {}, {}, {}, {}, set(), None, calls)
        return verdict.calls(outcome, version)[0]

    def test_the_way_of_registration(self):
        for gdr, by_address, by_dmabuf in [("off", 0, 0), ("peermem", 3, 0), ("dmabuf", 0, 3), ("both", 0, 3)]:
            case = plan.Case("setups", 2, gdr)
            self.assertEqual(self.wrong(case, counting.Calls(1, 0, 0, by_address, by_dmabuf)), [])
            self.assertEqual(len(self.wrong(case, counting.Calls(1, 0, 0, 2, 2))), 1)

    def test_flushes_and_truncated_sends(self):
        self.assertEqual(self.wrong(plan.Case("flush", 2, "on"), counting.Calls(1, 0, 2, 0, 1)), ["2 calls of iflush"])
        self.assertEqual(self.wrong(plan.Case("flush", 2, "on", is_flushing=True), counting.Calls(1, 0, 2, 0, 1)), [])
        register, none = plan.Case("register", 2, "both"), counting.Calls(9, 0, 0, 0, 1)
        self.assertIn("no send was truncated", self.wrong(register, none)[0])
        self.assertEqual(self.wrong(register, none, "2.28.9"), [])
        self.assertEqual(self.wrong(register, counting.Calls(9, 1, 0, 0, 1)), [])


if __name__ == "__main__":
    unittest.main()
