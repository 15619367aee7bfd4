"""Tests of scripts/ab.py without PyTorch and without a GPU: fake_torch_rank.py stands in for the ranks."""

import argparse
import builtins
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from nccl_net_ferrite import ab, exit_codes, launch, repository
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.files import read_json

from . import fixtures

FAKE_RANK = "tests.fake_torch_rank"


class WithFakeRanks(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.plugin = self.out / "libnccl-net.so"
        self.plugin.write_bytes(fixtures.library_here())
        self.options = argparse.Namespace(
            plugin=self.plugin,
            libnccl=None,
            libcuda="",
            collectives=["all_reduce", "send_recv"],
            sizes=[8, 4096, 1 << 20],
            blocks=1,
            ranks=2,
            dtype="float32",
            gdr="as-is",
            both=[],
            only_a=[],
            only_b=[],
            baseline=None,
            softrnic=None,
            limit=60,
            effect=10,
            out=self.out / "report",
            read=None,
            again=None,
        )
        self.printed: list[str] = []
        self.replace(ab, "TORCH_RANK", FAKE_RANK)
        self.replace(launch, "gpus_seen_by_torch", lambda _: 2)
        self.replace(builtins, "print", lambda *words, **_: self.printed.append(" ".join(map(str, words))))

    def compare(self, **fake: str) -> int:
        with mock.patch.dict(os.environ, fixtures.built_environment(**fake), clear=True):
            return ab.compare(self.options)

    def refused(self, **fake: str) -> str:
        with self.assertRaises(Invalid) as raised:
            self.compare(**fake)
        return str(raised.exception)

    def raw(self) -> dict[str, Any]:
        return read_json(self.options.out / "raw.json")


@fixtures.needs_ferrite
class Comparison(WithFakeRanks):
    def test_equal_sides_are_alike(self) -> None:
        self.options.blocks = 6
        self.assertEqual(self.compare(), exit_codes.GOOD)
        raw = self.raw()
        self.assertEqual([group["name"] for group in raw["groups"]], ["all_reduce", "send_recv", "all"])
        self.assertEqual(raw["order"], "ABBABAAB" * 3)
        self.assertEqual({(len(row["a_us"]), len(row["b_us"])) for row in raw["rows"]}, {(12, 12)})
        self.assertEqual([row["bus"] for row in raw["rows"]], [1.0] * 6)
        text = (self.options.out / "report.md").read_text()
        self.assertIn("2 ranks, GPUDirect off: B is as good as A; no difference found: all_reduce", text)
        self.assertIn("NCCL_NET=Ferrite", text)

    def test_a_side_that_is_slower_is_worse(self) -> None:
        self.options.blocks, self.options.sizes = 6, [8]
        self.assertEqual(self.compare(FAKE_B="1.1"), exit_codes.WRONG)

    def test_one_plugin_with_two_settings(self) -> None:
        self.options.baseline, self.options.only_a, self.options.blocks = self.plugin, [("FERRITE_PROFILER", "0")], 1
        self.assertEqual(self.compare(), exit_codes.TOO_FEW_RUNS)
        about = self.raw()["about"]
        self.assertEqual(about["variables"]["A"]["NCCL_NET"], "Ferrite")
        self.assertEqual([about["variables"][side].get("FERRITE_PROFILER") for side in "AB"], ["0", None])
        self.assertEqual(about["baseline"]["sha256"], about["plugin"]["sha256"])
        text = (self.options.out / "report.md").read_text()
        for words in ("# Ferrite against another Ferrite", "**A** = another Ferrite", "plugin of A:", "plugin of B:"):
            self.assertIn(words, text)
        self.assertIn("A = another Ferrite", (self.options.out / "report.svg").read_text())

    def test_one_block_cannot_tell_a_factor_of_two(self) -> None:
        self.assertEqual(self.compare(FAKE_B="2"), exit_codes.TOO_FEW_RUNS)
        self.assertEqual({row["judgement"]["finding"] for row in self.raw()["rows"]}, {None})
        self.assertIn("UNDECIDED: too few runs to tell a difference of 10 %", (self.options.out / "report.md").read_text())

    def test_another_network_is_refused(self) -> None:
        self.assertIn("used network Socket, not Ferrite", self.refused(FAKE="fallback"))

    def test_data_that_went_past_the_network_is_refused(self) -> None:
        self.assertIn("no connection went via NET/IB, only via SHM", self.refused(FAKE="shm"))

    def test_different_gpudirect_is_refused(self) -> None:
        self.assertIn("GPUDirect differs: A ['off'], B ['on']", self.refused(FAKE="gdr"))

    def test_wrong_values_are_refused(self) -> None:
        self.assertIn("wrong values in all_reduce of 8", self.refused(FAKE="wrong"))

    def test_a_rank_that_dies_is_quoted(self) -> None:
        why = self.refused(FAKE="die")
        self.assertIn("run 02B, rank 1: ended with 3", why)
        self.assertIn("the peer has died", why)

    def test_a_run_that_hangs_is_ended(self) -> None:
        self.options.limit = 1
        self.assertIn("not done after 1 s", self.refused(FAKE="hang"))


@fixtures.needs_ferrite
class Again(WithFakeRanks):
    """Earlier times, judged once more by the program ferrite."""

    def test_its_exit_code_is_that_of_the_program(self) -> None:
        self.compare()
        raw, out = self.options.out / "raw.json", self.out / "again"
        done = fixtures.run("ab.py", "--again", raw, "--effect", "20", "--out", out)
        self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stderr)
        self.assertRegex(done.stdout, r"too few runs to tell a difference of 20 %[^\n]*\nreport: .*/report\.md\n")
        self.assertTrue((out / "report.svg").is_file())

    def test_what_is_no_raw_json(self) -> None:
        (self.out / "raw.json").write_text("{}")
        done = fixtures.run("ab.py", "--again", self.out / "raw.json", "--out", self.out / "again")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (exit_codes.INVALID, 1), done.stderr)
        self.assertIn("raw.json: no raw.json of `ab`", done.stderr)

    def test_a_result_that_cannot_be_told(self) -> None:
        self.compare()
        command: list[str | Path] = [sys.executable, fixtures.SCRIPTS / "ab.py", "--again", self.options.out / "raw.json"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command, cwd=self.out, env=fixtures.built_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (exit_codes.INVALID, 1), done.stderr)
        self.assertIn("UNDECIDED", (self.out / "report-ab/report.md").read_text())

    def test_without_the_program_it_says_so_before_the_first_run(self) -> None:
        self.replace(repository, "DIST", self.out)
        self.assertIn("bin/ferrite is missing: install the package again", self.refused())


