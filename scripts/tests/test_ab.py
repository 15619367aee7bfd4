"""Tests of scripts/ab.py without a GPU: fake_ab_rank.py stands in for the ranks."""

import builtins
import functools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from nccl_net_ferrite import ab, exit_codes, launch, repository
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.files import read_json

from . import fixtures


class WithFakeRanks(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.plugin = self.out / "libnccl-net.so"
        self.plugin.write_bytes(fixtures.library_here())
        words = ["--ranks", "2", "--sizes", "8,4K,1M", "--blocks", "1", "--limit", "60", "--effect", "10"]
        paths = ["--plugin", str(self.plugin), "--libnccl", str(self.plugin), "--out", str(self.out / "report")]
        with mock.patch.object(sys, "argv", ["ab.py", *words, *paths]):
            self.options = ab.arguments()
        self.printed: list[str] = []
        self.replace(ab, "RANK", "tests.fake_ab_rank")
        self.replace(launch, "seen_by_driver", lambda *_: (2, "2.21.5"))
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
        self.assertIn("2 ranks, GPUDirect off\n\n**B is as good as A: the same within ", text)
        self.assertIn("ncclConfig_t.netName=Ferrite", text)
        # Six runs, one for each block.
        self.assertEqual(len(list(self.options.out.glob("*-rank0.out"))), 6)

    def test_each_side_in_processes_of_its_own(self) -> None:
        self.options.fresh = True
        self.assertEqual(self.compare(), exit_codes.TOO_FEW_RUNS)
        runs = ["01A-rank0.out", "02B-rank0.out", "03B-rank0.out", "04A-rank0.out"]
        self.assertEqual(sorted(path.name for path in self.options.out.glob("*-rank0.out")), runs)
        self.assertIn("NCCL_NET=Ferrite", (self.options.out / "report.md").read_text())

    def test_a_software_device_in_two_files_is_none_to_share(self) -> None:
        self.options.softrnic = self.out
        (self.out / "libibverbs.so.1").touch()
        self.assertEqual(ab.why_apart(self.options), "")
        (self.out / "libibverbs.so").symlink_to("libibverbs.so.1")
        self.assertEqual(ab.why_apart(self.options), "")
        (self.out / "libibverbs.so").unlink()
        (self.out / "libibverbs.so").touch()
        self.assertIn("are two files", ab.why_apart(self.options))

    def test_it_ends_when_the_verdict_is_clear(self) -> None:
        self.options.blocks = None
        self.assertEqual(self.compare(FAKE_B="1.5"), exit_codes.WRONG)
        # Six can tell.
        self.assertEqual((len(self.raw()["order"]), self.raw()["looks"]), (6 * 4, 1))
        told = [line.rpartition(", ")[2] for line in self.printed if line.startswith("block ")]
        self.assertEqual(told, ["GPUDirect off"] * 5 + ["a verdict"])

    def test_each_look_is_counted(self) -> None:
        self.assertEqual([ab.looks(blocks) for blocks in (6, 9, 13, 19)], [(number, True) for number in (1, 2, 3, 4)])
        self.assertEqual([ab.looks(blocks) for blocks in (1, 7, 10)], [(number, False) for number in (1, 2, 3)])

    def test_ranks_that_share_a_gpu(self) -> None:
        self.compare()
        self.assertEqual(self.raw()["notes"], [])
        self.replace(launch, "seen_by_driver", lambda *_: (1, "2.21.5"))
        self.compare()
        self.assertIn("2 ranks share 1 GPU: the times are mostly", self.raw()["notes"][0])

    def test_it_ends_when_the_time_is_over(self) -> None:
        self.options.blocks, self.options.seconds = None, 100
        machine = ab.Machine(None, self.plugin, 2)
        for spent, blocks, goes_on in ((0, 0, True), (80, 8, True), (95, 8, False), (1000, 0, True)):
            one = ab.Comparison.of(self.options, machine)
            one.begin = time.monotonic() - spent
            one.codes = [exit_codes.TOO_FEW_RUNS] * 3
            self.assertEqual(one.wants_more(blocks), goes_on, (spent, blocks))

    def test_the_layout_of_nccl_tests(self) -> None:
        self.options.collectives, self.options.sizes = ["all_gather"], [4_000_000]
        self.compare(FAKE_B="2")
        lines = (self.options.out / "nccl-tests.txt").read_text().splitlines()
        self.assertEqual([line.split()[:2] for line in lines], [["#", "all_gather,"], ["#", "size"], ["#", "(B)"], ["4000000", "1000000"]])
        size, _, _, *numbers = lines[3].split()
        time_a, alg_a, bus_a, time_b, alg_b, bus_b = map(float, numbers)
        # Of two ranks each gets half of the bytes.
        for us, alg, bus in ((time_a, alg_a, bus_a), (time_b, alg_b, bus_b)):
            self.assertAlmostEqual(alg, int(size) / us / 1000, 2)
            self.assertAlmostEqual(bus, alg / 2, 2)
        self.assertAlmostEqual(time_b / time_a, 2, 1)
        self.assertIn(lines[3], "\n".join(self.printed))

    def test_a_side_that_is_slower_is_worse(self) -> None:
        self.options.blocks, self.options.sizes = 6, [8]
        self.assertEqual(self.compare(FAKE_B="1.1"), exit_codes.WRONG)

    def test_a_plugin_against_itself(self) -> None:
        self.options.baseline, self.options.blocks = self.plugin, 6
        self.assertEqual(self.compare(FAKE_B="1.1"), exit_codes.GOOD)
        raw = self.raw()
        self.assertEqual((raw["a"], raw["about"]["variables"]["A"]), ("the same Ferrite", {"ncclConfig_t.netName": "Ferrite"}))

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
        self.assertEqual({row["judgement"]["finding"] for row in self.raw()["rows"]}, {"undecided"})
        self.assertIn("**UNDECIDED in ", (self.options.out / "report.md").read_text())

    def test_another_network_is_refused(self) -> None:
        self.assertIn("used network Socket, not Ferrite", self.refused(FAKE="fallback"))

    def test_data_that_went_past_the_network_is_refused(self) -> None:
        self.assertIn("no connection went via NET/IB, only via SHM", self.refused(FAKE="shm"))

    def test_different_gpudirect_is_refused(self) -> None:
        self.assertIn("GPUDirect differs: A ['off'], B ['on']", self.refused(FAKE="gdr"))

    def test_wrong_values_are_refused(self) -> None:
        self.assertIn("wrong values over Ferrite in all_reduce of 8", self.refused(FAKE="wrong"))

    def test_a_rank_that_dies_is_quoted(self) -> None:
        why = self.refused(FAKE="die")
        self.assertIn("run 01, rank 1: ended with 3", why)
        self.assertIn("ncclAllReduce over Ferrite: remote error", why)
        self.assertFalse((self.options.out / "report.md").exists())

    def test_what_was_done_before_a_rank_dies_is_reported(self) -> None:
        self.options.blocks = 6
        why = self.refused(FAKE="die-later")
        self.assertIn("run 03, rank 1: ended with 3", why)
        self.assertIn("8 runs were done; ", why)
        self.assertIn("The run failed: 8 runs were done, and this report has the first 8", (self.options.out / "report.md").read_text())

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
        self.assertRegex(done.stdout, r"UNDECIDED in [^\n]*\n(  .*\n)+report: .*/report\.md\n")
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

    def test_a_folder_that_cannot_be_written(self) -> None:
        self.options.out = self.plugin / "report"
        self.assertIn(f"--out {self.plugin}/report: Not a directory", self.refused())

    def test_no_software_device(self) -> None:
        self.options.softrnic = self.out
        self.assertIn("no libibverbs.so.1 there", self.refused())

    def test_ports_that_do_not_exist(self) -> None:
        self.assertIn("MASTER_PORT=65534: the ranks meet at the two ports above it", self.refused(**torchrun(0, 2), MASTER_PORT="65534"))

    def test_a_rank_0_that_does_not_come(self) -> None:
        self.replace(launch, "MET_S", 0.1)
        port = fixtures.own_ports(self, 2)
        said = self.refused(**torchrun(1, 2), MASTER_PORT=str(port - 1))
        self.assertIn(f"the ranks do not meet at port {port} of 127.0.0.1: rank 0 does not answer", said)
        self.assertIn(f"open TCP ports {port} and {port + 1} there", said)

    def test_another_rank_that_does_not_come(self) -> None:
        self.replace(launch, "MET_S", 0.1)
        port = fixtures.own_ports(self, 2)
        self.assertIn(f"1 of 2 ranks have come to port {port}", self.refused(**torchrun(0, 2), MASTER_PORT=str(port - 1)))

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


class Meeting:
    """Of rank 1: rank 0 goes on twice."""

    def __init__(self, *_: Any) -> None:
        self.says = iter([True, True, False])

    def gather(self, _: Any) -> list[Any]:
        return [next(self.says), None]


@fixtures.needs_ferrite
class Launched(WithFakeRanks):
    def setUp(self) -> None:
        super().setUp()
        self.replace(launch, "meet", Meeting)

    def test_a_rank_of_a_launcher_runs_alone_as_long_as_rank_0_does(self) -> None:
        fake = {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
        }
        self.assertEqual(self.compare(**fake), exit_codes.GOOD)
        outputs = sorted(path.name for path in self.options.out.glob("*.out"))
        self.assertEqual(outputs, ["01-rank1.out", "02-rank1.out"])

    def test_only_rank_0_has_a_report(self) -> None:
        with mock.patch.object(ab, "run_side", side_effect=KeyboardInterrupt):
            self.assertRaisesRegex(KeyboardInterrupt, "^rank 0 has the report$", self.compare, **torchrun(1, 2))

    def test_what_its_ranks_share_on_the_software_device(self) -> None:
        (self.out / "libibverbs.so.1").touch()
        self.options.softrnic = self.out
        seen: list[dict[str, str]] = []
        with mock.patch.object(launch, "run_ranks", lambda ranks, *_: seen.append(ranks[0].environment)):
            for rank in (1, 1):
                self.compare(**torchrun(rank, 2), MASTER_PORT="2000")
        self.assertEqual(seen[:2], seen[2:])
        self.assertEqual([one["MASTER_PORT"] for one in seen[:2]], ["2002", "2002"])
        self.assertEqual([one["SOFTRNIC_FABRIC"] for one in seen[:2]], [f"ab-{os.getuid()}-2000-0{run}" for run in (1, 2)])
        self.assertEqual(seen[1]["NCCL_HOSTID"], "rank1")
        # It would decide for both sides.
        self.assertNotIn("NCCL_NET", seen[0])
        # The ranks meet by themselves, not where torchrun's agents do.
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", seen[0])


@fixtures.needs_ferrite
class Check(WithFakeRanks):
    def setUp(self) -> None:
        super().setUp()
        self.options.check, self.options.softrnic = True, self.out
        (self.out / "libibverbs.so.1").touch()

    def look(self, **fake: str) -> int:
        with mock.patch.dict(os.environ, fixtures.built_environment(**fake), clear=True):
            return ab.run(self.options)

    def test_a_line_for_each_that_is_well_and_a_trial(self) -> None:
        self.assertEqual(self.look(), exit_codes.GOOD)
        self.assertEqual([line.split()[:2] for line in self.printed[:-1]], [["ok", name] for name in (*NAMES, "trial")])
        self.assertIn("all_reduce, send_recv of 8 bytes over IB and Ferrite, values right, GPUDirect off", self.printed[-2])
        self.assertRegex(self.printed[-1], "^nothing to mend, ")
        self.assertFalse(self.options.out.exists())

    def test_all_that_fails_is_told_at_once_and_nothing_is_tried(self) -> None:
        self.replace(launch, "seen_by_driver", mock.Mock(side_effect=Invalid("sees no GPU: do this")))
        self.options.plugin, self.options.softrnic = self.out / "none.so", None
        self.replace(launch, "rdma_ports", mock.Mock(side_effect=Invalid("no RDMA port is up")))
        self.assertEqual(self.look(), exit_codes.INVALID)
        self.assertEqual([line.split()[1] for line in self.printed if line.startswith("FAIL")], ["plugin", "RDMA", "GPUs", "NCCL"])
        self.assertIn("FAIL  GPUs    sees no GPU: do this", self.printed)
        self.assertRegex(self.printed[-1], "^plugin, RDMA, GPUs, NCCL to mend, ")

    def test_a_trial_that_fails_is_quoted(self) -> None:
        self.assertEqual(self.look(FAKE="die"), exit_codes.INVALID)
        self.assertIn("FAIL  trial   run 01, rank 1: ended with 3", self.printed[-2])
        self.assertIn("ncclAllReduce over Ferrite: remote error", self.printed[-2])

    def test_what_fails_on_another_host(self) -> None:
        self.replace(launch, "meet", lambda *_: mock.Mock(gather=lambda mine: [mine, ["GPUs"]]))
        self.assertEqual(self.look(**torchrun(0, 2)), exit_codes.INVALID)
        self.assertRegex(self.printed[-1], "^nothing to mend here, GPUs to mend on rank 1, ")


NAMES = ("report", "plugin", "judge", "RDMA", "GPUs", "NCCL", "TCP")
