"""Tests of scripts/ab.py without torch and without a GPU: ranks are played by fake_worker.py."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from abtest import compare, evidence, nccltests, plan, run, seat, stats  # noqa: E402


class Comparison(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name)
        plugin = self.out / "libnccl-net.so"
        plugin.write_bytes(b"a plugin")
        self.options = argparse.Namespace(
            plugin=plugin, collectives=["all_reduce", "send_recv"], sizes=[8, 4096, 1 << 20], blocks=2, ranks=2,
            dtype="float32", gdr="as-is", both=[], only_b=[], softrnic=None, limit=60, out=self.out / "report", read=None)
        patches = [mock.patch.object(run, "WORKER", HERE / "fake_worker.py"), mock.patch("builtins.print")]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def go(self, **fake: str) -> int:
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE") and not k.startswith("FAKE")}
        with mock.patch.dict(os.environ, {**clean, "FAKE_SCRIPTS": str(SCRIPTS), **fake}, clear=True):
            return compare.run(self.options)

    def refused(self, **fake: str) -> str:
        with self.assertRaises(plan.Invalid) as raised:
            self.go(**fake)
        return str(raised.exception)

    def rows(self) -> list[dict]:
        return json.loads((self.options.out / "raw.json").read_text())["rows"]

    def test_equal_sides_are_no_difference(self):
        self.assertEqual(self.go(), 0)
        self.assertEqual({row["verdict"] for row in self.rows()}, {"no difference"})
        self.assertEqual(len(self.rows()), 6)

    def test_a_slower_side_is_worse(self):
        self.assertEqual(self.go(FAKE_B="1.2"), 1)
        self.assertEqual({row["verdict"] for row in self.rows()}, {"worse"})

    def test_a_faster_side_is_better(self):
        self.assertEqual(self.go(FAKE_B="0.8"), 0)
        self.assertEqual({row["verdict"] for row in self.rows()}, {"better"})
        text = (self.options.out / "report.md").read_text()
        self.assertIn("better in 6, worse in 0", text)
        self.assertIn("NCCL_NET=Ferrite", text)
        self.assertIn("<svg", (self.options.out / "report.svg").read_text())

    def test_what_does_not_matter_is_not_claimed(self):
        self.assertEqual(self.go(FAKE_B="1.02"), 0)
        self.assertEqual({row["verdict"] for row in self.rows()}, {"no difference"})

    def test_another_network_is_refused(self):
        self.assertIn("used network Socket, not Ferrite", self.refused(FAKE="fallback"))

    def test_data_that_went_past_the_network_is_refused(self):
        self.assertIn("no connection went via NET/IB, only via SHM", self.refused(FAKE="shm"))

    def test_different_gpudirect_is_refused(self):
        self.assertIn("GPUDirect differs: A ['off'], B ['on']", self.refused(FAKE="gdr"))

    def test_wrong_values_are_refused(self):
        self.assertIn("wrong values in all_reduce of 8", self.refused(FAKE="wrong"))

    def test_a_rank_that_dies_is_quoted(self):
        why = self.refused(FAKE="die")
        self.assertIn("run 02B, rank 1: ended with 3", why)
        self.assertIn("the peer has died", why)

    def test_a_run_that_hangs_is_ended(self):
        self.options.limit = 1
        self.assertIn("not done after 1 s", self.refused(FAKE="hang"))

    def test_no_plugin_is_named(self):
        self.options.plugin = self.out / "none.so"
        self.assertIn("none.so: no such file", self.refused())

    def test_a_rank_of_a_launcher_runs_alone(self):
        fake = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "MASTER_ADDR": "head"}
        self.assertEqual(self.go(**fake), 0)
        outputs = sorted(path.name for path in self.options.out.glob("*.out"))
        self.assertEqual(outputs[0], "01A-rank1.out")
        self.assertEqual(len(outputs), 8)


class Interruption(unittest.TestCase):
    def test_no_process_is_left(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number.name):
                self.interrupt(number)

    def interrupt(self, number: signal.Signals):
        with tempfile.TemporaryDirectory() as folder:
            plugin = Path(folder) / "p.so"
            plugin.write_bytes(b"x")
            worker = HERE / "fake_worker.py"
            code = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
                    f"from abtest import run; from pathlib import Path; run.WORKER = Path({str(worker)!r})\n"
                    f"sys.argv = ['ab.py', '--ranks', '2', '--plugin', {str(plugin)!r}, '--out', {folder + '/out'!r}]\n"
                    f"import ab; sys.exit(ab.main())")
            environment = {**os.environ, "FAKE": "hang", "FAKE_SCRIPTS": str(SCRIPTS)}
            # Who runs the tests in the background may have SIGINT ignored, which is inherited.
            process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            self.addCleanup(process.kill)
            while len(children := workers_of(process.pid)) < 2:
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.send_signal(number)
            _, told = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 2)
            self.assertIn("interrupted", told)
            self.assertFalse([pid for pid in children if Path(f"/proc/{pid}").exists()])


def workers_of(parent: int) -> list[str]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in listed if "fake_worker" in Path(f"/proc/{pid}/cmdline").read_text()]


class Statistics(unittest.TestCase):
    def test_noise_is_seldom_called_a_difference(self):
        dice = random.Random(5)
        said = []
        for _ in range(20):
            rows = [stats.row([dice.gauss(10, 1) for _ in range(6)], [dice.gauss(10, 1) for _ in range(6)]) for _ in range(20)]
            said += stats.verdicts(rows)
        self.assertLess(sum(word != "no difference" for word in said), 4)

    def test_the_permutation_test_is_exact(self):
        # Of the 20 ways to deal 1..6 to two threes, two put the means as far apart as 1,2,3 and 4,5,6.
        self.assertAlmostEqual(stats.permutation([1, 2, 3], [4, 5, 6]), 0.1)
        self.assertEqual(stats.permutation([1, 1, 1], [1, 1, 1]), 1.0)

    def test_as_slow_as_the_noise_is_no_difference(self):
        rows = [stats.row([10, 12, 10, 12, 10, 12], [13, 13.1, 13, 13.2, 13, 13.1])]
        self.assertGreater(rows[0].noise, abs(rows[0].ratio - 1))
        self.assertEqual(stats.verdicts(rows), ["no difference"])


class Reading(unittest.TestCase):
    def test_logs_of_both_networks(self):
        log = ("a [0] NCCL INFO NCCL version 2.21.5+cuda12.4\na NCCL INFO Using network Ferrite\n"
               "a NCCL INFO Channel 02/1 : 1[0] -> 0[0] [receive] via NET/Ferrite/0/GDRDMA/Shared\n"
               "a NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Ferrite/1/GDRDMA\n")
        self.assertEqual(evidence.read(log), evidence.Evidence("2.21.5+cuda12.4", "Ferrite", ("NET/Ferrite",), "on"))
        mixed = log + "a NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Ferrite/1\n"
        self.assertEqual(evidence.read(mixed).gdr, "mixed")
        self.assertEqual(evidence.read("nothing").network, "")

    def test_nccl_tests_output(self):
        table = ("# nThread 1\n#       size  count type redop root time algbw busbw #wrong\n"
                 "    1048576  262144  float  sum  -1  52.31  20.05  35.08  0  51.9  20.2  35.3  0\n"
                 "    8  2  float  sum  -1  12.10  0.00  0.00  0  12.0  0.0  0.0  0\n# Avg bus bandwidth : 1\n")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.txt"
            path.write_text(table)
            self.assertEqual(nccltests.read(path), {1048576: (52.31, 35.08), 8: (12.10, 0.0)})
            path.write_text(table.replace("35.08  0", "35.08  3"))
            self.assertRaisesRegex(plan.Invalid, "3 wrong values at 1048576", nccltests.read, path)
            path.write_text("hello")
            self.assertRaisesRegex(plan.Invalid, "no table", nccltests.read, path)

    def test_sizes_and_settings(self):
        self.assertEqual(plan.sizes("8..1K"), [8, 32, 128, 512, 1024])
        self.assertEqual(plan.sizes("1M,8"), [8, 1 << 20])
        for bad in ("0", "8..4", "1T", ""):
            self.assertRaises(argparse.ArgumentTypeError, plan.sizes, bad)
        self.assertEqual(plan.setting("NCCL_ALGO=Ring"), ("NCCL_ALGO", "Ring"))
        self.assertRaises(argparse.ArgumentTypeError, plan.setting, "NCCL_ALGO")

    def test_seats(self):
        torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
        self.assertEqual(seat.of_launcher(torchrun), seat.Seat(3, 8, 1, "h", 1))
        slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03-07],x"}
        self.assertEqual(seat.of_launcher(slurm).master, "gpu03")
        self.assertIsNone(seat.of_launcher({}))
        with self.assertRaisesRegex(plan.Invalid, "MASTER_ADDR"):
            seat.of_launcher({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"})


if __name__ == "__main__":
    unittest.main()
