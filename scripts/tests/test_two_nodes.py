"""docs/compare.md: the comparison under real launchers, over two hosts that are network namespaces of this machine, with a library in
place of NCCL and of the GPUs; and the page's other lines, against what the programs themselves say of their options."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from nccl_net_ferrite import exit_codes
from nccl_net_ferrite.files import read_json

from . import fixtures
from .test_container import DIST

PAGE = (fixtures.ROOT / "docs/compare.md").read_text()
# Every run has Open MPI; scripts/nightly.sh names Slurm too.
LAUNCHERS = os.environ.get("FERRITE_LAUNCHERS", "mpirun").split()


def can_make_hosts() -> bool:
    name = f"ferrite-test-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
    if made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=True)
    return made


class Comparison(fixtures.WithFakeNccl):
    def test_each_launcher_brings_the_verdict_of_both_hosts(self) -> None:
        if not can_make_hosts():
            self.skipTest("network namespaces (root, and ip of iproute2)")
        if not (DIST / "softrnic/libibverbs.so.1").exists():
            self.skipTest(f"softrnic in {DIST} (scripts/build.sh makes it)")
        for launcher in LAUNCHERS:
            if not shutil.which(launcher):
                self.skipTest(launcher)
            folder = self.out / launcher
            command: list[str | Path] = [fixtures.SCRIPTS / "two_nodes.sh", launcher, sys.executable, fixtures.SCRIPTS / "ab.py"]
            command += ["--softrnic", DIST / "softrnic", "--plugin", DIST / "lib/libnccl-net.so", "--libnccl", self.library]
            command += [
                "--libcuda",
                self.library,
                "--blocks",
                "1",
                "--seconds",
                "1",
                "--sizes",
                "8",
                "--collectives",
                "all_reduce",
                "--out",
                folder,
            ]
            done = subprocess.run(
                command, env=fixtures.built_environment(FAKE_B="1"), cwd=self.out, capture_output=True, text=True, check=False, timeout=120
            )
            # One block is too few to tell, and rank 0 ends with that code.
            self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stdout + done.stderr)
            self.assertIn("Ferrite against NCCL 2.99.1's built-in IB transport, 2 ranks", done.stdout)
            about = read_json(folder / "raw.json")["about"]
            self.assertEqual(about["gpus"], ["node0: fake GPU", "node1: fake GPU"], launcher)
            # Nothing is left of the hosts.
            left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
            self.assertEqual(re.findall(rf"^ferrite{os.getpid()}-", left, re.MULTILINE), [])


class CompanionsComparison(fixtures.InFolder):
    """Each night, as the launchers' variables and what two hosts do are tried in each run by tests of the companion."""

    def test_each_launcher_brings_one_report_of_both_hosts(self) -> None:
        for launcher in LAUNCHERS if "FERRITE_LAUNCHERS" in os.environ else []:
            if not can_make_hosts() or not shutil.which(launcher):
                self.skipTest(f"network namespaces (root, and ip of iproute2), or {launcher}")
            plugin, folder = DIST / "lib/libnccl-net.so", self.out / launcher
            command: list[str | Path] = [fixtures.SCRIPTS / "two_nodes.sh", launcher, DIST / "bin/ferrite", "compare", "--job"]
            command += ["--against", plugin, "--plugin", plugin, "--set-a", "FERRITE_STATS=0", "--report", folder]
            command += ["--seconds", "2", "--sizes", "8", "--connections", "2"]
            done = subprocess.run(
                command, env=fixtures.built_environment(), cwd=self.out, capture_output=True, text=True, check=False, timeout=120
            )
            # Two seconds are too few to tell, and rank 0 ends with that code.
            self.assertEqual(done.returncode, exit_codes.TOO_FEW_RUNS, done.stdout + done.stderr)
            self.assertIn("node0 softrnic0 to node1 softrnic0", done.stdout, launcher)
            raw = read_json(folder / "raw.json")
            self.assertEqual((raw["machine"]["host"], raw["other_machine"]["host"]), ("node0", "node1"))


def lines_of_page() -> list[list[str]]:
    """Commands in blocks and between backticks, in words."""
    blocks = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")]
    texts = [re.sub(r"\s+#.*", "", text) for text in [*blocks, *re.findall(r"`([^`\n]+)`", PAGE)]]
    return [words for text in texts if (words := shlex.split(text.replace(" > ", " ")))]


class Lines(fixtures.InFolder):
    def options(self, program: str) -> list[str]:
        """All that the page gives to a program itself: what stands before the command that it starts."""
        found = []
        for words in lines_of_page():
            if words[0] == program:
                own = [word for word in words[1:] if word not in ("nccl-net-ferrite", "nccl_net_ferrite")]
                end = next((at for at, word in enumerate(words[1:]) if word in ("nccl-net-ferrite", "nccl_net_ferrite")), len(own))
                found += [word.split("=")[0] for word in own[:end] if word.startswith("-")]
        self.assertTrue(found, program)
        return found

    def test_mpirun_and_srun_know_the_options(self) -> None:
        for launcher, help_words in (("mpirun", ["--allow-run-as-root", "--help", "all"]), ("srun", ["--help"])):
            options = self.options(launcher)
            if launcher not in LAUNCHERS:
                continue
            if not shutil.which(launcher):
                self.skipTest(launcher)
            # Without a cluster's configuration srun says nothing.
            (self.out / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
            variables = fixtures.built_environment(SLURM_CONF=str(self.out / "slurm.conf"))
            said = subprocess.run([launcher, *help_words], env=variables, capture_output=True, text=True, check=False).stdout
            # It may write them with one dash or two.
            known = {word.lstrip("-") for word in re.findall(r"(?<![\w-])--?[\w-]+", said)}
            self.assertEqual([option for option in options if option.lstrip("-") not in known], [], launcher)
