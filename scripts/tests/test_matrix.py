"""Tests of scripts/matrix.py without a GPU: NCCL and the CUDA driver are played by fake_nccl.c."""

import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from nccl_net_ferrite import matrix, nccl
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.files import read_json
from nccl_net_ferrite.matrix import Case

from . import fixtures


@unittest.skipUnless(shutil.which("cc"), "no C compiler")
class Matrix(fixtures.WithFakeNccl):
    def setUp(self) -> None:
        super().setUp()
        (self.out / "libibverbs.so.1").touch()
        (self.out / "plugin.so").write_bytes(fixtures.library_here())

    def check(self, *arguments: str, fake: str = "", softrnic: bool = True) -> "subprocess.CompletedProcess[str]":
        """Of the whole program."""
        return subprocess.run(
            self.command(*arguments, softrnic=softrnic),
            env=fixtures.environment(FAKE=fake),
            capture_output=True,
            text=True,
            check=False,
        )

    def command(self, *arguments: str, softrnic: bool = True) -> list[str | Path]:
        command: list[str | Path] = [
            sys.executable,
            fixtures.SCRIPTS / "matrix.py",
            "--libnccl",
            self.library,
            "--libcuda",
            self.library,
            "--out",
            self.out / "report",
            "--plugin",
            self.out / "plugin.so",
            "--sizes",
            "8,1M",
            *arguments,
        ]
        if softrnic and "--softrnic" not in arguments:
            command += ["--softrnic", self.out]
        return command

    def right(self, *arguments: str) -> dict[str, Any]:
        done = self.check(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return read_json(self.out / "report/raw.json")

    def wrong(self, fake: str, *arguments: str) -> str:
        done = self.check(*arguments, fake=fake)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return done.stdout

    def test_every_operation_of_four_ranks(self) -> None:
        raw = self.right("--parts", "collectives", "--ranks", "4", "--gdr", "dmabuf")
        self.assertEqual(len(raw["rows"]), 4)
        done = {(one["operation"], one["in_place"]) for row in raw["rows"] for one in row["operations"]}
        self.assertEqual(len(done), 12)
        # Seven operations, five of them in place as well, two sizes, four ranks.
        self.assertEqual(raw["rows"][0]["results"], 96)
        report = (self.out / "report/report.md").read_text()
        self.assertIn("| 2.99.1 | 4 | dmabuf | Simple Tree | right | via NET/Ferrite/…/GDRDMA; 16 results |", report)

    def test_the_other_parts(self) -> None:
        raw = self.right("--parts", "setups,flush,register,abort", "--gdr", "dmabuf")
        self.assertEqual([row["case"]["part"] for row in raw["rows"]], ["setups"] * 4 + ["flush"] * 2 + ["register"] + ["abort"])
        told = " ".join(raw["rows"][-1]["told"])
        self.assertRegex(told, r"error 6 after .* log: .*peer softrnic0 port 1 of process \d+ on")

    def test_odd_numbers_faults_and_machines_of_two_gpus(self) -> None:
        done = self.check("--parts", "odd,faults,nodes", "--gdr", "off,dmabuf", fake="four-gpus")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = read_json(self.out / "report/raw.json")["rows"]
        self.assertEqual([row["case"]["ranks"] for row in rows], [2, 2, 2, 2, 4, 4])
        self.assertEqual({one["size"] for one in rows[0]["operations"]}, set(matrix.ODD_SIZES))
        self.assertIn("4 connections over the other GPU (PXN)", rows[-1]["told"])
        said = self.wrong("four-gpus,no-port-down,no-pxn", "--parts", "faults,nodes", "--gdr", "dmabuf")
        self.assertIn("wrong: no port-down has happened", said)
        self.assertIn("wrong: no connection over the other GPU", said)
        self.assertIn("needs 4 GPUs", self.wrong("", "--parts", "nodes"))

    def test_one_wrong_element_is_found(self) -> None:
        said = self.wrong("wrong", "--parts", "collectives", "--gdr", "off")
        self.assertIn("rank 1, all_reduce of 1M out of place: element 20000 of 262144 is 8216, not 8215", said)

    def test_another_network_algorithm_path_or_rank_is_wrong(self) -> None:
        self.assertIn("used network Socket, not Ferrite", self.wrong("fallback", "--parts", "register"))
        said = self.wrong("other-algo,misplaced", "--parts", "collectives")
        self.assertIn("NCCL used Tree LL", said)
        # A piece that came from the wrong rank.
        self.assertIn("all_gather of 8", said)
        self.assertIn("GPUDirect is off, not on", self.wrong("no-gdr", "--parts", "flush", "--gdr", "dmabuf"))

    def test_the_wrong_registration_or_a_missing_line_is_wrong(self) -> None:
        said = self.wrong("wrong-way,silent", "--parts", "setups")
        self.assertIn("wrong: registered 6 by address and 0 by dma-buf", said)
        self.assertIn('0 lines say "no GPUDirect RDMA"', said)
        self.assertIn("not the application's", self.wrong("unregistered", "--parts", "register"))

    def test_flushes_that_do_not_come_and_queues_for_nothing_are_wrong(self) -> None:
        self.assertIn("wrong: 0 flushes", self.wrong("no-flush", "--parts", "flush", "--gdr", "dmabuf"))
        self.assertIn("4 queue pairs without flushes, 4 with them", self.wrong("flush-queue", "--parts", "flush", "--gdr", "dmabuf"))

    def test_a_death_that_nobody_tells_is_wrong(self) -> None:
        self.assertIn("no warning names the dead process", self.wrong("mute", "--parts", "abort"))
        self.assertIn("no error of NCCL: the stream is not idle after 12 s", self.wrong("no-error", "--parts", "abort", "--limit", "24"))

    def test_an_nccl_that_tells_no_error_is_right_where_the_log_says_so(self) -> None:
        done = self.check("--parts", "abort", "--limit", "24", fake="no-error,dropped")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("rank 0: this NCCL does not tell errors of its network", done.stdout)

    def test_an_nccl_whose_abort_never_returns_is_not_asked_to_abort(self) -> None:
        done = self.check("--parts", "abort", fake="endless-abort")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "rank 0: error 6 after .*ncclCommAbort, which in this NCCL never returns, was not called")

    def test_what_cannot_be_tried_is_said(self) -> None:
        for arguments, words in [
            (["--gdr", "on"], "--gdr on: on the software device it is one of off, dmabuf, peermem, both"),
            (["--parts", "x"], "no part 'x'; there are collectives, setups"),
            (["--plugin", "/none.so"], "--plugin /none.so: no such file"),
            (["--out", str(self.out / "plugin.so/x")], "plugin.so/x: Not a directory"),
            (["--libnccl", "/none.so"], "--libnccl /none.so with"),
            (["--softrnic", "/none"], "--softrnic /none: no libibverbs.so.1 there"),
            (["--ranks", "1"], "'1' must be a number from 2 to 64"),
        ]:
            done = self.check("--parts", "register", *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)
        done = self.check("--parts", "register", fake="no-gpu")
        self.assertEqual(done.returncode, 2)
        self.assertIn("sees no GPU", done.stderr)

    def test_an_interruption_leaves_a_report(self) -> None:
        process = subprocess.Popen(
            self.command("--parts", "abort,register"),
            env=fixtures.environment(FAKE="stuck"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=fixtures.obey_interrupts,
        )
        self.addCleanup(process.kill)
        assert process.stdout
        # The first case is printed when it is done; those of the second wait for ever.
        self.assertIn("a rank killed in the middle", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, told)
        self.assertIn("interrupted: interrupted after 1 of 2 cases, which", told)
        self.assertIn("1 of 1 cases right", said)
        self.assertIn("a rank killed in the middle", (self.out / "report/report.md").read_text())


class Pieces(unittest.TestCase):
    def test_no_two_pieces_of_a_buffer_look_alike(self) -> None:
        tile = nccl.tile([0, 1])
        self.assertEqual(len(set(nccl.tile([3]))), nccl.TILE)
        for shift in (1, 128, 1024, 1 << 20):
            self.assertNotEqual(tile, nccl.tile([0, 1], shift))
        self.assertEqual(nccl.tile([1], 5)[:3].tolist(), [982.0, 983.0, 984.0])

    def test_cases(self) -> None:
        names = [case.name() for case in matrix.cases_of(["collectives"], [2, 4], ["off"], False)]
        self.assertEqual(names[0], "collectives-2-off-ll-ring")
        self.assertEqual(len(set(names)), 8)
        self.assertEqual(Case("collectives", 2, "off", proto="LL", algo="Tree").operations(), ["all_reduce"])
        self.assertRaises(Invalid, matrix.cases_of, ["abort"], [2], ["peermem"], False)
        variables = Case("setups", 2, "off").variables(True)
        self.assertEqual((variables["SOFTRNIC_GPU"], variables["NCCL_NET_GDR_LEVEL"]), ("none", "SYS"))

    def test_a_machine_with_nics_registers_gpu_memory_in_its_own_way(self) -> None:
        (case,) = matrix.cases_of(["setups"], [2], ["off", "on"], False)
        self.assertEqual((case.gdr, case.variables(False)["NCCL_NET_GDR_LEVEL"]), ("on", "SYS"))

    def test_choices_of_old_and_new_logs(self) -> None:
        old = "x NCCL INFO 8 Bytes -> Algo 1 proto 0 time 7.1\n"
        new = "x NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}\n"
        self.assertEqual(matrix.choices_of(old + new), {("Ring", "LL"), ("Tree", "Simple")})
