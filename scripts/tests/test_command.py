"""Tests of scripts/ab.py as a user starts it."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

from nccl_net_ferrite import command, exit_codes

from . import fixtures

# A module `torch`.
NO_GPU = "import types; cuda = types.SimpleNamespace(device_count=lambda: 0)"


class Command(fixtures.InFolder):
    """The program as a user starts it."""

    def setUp(self) -> None:
        super().setUp()
        (self.out / "p.so").write_bytes(fixtures.library_here())

    def start(self, torch: str, program: str = "ab.py", **more: str) -> "subprocess.CompletedProcess[str]":
        """With a module `torch` of this text, and more variables."""
        (self.out / "torch.py").write_text(torch)
        arguments: list[str | Path] = ["--plugin", self.out / "p.so", "--out", self.out / "report"]
        return fixtures.run(program, *arguments, timeout=None, PYTHONPATH=str(self.out), **more)

    def test_without_a_gpu_no_program_starts_a_rank_or_leaves_a_folder(self) -> None:
        launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
        for program, more in [("ab.py", {}), ("ab.py", launched), ("ddp.py", {}), ("hang.py", {})]:
            done = self.start(NO_GPU, program, CUDA_VISIBLE_DEVICES="", **more)
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual((done.returncode, len(done.stderr.splitlines()), done.stdout), (exit_codes.INVALID, 1, ""), program)
            self.assertIn("sees no GPU", done.stderr)
            self.assertIn("(CUDA_VISIBLE_DEVICES='')", done.stderr)
            self.assertFalse((self.out / "report").exists(), program)

    def test_a_rank_without_a_gpu_ends_with_what_is_missing(self) -> None:
        (self.out / "torch").mkdir()
        (self.out / "torch/__init__.py").write_text(NO_GPU)
        (self.out / "torch/distributed.py").touch()
        code = "from nccl_net_ferrite.torch_gather import use_gpu; use_gpu()"
        path = f"{self.out}:{fixtures.SCRIPTS}"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=fixtures.environment(PYTHONPATH=path), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("PyTorch sees no GPU", done.stderr)

    def test_the_help_shows_each_way_to_start_it(self) -> None:
        said = fixtures.run("ab.py", "--help").stdout
        for words in (
            "torchrun --nnodes 2 --nproc-per-node 8 ",
            "    srun --nodes 2 ",
            "mpirun -np 16 ",
            "torchrun --nproc-per-node 2 scripts/ab.py --softrnic",
            "MASTER_PORT + 1",
            "3: undecided",
            "130: interrupted",
        ):
            self.assertIn(words, said)
        self.assertNotIn("...", re.sub(r"\[.*?\]", "", said.split("options:")[0].split("\n\n", 1)[1]))

    def test_the_help_of_the_installed_package_shows_its_own_command(self) -> None:
        for program in command.PROGRAMS:
            start = [sys.executable, "-m", "nccl_net_ferrite", program, "--help"]
            env = fixtures.environment(PYTHONPATH=str(fixtures.SCRIPTS))
            said = subprocess.run(start, env=env, capture_output=True, text=True, check=True).stdout
            self.assertNotIn("scripts/", said)
            self.assertIn(f"\n    nccl-net-ferrite {program} --softrnic", said)
            self.assertEqual("-m nccl_net_ferrite ab --softrnic" in said, program == "ab")

    def test_what_nobody_thought_of_is_not_worse(self) -> None:
        with mock.patch("sys.stderr", new_callable=io.StringIO) as said:
            nothing: dict[str, int] = {}
            self.assertEqual(exit_codes.of_program(lambda: nothing["x"]), exit_codes.INVALID)
        self.assertEqual(said.getvalue().splitlines()[-1], "not valid: KeyError('x')")

    def test_bad_usage(self) -> None:
        done = fixtures.run("ab.py", "--blocks", "0")
        self.assertEqual(done.returncode, exit_codes.INVALID)
        self.assertIn("'0' must be a number from 1 to 100", done.stderr)


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
