"""torch_suite: what it counts as worse, and what it writes. Without PyTorch."""

import io
import os
import subprocess
import tempfile
import unittest
from argparse import Namespace
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import torch_suite
from nccl_net_ferrite import exit_codes
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.networks import Side

from . import fixtures

OK, SKIP, FAIL = "Ran 1 test in 1s\n\nOK\n", "Ran 1 test in 1s\n\nOK (skipped=1)\n", "FAILED (errors=1)\n"


TORCH = """
import types
import coverage
coverage.types
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace()))
"""
TESTS = """
import multiprocessing, os, sys, time, unittest

class TestDistBackend(unittest.TestCase):
    def _spawn_processes(self):
        process = multiprocessing.get_context("spawn").Process(target=self._run, args=(self._testMethodName,))
        process.start()
        process.join()
        self.code = process.exitcode

    @classmethod
    def _run(cls, name):
        is_set = [os.environ[name] for name in ("OURS", "WORLD_SIZE", "NCCL_P2P_DISABLE")] == ["1", "2", "1"]
        sys.exit(0 if is_set and os.path.exists(os.environ["TEMP_DIR"] + "/barrier") else 1)

class DistributedTest:
    class _DistTestBase:
        def test_is_ferrite(self):
            with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", "1"), "w") as log:
                log.write("host:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Ferrite/0/GDRDMA\\n")
            self.assertEqual((self.code, os.environ.get("NCCL_NET")), (0, "Ferrite"))

        def test_is_sockets(self):
            self.assertEqual((self.code, os.environ.get("NCCL_NET")), (0, None))

        def test_skips(self):
            self.skipTest("no reason")

        def test_hangs(self):
            time.sleep(60)
"""


class TestSuite(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name)

    def compare(self, results: dict[str, list[str]], gdr: str = "as-is", went: str = "NET/Ferrite, GPUDirect off") -> tuple[int, str, str]:
        """Exit code, report and what was printed, where each test's runs, over Ferrite and then over sockets, print what `results` says."""
        chosen = Namespace(plugin=self.out, softrnic=None, tests="", world=2, jobs=1, both=[], limit=9, gdr=gdr, out=self.out / "report")

        def run_side(_: torch_suite.Runner, _side: Side, name: str) -> tuple[str, str, str]:
            output = results[name].pop(0)
            return torch_suite.outcome_of(int(output == FAIL), output), output, went

        printed = io.StringIO()
        with (
            mock.patch.object(torch_suite, "ferrite"),
            mock.patch.object(torch_suite, "listed", return_value=list(results)),
            mock.patch.object(torch_suite.Runner, "run_side", run_side),
            redirect_stdout(printed),
            redirect_stderr(printed),
        ):
            code = exit_codes.of_program(lambda: torch_suite.compare(chosen))
        report = self.out / "report/report.md"
        return code, report.read_text() if report.exists() else "", printed.getvalue()

    def test_a_failure_over_both_is_not_ferrites(self) -> None:
        code, report, _ = self.compare({"test_a": [OK], "test_b": [FAIL, FAIL], "test_c": [SKIP], "test_d": [OK]})
        self.assertEqual(code, 0)
        self.assertIn("\n0 of 4 tests fail over Ferrite and not over sockets.\n", report)
        self.assertIn("| test_b | failed | failed | NET/Ferrite, GPUDirect off |", report)
        self.assertIn(
            "2 passed over Ferrite; 1 skipped over Ferrite; 1 failed over Ferrite; of these 1 failed over sockets as well", report
        )

    def test_a_failure_over_ferrite_alone_is_tried_once_more(self) -> None:
        code, report, _ = self.compare({"test_a": [FAIL, OK, OK]})
        self.assertEqual((code, "| test_a | passed | - |" in report), (0, True))
        code, report, printed = self.compare({"test_a": [FAIL, OK, FAIL, OK]})
        self.assertEqual(code, 1)
        self.assertIn("## test_a\n\n    FAILED (errors=1)", report)
        self.assertIn("1 of 1 tests fail over Ferrite and not over sockets", printed)

    def test_tests_of_which_none_passes_prove_nothing(self) -> None:
        code, report, printed = self.compare({"test_a": [FAIL, FAIL]})
        self.assertEqual((code, report), (2, ""))
        self.assertIn("no test passes; the first one: FAILED", printed)

    def test_what_a_skipped_test_says_is_reported_where_none_passes(self) -> None:
        code, _, printed = self.compare({"test_a": [SKIP]})
        self.assertEqual(code, 2)
        self.assertIn("no test passes; the first one: Ran 1 test in 1s", printed)

    def test_data_that_went_another_way_proves_nothing(self) -> None:
        for gdr, went, expected in [
            ("on", "NET/Ferrite, GPUDirect on", ""),
            ("on", "NET/Ferrite, GPUDirect off", "test_a: data went by NET/Ferrite, GPUDirect off, not by NET/Ferrite, GPUDirect on"),
            ("off", "NET/Ferrite, GPUDirect mixed", "not by NET/Ferrite, GPUDirect off"),
            ("as-is", "NET/Ferrite, SHM, GPUDirect on", ""),
            ("as-is", "NET/Socket, GPUDirect off", "test_a: data went by NET/Socket, GPUDirect off, not by NET/Ferrite"),
            ("as-is", "NET/Ferrite, NET/Socket, GPUDirect on", "not by NET/Ferrite"),
            ("as-is", "", "no test had a connection"),
        ]:
            code, report, printed = self.compare({"test_a": [OK]}, gdr, went)
            self.assertEqual((code, "| test_a | passed |" in report), (2 if expected else 0, True), printed)
            self.assertIn(expected, printed)

    def test_gpudirect_on_the_software_device_has_its_helper(self) -> None:
        (self.out / "bin").mkdir()
        tool = self.out / "bin/softrnic"
        chosen = Namespace(softrnic=self.out / "softrnic", gdr="on")
        self.assertRaisesRegex(Invalid, "bin/softrnic is not there", torch_suite.gpudirect_on, chosen)
        tool.touch()
        for folder, gdr, helper in [(chosen.softrnic, "on", str(tool)), (chosen.softrnic, "off", None), (None, "on", None)]:
            given = dict(torch_suite.gpudirect_on(Namespace(softrnic=folder, gdr=gdr)))
            self.assertEqual(given.get("SOFTRNIC_GPU_HELPER"), helper)
            self.assertIn("NCCL_NET_GDR_LEVEL", given)

    def test_each_run_has_a_fabric_of_its_own(self) -> None:
        chosen = Namespace(softrnic=self.out, world=2, both=[], limit=9)
        side = Side("a", "IB", ())
        runner = torch_suite.Runner(chosen, (side, side))
        fabrics = {runner.environment(side, "")["SOFTRNIC_FABRIC"] for _ in range(3)}
        self.assertEqual(len(fabrics), 3, fabrics)

    def test_without_pytorch_it_is_said(self) -> None:
        with mock.patch.object(subprocess, "run", return_value=mock.Mock(returncode=1, stderr="x\nNo module named torch\n")):
            self.assertRaisesRegex(Invalid, "PyTorch's tests cannot be loaded: .*No module named torch", torch_suite.listed, 2)


