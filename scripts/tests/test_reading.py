"""Tests of what scripts/ab.py reads: NCCL's logs, what launchers say, sizes and settings."""

import argparse
import re
import unittest
from dataclasses import replace

from nccl_net_ferrite import evidence, launch, options
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


class Words(unittest.TestCase):
    def test_sizes_and_settings(self) -> None:
        self.assertEqual(options.parse_sizes("8..1K"), [8, 32, 128, 512, 1024])
        self.assertEqual(options.parse_sizes("1M,8"), [8, 1 << 20])
        for bad in ("0", "8..4", "1T", ""):
            self.assertRaises(argparse.ArgumentTypeError, options.parse_sizes, bad)
        self.assertEqual(options.variable("NCCL_ALGO=Ring"), ("NCCL_ALGO", "Ring"))
        self.assertRaises(argparse.ArgumentTypeError, options.variable, "NCCL_ALGO")


class Ports(fixtures.InFolder):
    def test_which_rdma_ports_are_up(self) -> None:
        self.assertRaisesRegex(Invalid, "no RDMA port is up: .* has no device; `ferrite doctor` says", launch.rdma_ports, None, self.out)
        for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
            (self.out / name / "ports/1").mkdir(parents=True)
            (self.out / name / "ports/1/state").write_text(state + "\n")
        self.assertEqual(launch.rdma_ports(None, self.out), "mlx5_0:1 up")
        (self.out / "mlx5_0/ports/1/state").write_text("2: INIT\n")
        self.assertRaisesRegex(Invalid, "mlx5_0:1 is 2: INIT; mlx5_1:1 is 1: DOWN", launch.rdma_ports, None, self.out)
        self.assertEqual(launch.rdma_ports(self.out, self.out), "the software device")


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
