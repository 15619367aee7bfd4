"""The comparisons as a user of the wheel starts them: pip has installed it into a virtual environment, and nothing of the repository is
used. The other packages, and what else the wheel has: test_package.py, which takes longer."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import packages
from nccl_net_ferrite import exit_codes
from nccl_net_ferrite.files import read_json

from . import fixtures
from .installed import output
from .test_container import DIST
from .test_package import missing

# For the shortest time.
SHORT = ("--seconds", "2", "--sizes", "8", "--connections", "2")


class Installed(fixtures.WithFakeNccl):
    path: str  # with the programs of the virtual environment first

    @classmethod
    def setUpClass(cls) -> None:
        if missing():
            return
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        out = Path(folder.name)
        name, content = packages.make_wheel(packages.read_release(DIST, pages=[], epoch=0))
        (out / name).write_bytes(content)
        output(sys.executable, "-m", "venv", out / "venv")
        output(out / "venv/bin/pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", out / name)
        cls.path = f"{out / 'venv/bin'}:{os.environ['PATH']}"

    def setUp(self) -> None:
        if missing():
            self.skipTest(missing())
        super().setUp()

    def start(self, *words: str | Path, **more: str) -> "subprocess.Popen[str]":
        """The command nccl-net-ferrite, in a folder that is empty at first."""
        command: list[str | Path] = ["nccl-net-ferrite", *words]
        variables = fixtures.environment(PATH=self.path, **more)
        return subprocess.Popen(command, env=variables, cwd=self.out, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, process: "subprocess.Popen[str]", code: int) -> str:
        """What it printed; its exit code has to be this one."""
        printed, said = process.communicate(timeout=300)
        self.assertEqual(process.returncode, code, printed + said)
        return printed

    def test_compare_has_a_report_of_the_built_in_transport_and_the_plugin(self) -> None:
        # Two seconds are too few to tell.
        self.assertIn("messages right; ", self.ended(self.start("compare", *SHORT, "--out", "there"), exit_codes.TOO_FEW_RUNS))
        raw = read_json(self.out / "there/raw.json")
        self.assertEqual(([side["label"] for side in raw["sides"]], raw["complete"]), (["A", "B"], True))
        self.assertIn("NCCL 2.21.5", (self.out / "there/report.md").read_text())

    def test_compare_of_two_hosts_under_a_launcher(self) -> None:
        port = fixtures.own_ports(self, 1)
        # It serves two above this one.
        launcher = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 2)}
        host, server = (self.start("compare", "--job", *SHORT, **launcher, RANK=rank) for rank in "10")
        self.assertRegex(self.ended(server, exit_codes.TOO_FEW_RUNS), r"\S+ softrnic0 to \S+ softrnic0[\s\S]*messages right; ")
        self.ended(host, exit_codes.GOOD)

    def test_cost_counts_both_transports(self) -> None:
        self.assertRegex(self.ended(self.start("cost", "--size", "8"), exit_codes.GOOD), r"2\.21\.5[\s\S]*Ferrite")

    def test_outlast_has_the_built_in_transport_and_the_plugin_on_the_device(self) -> None:
        plugin = self.ended(self.start("path"), exit_codes.GOOD).strip()
        faults = ("--fault", "port softrnic0/1 down", "--at", "20ms", "--fault", "port softrnic0/1 up", "--at", "40ms")
        for transport in (("--stock",), ("--plugin", plugin)):
            printed = self.ended(self.start("outlast", *transport, *faults, "--lasting", "100ms", "--finish"), exit_codes.GOOD)
            self.assertRegex(printed, r"sender finished after [\s\S]*receiver finished after ")

    def test_ab_without_a_gpu(self) -> None:
        """With a library in place of NCCL and of the GPUs."""
        words = ("ab", "--softrnic", "--blocks", "1", "--seconds", "1", "--sizes", "8", "--libcuda", self.library)
        done = self.start(*words, "--libnccl", self.library, FAKE_B="1")
        self.assertIn("Ferrite against NCCL 2.99.1's built-in IB transport, 2 ranks", self.ended(done, exit_codes.TOO_FEW_RUNS))
        self.assertTrue((self.out / "report-ab/report.svg").is_file())
