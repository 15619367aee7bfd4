"""Tests of scripts/ab.py as a user starts it."""

import re
import subprocess

from nccl_net_ferrite import exit_codes

from . import fixtures


class Command(fixtures.InFolder):
    """The program as a user starts it."""

    def setUp(self) -> None:
        super().setUp()
        (self.out / "p.so").write_bytes(fixtures.library_here())

    def start(self, torch: str) -> "subprocess.CompletedProcess[str]":
        """With a module `torch` of this text."""
        (self.out / "torch.py").write_text(torch)
        return fixtures.run("ab.py", "--ranks", "2", "--plugin", self.out / "p.so", "--out", self.out / "report", PYTHONPATH=str(self.out))

    def test_without_torch_it_says_so_in_one_line(self) -> None:
        for torch, words in [
            (
                "raise ModuleNotFoundError(\"No module named 'torch'\")",
                "No module named 'torch'; install it, or name a libnccl.so.2 with --libnccl",
            ),
            ("import types; cuda = types.SimpleNamespace(device_count=lambda: 0)", "PyTorch sees no GPU on this machine"),
        ]:
            done = self.start(torch)
            self.assertEqual((done.returncode, len(done.stderr.splitlines()), done.stdout), (exit_codes.INVALID, 1, ""))
            self.assertIn(words, done.stderr)
            self.assertEqual(list((self.out / "report").iterdir()), [])

    def test_the_help_shows_each_way_to_start_it(self) -> None:
        said = fixtures.run("ab.py", "--help").stdout
        for words in (
            "torchrun --nnodes 2 --nproc-per-node 8 ",
            "srun --nodes 2 ",
            "mpirun -np 16 ",
            "torchrun --nproc-per-node 2 scripts/ab.py --softrnic",
            "MASTER_PORT + N",
            "3: too few",
            "130: interrupted",
        ):
            self.assertIn(words, said)
        self.assertNotIn("...", re.sub(r"\[.*?\]", "", said.split("options:")[0].split("\n\n", 1)[1]))

    def test_bad_usage(self) -> None:
        done = fixtures.run("ab.py", "--blocks", "0")
        self.assertEqual(done.returncode, exit_codes.INVALID)
        self.assertIn("'0' must be a number from 1 to 20", done.stderr)
