"""Tests of scripts/ab.py as a user starts it."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

from nccl_net_ferrite import command, exit_codes

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


class PathOfThePlugin(fixtures.InFolder):
    """The lines to evaluate, and a warning of a path that some releases of NCCL do not take."""

    def said(self, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fixtures.library_here())
        with contextlib.redirect_stderr(io.StringIO()) as warned:
            lines = command.environment(path)
        self.assertIn("export NCCL_NET_PLUGIN=", lines)
        return warned.getvalue()

    def path_of(self, length: int) -> Path:
        folder = self.out.resolve() / ("d" * 100)
        return folder / ("f" * (length - len(str(folder)) - 1))

    def test_a_path_that_all_take(self) -> None:
        self.assertEqual([self.said(self.out / "p.so"), self.said(self.path_of(254))], ["", ""])

    def test_a_path_that_is_too_long_or_has_a_comma(self) -> None:
        self.assertRegex(
            self.said(self.path_of(255)), "^warning: .*f: NCCL 2.26 and later take no path of more than 254 characters: install"
        )
        self.assertIn("NCCL 2.27 and later take a comma for the end of a path", self.said(self.out / "a,b" / "p.so"))