class Beforehand(WithFakeRanks):
    """What can be known is said before the first rank is started."""

    def refused(self, **fake: str) -> str:
        with mock.patch.object(ab, "run_side", side_effect=AssertionError("a run has begun")):
            return super().refused(**fake)

    def test_no_plugin_is_named(self) -> None:
        self.options.plugin = self.out / "none.so"
        self.assertIn("none.so: no such file", self.refused())

    def test_no_baseline_is_named(self) -> None:
        self.options.baseline = self.out / "none.so"
        self.assertIn("--baseline", self.refused())

    def test_sides_that_are_the_same(self) -> None:
        self.options.baseline, self.options.only_a, self.options.only_b = self.plugin, [("X", "1")], [("X", "1")]
        self.assertIn("A and B are the same", self.refused())

    def test_a_folder_that_cannot_be_written(self) -> None:
        self.options.out = self.plugin / "report"
        self.assertIn(f"--out {self.plugin}/report: Not a directory", self.refused())

    def test_no_software_device(self) -> None:
        self.options.softrnic = self.out
        self.assertIn("no libibverbs.so.1 there", self.refused())

    def test_another_type_without_pytorch(self) -> None:
        self.options.libnccl, self.options.dtype = self.plugin, "int32"
        self.assertIn("--dtype int32: with --libnccl it is float32", self.refused())

    def test_ports_that_do_not_exist(self) -> None:
        self.assertIn("MASTER_PORT=65533: each run takes a port above it, up to 65537", self.refused(**torchrun(0, 2), MASTER_PORT="65533"))

    def test_a_host_of_rank_0_that_has_no_address(self) -> None:
        self.replace(launch, "check_master", functools.partial(launch.check_master, limit=0.1))
        unknown = mock.Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        self.replace(socket, "getaddrinfo", unknown)
        said = self.refused(**torchrun(1, 2) | {"MASTER_ADDR": "no-such-host.invalid"})
        self.assertIn("rank 0 is on host no-such-host.invalid, which has no address here (Name or service not known)", said)

    def test_the_software_device_on_more_than_one_machine(self) -> None:
        (self.out / "libibverbs.so.1").touch()
        self.options.softrnic = self.out
        self.assertIn("all ranks on one machine: 2 of 4 are on this one", self.refused(**torchrun(1, 4)))


def torchrun(rank: int, world: int, here: int = 2) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % here),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


@fixtures.needs_ferrite
class Launched(WithFakeRanks):
    def test_a_rank_of_a_launcher_runs_alone(self) -> None:
        fake = {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
        }
        self.assertEqual(self.compare(**fake), exit_codes.GOOD)
        outputs = sorted(path.name for path in self.options.out.glob("*.out"))
        self.assertEqual(outputs, ["01A-rank1.out", "02B-rank1.out", "03B-rank1.out", "04A-rank1.out"])

    def test_what_its_ranks_share_on_the_software_device(self) -> None:
        (self.out / "libibverbs.so.1").touch()
        self.options.softrnic = self.out
        seen: list[dict[str, str]] = []
        with mock.patch.object(launch, "run_ranks", lambda ranks, *_: seen.append(ranks[0].environment)):
            for rank in (1, 1):
                self.compare(**torchrun(rank, 2), MASTER_PORT="2000")
        self.assertEqual(seen[:4], seen[4:])
        self.assertEqual([one["MASTER_PORT"] for one in seen[:4]], ["2001", "2002", "2003", "2004"])
        self.assertEqual(seen[0]["SOFTRNIC_FABRIC"], f"ab-{os.getuid()}-2000-01A")
        self.assertEqual(seen[1]["NCCL_HOSTID"], "rank1")
        # The ranks meet by themselves, not where torchrun's agents do.
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", seen[0])
