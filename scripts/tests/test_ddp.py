"""Tests of scripts/ddp.py without PyTorch and without a GPU: fake_ddp_rank.py stands in for the ranks."""

import builtins
import os
import sys
from typing import Any
from unittest import mock

from nccl_net_ferrite import ddp, launch
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.files import read_json
from nccl_net_ferrite.launch import Placement, Setup
from nccl_net_ferrite.networks import Side

from . import fake_ddp_rank, fixtures


class Training(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        (self.out / "plugin.so").write_bytes(fixtures.library_here())
        (self.out / "bin").mkdir()
        (self.out / "bin/softrnic").touch()
        self.replace(ddp, "RANK", "tests.fake_ddp_rank")
        self.replace(launch, "gpus_seen_by_torch", lambda: 2)
        self.print = mock.Mock()
        self.replace(builtins, "print", self.print)

    def train(self, fake: str = "", *more: str, in_processes: bool = False) -> tuple[int, str, str]:
        """Exit code, what the report says, what standard error says. Ranks are functions, unless they are to be processes."""
        arguments = [
            "ddp.py",
            "--ranks",
            "2",
            "--steps",
            "30",
            "--plugin",
            str(self.out / "plugin.so"),
            "--out",
            str(self.out / "report"),
            "--softrnic",
            str(self.out / "softrnic"),
            *more,
        ]

        def without_processes(setup: Setup, side: Side, placements: list[Placement], run: str) -> dict[str, Any]:
            task = {**setup.task, "result": str(launch.result_of(setup, run))}
            return fake_ddp_rank.result_of(task, len(placements), side.network, fake)

        with (
            mock.patch.dict(os.environ, fixtures.environment(FAKE=fake), clear=True),
            mock.patch.object(sys, "argv", arguments),
            mock.patch.object(ddp, "run_side", vars(ddp)["run_side"] if in_processes else without_processes),
        ):
            code = ddp.main()
        report = self.out / "report/report.md"
        return code, report.read_text() if report.exists() else "", str(self.print.call_args_list)

    def test_equal_curves_are_good(self) -> None:
        code, report, _ = self.train(in_processes=True)
        self.assertEqual(code, 0)
        self.assertIn("The same to the last bit over built-in, Ferrite, sockets: 30 losses of each rank", report)
        self.assertIn("| sockets | Socket | off |", report)
        raw = read_json(self.out / "report/raw.json")
        self.assertEqual([run["name"] for run in raw["runs"]], ["built-in", "Ferrite", "sockets", "built-in-again"])

    def test_one_bit_of_one_loss_is_a_difference(self) -> None:
        code, report, _ = self.train("last-bit")
        self.assertEqual(code, 1)
        self.assertIn("Ferrite differs from built-in: the loss of rank 1 at step 7, 3.94117641 and 3.94117665", report)

    def test_other_parameters_are_a_difference(self) -> None:
        self.assertIn("Ferrite differs from built-in: the parameters at the end", self.train("parameters")[1])
        self.assertIn("Ferrite: the parameters of its ranks differ", self.train("apart")[1])

    def test_a_training_that_does_not_repeat_itself_says_so(self) -> None:
        code, report, _ = self.train("unstable")
        self.assertEqual(code, 1)
        self.assertIn("does not repeat itself over the same network: built-in and built-in-again", report)
        self.assertNotIn("Ferrite differs", report)

    def test_a_training_that_learns_nothing_shows_nothing(self) -> None:
        self.assertIn("learns nothing", self.train("stuck")[1])

    def test_what_ferrite_leaves_behind_beyond_the_built_in_is_a_leak(self) -> None:
        code, report, _ = self.train("leak")
        self.assertEqual(code, 1)
        self.assertIn("Ferrite leaks 2 file descriptors over 3 process groups, the built-in 0", report)
        self.assertIn("50, 51, 52", report)
        self.assertEqual(self.train("all-leak")[0], 0)
        self.assertIn("Ferrite leaks 2 queue pairs", self.train("pairs")[1])

    def test_data_that_went_past_the_network_proves_nothing(self) -> None:
        code, _, told = self.train("shm")
        self.assertEqual(code, 2)
        self.assertIn("no connection went via NET/IB, only via SHM", told)

    def test_settings_of_the_software_device(self) -> None:
        options = mock.Mock(
            gdr="on",
            softrnic=self.out / "softrnic",
            algo="Tree",
            proto="LL",
            both=[("A", "1")],
            steps=3,
            cycles=1,
            sharded=False,
            out=self.out,
            limit=9,
        )
        chosen = dict(ddp.setup_of(options).both)
        self.assertEqual((chosen["NCCL_ALGO"], chosen["SOFTRNIC_GPU"], chosen["A"]), ("Tree", "dmabuf", "1"))
        self.assertEqual(chosen["SOFTRNIC_GPU_HELPER"], str((self.out / "bin/softrnic").resolve()))
        (self.out / "bin/softrnic").unlink()
        self.assertRaisesRegex(Invalid, "bin/softrnic is not there", ddp.setup_of, options)

    def test_what_cannot_be_tried_is_said_before_anything_begins(self) -> None:
        with mock.patch.object(ddp, "run_side", side_effect=AssertionError("a run has begun")):
            code, _, told = self.train("", "--out", str(self.out / "plugin.so/report"), in_processes=True)
            self.assertEqual(code, 2)
            self.assertIn("plugin.so/report: Not a directory", told)
            with mock.patch.object(launch, "gpus_seen_by_torch", side_effect=Invalid("no torch")):
                self.assertEqual(self.train(in_processes=True)[0], 2)

    def test_interrupted(self) -> None:
        with mock.patch.object(ddp, "run_side", side_effect=KeyboardInterrupt):
            code, _, told = self.train(in_processes=True)
        self.assertEqual(code, 130)
        self.assertIn("interrupted: no report; no process", told)

    def test_more_cycles_than_steps(self) -> None:
        done = fixtures.run("ddp.py", "--steps", "3", "--cycles", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--cycles 4 is more than --steps 3", done.stderr)
