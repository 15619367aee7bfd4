"""Tests of scripts/ddp.py without torch and without a GPU: ranks are played by fake_trainer.py."""

import json
import os
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import fake_trainer
import plays

import ddp
from abtest import plan, probe
from abtest import run as runs
from ddptest import check


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)
        (self.out / "plugin.so").write_bytes(b"a plugin")
        (self.out / "bin").mkdir()
        (self.out / "bin/softrnic").touch()
        for patch in [mock.patch.object(check, "WORKER", plays.HERE / "fake_trainer.py"), mock.patch("builtins.print"),
                      mock.patch.object(probe, "gpus_of_torch", lambda: 2)]:
            patch.start()
            self.addCleanup(patch.stop)

    def go(self, fake: str = "", *more: str, in_processes: bool = False) -> tuple[int, str, str]:
        """Exit code, what the report says, what standard error says. Ranks are functions, unless they are to be processes."""
        command = ["ddp.py", "--ranks", "2", "--steps", "30", "--plugin", str(self.out / "plugin.so"), "--out", str(self.out / "report"),
                   "--softrnic", str(self.out / "softrnic"), *more]

        def played(setup, side, seats, name, worker):
            task = {**setup.task, "result": str(runs.result_of(setup, name))}
            return fake_trainer.result_of(task, len(seats), side.network, fake)

        with mock.patch.dict(os.environ, plays.environment(FAKE=fake), clear=True), mock.patch.object(ddp.sys, "argv", command), \
                mock.patch.object(runs, "go", runs.go if in_processes else played):
            code = ddp.main()
        report = self.out / "report/report.md"
        return code, report.read_text() if report.exists() else "", str(print.call_args_list)

    def test_equal_curves_are_good(self):
        code, report, _ = self.go(in_processes=True)
        self.assertEqual(code, 0)
        self.assertIn("The same to the last bit over built-in, Ferrite, sockets: 30 losses of each rank", report)
        self.assertIn("| sockets | Socket | off |", report)
        raw = json.loads((self.out / "report/raw.json").read_text())
        self.assertEqual([run["name"] for run in raw["runs"]], ["built-in", "Ferrite", "sockets", "built-in-again"])
        self.assertEqual((self.out / "report/curves.svg").read_text().count("<polyline"), 4)

    def test_one_bit_of_one_loss_is_a_difference(self):
        code, report, _ = self.go("last-bit")
        self.assertEqual(code, 1)
        self.assertIn("Ferrite differs from built-in: the loss of rank 1 at step 7, 3.94117641 and 3.94117665", report)

    def test_other_parameters_are_a_difference(self):
        self.assertIn("Ferrite differs from built-in: the parameters at the end", self.go("parameters")[1])
        self.assertIn("Ferrite: the parameters of its ranks differ", self.go("apart")[1])

    def test_a_training_that_does_not_repeat_itself_says_so(self):
        code, report, _ = self.go("unstable")
        self.assertEqual(code, 1)
        self.assertIn("does not repeat itself over the same network: built-in and built-in-again", report)
        self.assertNotIn("Ferrite differs", report)

    def test_a_training_that_learns_nothing_shows_nothing(self):
        self.assertIn("learns nothing", self.go("stuck")[1])

    def test_what_ferrite_leaves_behind_beyond_the_built_in_is_a_leak(self):
        code, report, _ = self.go("leak")
        self.assertEqual(code, 1)
        self.assertIn("Ferrite leaks 2 file descriptors over 3 process groups, the built-in 0", report)
        self.assertIn("50, 51, 52", report)
        self.assertEqual(self.go("all-leak")[0], 0)
        self.assertIn("Ferrite leaks 2 queue pairs", self.go("pairs")[1])

    def test_data_that_went_past_the_network_proves_nothing(self):
        code, _, told = self.go("shm")
        self.assertEqual(code, 2)
        self.assertIn("no connection went via NET/IB, only via SHM", told)

    def test_settings_of_the_software_device(self):
        options = mock.Mock(gdr="on", softrnic=self.out / "softrnic", algo="Tree", proto="LL", both=[("A", "1")], steps=3, cycles=1,
                            out=self.out, limit=9)
        chosen = dict(check.setup_of(options).both)
        self.assertEqual((chosen["NCCL_ALGO"], chosen["SOFTRNIC_GPU"], chosen["A"]), ("Tree", "dmabuf", "1"))
        self.assertEqual(chosen["CUDA_MODULE_LOADING"], "EAGER")
        (self.out / "bin/softrnic").unlink()
        self.assertRaisesRegex(plan.Invalid, "bin/softrnic is not there", check.setup_of, options)

    def test_what_cannot_be_tried_is_said_before_anything_begins(self):
        with mock.patch.object(runs, "go", side_effect=AssertionError("a run has begun")):
            code, _, told = self.go("", "--out", str(self.out / "plugin.so/report"), in_processes=True)
            self.assertEqual(code, 2)
            self.assertIn("plugin.so/report: Not a directory", told)
            with mock.patch.object(probe, "gpus_of_torch", side_effect=plan.Invalid("no torch")):
                self.assertEqual(self.go(in_processes=True)[0], 2)

    def test_interrupted(self):
        with mock.patch.object(runs, "go", side_effect=KeyboardInterrupt):
            code, _, told = self.go(in_processes=True)
        self.assertEqual(code, 130)
        self.assertIn("interrupted: no report; no process", told)

    def test_colours_and_legend(self):
        self.go()
        picture = (self.out / "report/curves.svg").read_text()
        self.assertIn('stroke="#1b6ca8"', picture)
        width = float(re.search(r'width="(\d+)"', picture).group(1))
        last = float(re.search(r'<text x="([\d.]+)" y="46">built-in-again', picture).group(1))
        self.assertLess(last + 8 * len("built-in-again"), width)

    def test_more_cycles_than_steps(self):
        done = plays.run("ddp.py", "--steps", "3", "--cycles", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--cycles 4 is more than --steps 3", done.stderr)


if __name__ == "__main__":
    unittest.main()
