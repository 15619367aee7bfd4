"""Tests of what scripts/ab.py reads: NCCL's logs, outputs of nccl-tests, what launchers say, sizes and settings."""

import argparse
import re
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from nccl_net_ferrite import ab, evidence, exit_codes, launch, options
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.launch import Placement

from . import fixtures

# One for each release: how it tells the version, the network, and the connections of a rank with GPUDirect.
LOGS = {path.stem.removeprefix("nccl-"): path.read_text() for path in sorted((fixtures.HERE / "logs").glob("nccl-*.log"))}


class Logs(unittest.TestCase):
    def test_with_gpudirect(self) -> None:
        for version, log in LOGS.items():
            with self.subTest(nccl=version):
                found = evidence.read(log)
                self.assertEqual(
                    (found.version.partition("+")[0], found.network, found.channels, found.gdr),
                    (version, "Ferrite", ("NET/Ferrite",), "on"),
                )

    def test_without_gpudirect(self) -> None:
        for version, log in LOGS.items():
            with self.subTest(nccl=version):
                without = re.sub(r"/GDRDMA(\(PCI\))?(/flush=\w+)?", "", log)
                self.assertEqual(evidence.read(without).gdr, "off")
                self.assertEqual(evidence.read(log + without).gdr, "mixed")

    def test_other_ways_and_networks(self) -> None:
        p2p = "a NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\na NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
        self.assertEqual(evidence.read(p2p).channels, ("P2P", "SHM"))
        other = "a NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v8/2\n"
        self.assertEqual(evidence.read(other).channels, ("NET/IBext_v8",))
        self.assertEqual(evidence.read("nothing").network, "")

    def test_what_is_no_proof(self) -> None:
        good = evidence.read(LOGS["2.21.5"])
        self.assertEqual(evidence.check([good, good], "Ferrite", "run"), "on")
        self.assertEqual(evidence.check([good, replace(good, gdr="off")], "Ferrite", "run"), "mixed")
        stock = replace(good, network="IB", channels=("NET/IB",))
        self.assertRaisesRegex(Invalid, "rank 1: NCCL used network Ferrite, not IB", evidence.check, [stock, good], "IB", "run")


class NcclTests(unittest.TestCase):
    TABLE = (
        "# nThread 1\n#       size  count type redop root time algbw busbw #wrong\n"
        "    1048576  262144  float  sum  -1  52.31  20.05  35.08  0  51.9  20.2  35.3  0\n"
        "    8  2  float  sum  -1  12.10  0.00  0.00  0  12.0  0.0  0.0  0\n# Avg bus bandwidth : 1\n"
    )

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "a.txt"

    def test_output(self) -> None:
        self.path.write_text(self.TABLE)
        self.assertEqual(ab.read_nccl_tests(self.path), {1048576: (52.31, 35.08), 8: (12.10, 0.0)})
        self.path.write_text(self.TABLE.replace("35.08  0", "35.08  3"))
        self.assertRaisesRegex(Invalid, "3 wrong values at 1048576", ab.read_nccl_tests, self.path)
        self.path.write_text("hello")
        self.assertRaisesRegex(Invalid, "no table", ab.read_nccl_tests, self.path)

    def test_one_run_of_each_is_too_few(self) -> None:
        self.path.write_text(self.TABLE)
        done = fixtures.run("ab.py", "--read", self.path, self.path)
        self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS)
        self.assertIn("no telling a difference from noise", done.stdout)


class Words(unittest.TestCase):
    def test_sizes_and_settings(self) -> None:
        self.assertEqual(options.parse_sizes("8..1K"), [8, 32, 128, 512, 1024])
        self.assertEqual(options.parse_sizes("1M,8"), [8, 1 << 20])
        for bad in ("0", "8..4", "1T", ""):
            self.assertRaises(argparse.ArgumentTypeError, options.parse_sizes, bad)
        self.assertEqual(options.variable("NCCL_ALGO=Ring"), ("NCCL_ALGO", "Ring"))
        self.assertRaises(argparse.ArgumentTypeError, options.variable, "NCCL_ALGO")


class Placements(unittest.TestCase):
    def test_each_launcher(self) -> None:
        torchrun = {
            "RANK": "3",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "h",
            "MASTER_PORT": "1",
        }
        self.assertEqual(launch.placement_of_launcher(torchrun), Placement(3, 8, 1, "h", 1, 2))
        slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03-07],x"}
        self.assertEqual(launch.placement_of_launcher(slurm), Placement(0, 2, 0, "gpu03", 29500, 0))
        self.assertEqual(launch.placement_of_launcher({**slurm, "SLURM_NNODES": "1"}), Placement(0, 2, 0, "gpu03", 29500, 2))
        self.assertIsNone(launch.placement_of_launcher({}))

    def test_what_they_leave_out(self) -> None:
        intel = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
        self.assertRaisesRegex(Invalid, "MASTER_ADDR", launch.placement_of_launcher, intel)
        self.assertRaisesRegex(
            Invalid,
            "MASTER_PORT=x: must be a number from 1 to 65535",
            launch.placement_of_launcher,
            {**intel, "MASTER_ADDR": "h", "MASTER_PORT": "x"},
        )
        self.assertRaisesRegex(Invalid, "the launcher does not say how many", launch.check_one_host, Placement(0, 2, 0, "h", 1))