class TestWithStandIn(unittest.TestCase):
    """With a package that stands for PyTorch, whose tests have processes of their own and need a package `coverage`."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.packages = Path(folder.name)
        tests = self.packages / "torch/testing/_internal/distributed"
        tests.mkdir(parents=True)
        (self.packages / "coverage.py").write_text("types = 1\n")
        (self.packages / "torch/__init__.py").write_text(TORCH)
        (tests / "distributed_test.py").write_text(TESTS)
        variables = {name: value for name, value in fixtures.environment().items() if not name.startswith("NCCL_")}
        environment = mock.patch.dict(os.environ, {**variables, "PYTHONPATH": str(self.packages)}, clear=True)
        environment.start()
        self.addCleanup(environment.stop)

    def runner(self, limit: float) -> torch_suite.Runner:
        chosen = Namespace(softrnic=None, world=2, both=[("OURS", "1")], limit=limit)
        return torch_suite.Runner(chosen, (Side("Ferrite", "Ferrite", (("NCCL_NET", "Ferrite"),)), Side("sockets", "Socket", ())))

    def test_tests_are_listed_and_run_with_the_variables_of_their_side(self) -> None:
        self.assertEqual(torch_suite.listed(2), ["test_hangs", "test_is_ferrite", "test_is_sockets", "test_skips"])
        runner = self.runner(60)
        for name, ferrite, sockets in [
            ("test_is_ferrite", torch_suite.PASSED, torch_suite.NOT_RUN),
            ("test_is_sockets", torch_suite.FAILED, torch_suite.PASSED),
            ("test_skips", torch_suite.SKIPPED, torch_suite.NOT_RUN),
        ]:
            outcome = runner.run(name)
            self.assertEqual((outcome.ferrite, outcome.sockets), (ferrite, sockets), outcome.output)
            self.assertEqual(outcome.went, "NET/Ferrite, GPUDirect on" if name == "test_is_ferrite" else "")

    def test_a_test_that_does_not_end_has_failed(self) -> None:
        runner = self.runner(0.5)
        how, output, _ = runner.run_side(runner.sides[0], "test_hangs")
        self.assertEqual((how, runner.living), (torch_suite.FAILED, set()))
        self.assertIn("has not ended within 0.5 s", output)
