"""The action of GitHub that sets up softrnic: its steps are run as GitHub runs them, with what is built."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import packages

from .fixtures import ROOT, InFolder, environment, found
from .test_container import DIST

FOLDER = ".github/actions/softrnic"
COUNT = "import ctypes; n = ctypes.c_int(); ctypes.CDLL('libibverbs.so.1').ibv_get_device_list(ctypes.byref(n)); print(n.value)"


class Action(InFolder):
    definition: dict[str, Any]

    def setUp(self) -> None:
        super().setUp()
        if not importlib.util.find_spec("yaml"):
            self.skipTest("PyYAML (scripts/requirements.txt)")
        import yaml

        self.definition = yaml.safe_load((ROOT / FOLDER / "action.yml").read_text())
        [text] = found(r"```yaml\n(.*?)```", (ROOT / "softrnic/README.md").read_text())
        self.shown = yaml.safe_load(text)

    def tarball(self) -> Path:
        """That of the release, without man pages."""
        if not (DIST / "bin/softrnic").exists():
            self.skipTest(f"{DIST}/bin/softrnic (scripts/build.sh builds it)")
        name, content = packages.make_device_tarball(packages.read_release(DIST, [], 0))
        (self.out / name).write_bytes(content)
        return self.out / name

    def run_steps(self, action_path: Path = ROOT / FOLDER, **inputs: str) -> "subprocess.CompletedProcess[str]":
        """Until one fails; what the last one did."""
        given = {name: one["default"] for name, one in self.definition["inputs"].items()} | inputs
        done = None
        for step in self.definition["runs"]["steps"]:
            variables = {
                "RUNNER_TEMP": str(self.out / "temp"),
                "GITHUB_ENV": str(self.out / "env"),
                "GITHUB_PATH": str(self.out / "path"),
                "GITHUB_ACTION_PATH": str(action_path),
            }
            variables |= {
                name: re.sub(r"\$\{\{ inputs\.(\w+) }}", lambda it: given[it[1]], text) for name, text in step.get("env", {}).items()
            }
            script = self.out / "step.sh"
            script.write_text(step["run"])
            command: list[str | Path] = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script]
            done = subprocess.run(command, env=environment(**variables), cwd=self.out, capture_output=True, text=True, check=False)
            if done.returncode:
                break
        assert done
        return done

    def devices(self) -> str:
        """How many a program of a later step finds; `softrnic` is a command there."""
        set_by = dict(line.split("=", 1) for line in (self.out / "env").read_text().splitlines())
        path = ":".join([*(self.out / "path").read_text().split(), os.environ["PATH"]])
        self.assertEqual(shutil.which("softrnic", path=path), str(self.out / "temp/softrnic/bin/softrnic"))
        done = subprocess.run(
            [sys.executable, "-c", COUNT], env=environment(PATH=path, **set_by), capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_it_is_a_composite_action(self) -> None:
        self.assertEqual(set(self.definition), {"name", "description", "inputs", "runs"})
        self.assertEqual(self.definition["runs"]["using"], "composite")
        for step in self.definition["runs"]["steps"]:
            self.assertEqual(step["shell"], "bash")
            # Expressions stand in variables: within a script they would become a part of it.
            self.assertNotIn("${{", step["run"])
            for text in step["env"].values():
                self.assertIn(found(r"^\$\{\{ inputs\.(\w+) }}$", text)[0], self.definition["inputs"])
        self.assertTrue(all(one["description"] and "default" in one for one in self.definition["inputs"].values()))

    def test_the_page_shows_inputs_that_there_are(self) -> None:
        [step] = [step for step in self.shown if step.get("uses", "").endswith(FOLDER)]
        self.assertLessEqual(set(step["with"]), set(self.definition["inputs"]))
        self.assertEqual(self.run_steps(tarball=str(self.tarball()), options=step["with"]["options"]).returncode, 0)
        self.assertEqual(self.devices(), "4\n")

    def test_a_release_is_installed_from_an_address(self) -> None:
        if not shutil.which("curl"):
            self.skipTest("curl")
        done = self.run_steps(tarball=self.tarball().as_uri(), options="--faults 'drop chance=0.001'")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("SOFTRNIC_FAULTS=drop chance=0.001\n", (self.out / "env").read_text())
        self.assertEqual(self.devices(), "2\n")
        missing = self.run_steps(tarball=(self.out / "missing.tar.gz").as_uri())
        self.assertNotEqual(missing.returncode, 0)

    def test_the_sources_around_it_are_built(self) -> None:
        self.tarball()
        # In place of the build, which takes minutes: what it fills its folder with.
        built = self.out / "sources/scripts/build.sh"
        built.parent.mkdir(parents=True)
        built.write_text(f'#!/bin/sh\n[ "$1" = --into ] && cp -r "{DIST}/." "$2"\n')
        built.chmod(0o755)
        action = self.out / "sources" / FOLDER
        action.mkdir(parents=True)
        done = self.run_steps(action_path=action)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.devices(), "2\n")

    def test_wrong_options_end_the_step(self) -> None:
        done = self.run_steps(tarball=str(self.tarball()), options="--devices 9")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('SOFTRNIC_DEVICES="9"', done.stderr)
        self.assertEqual((self.out / "env").read_text(), "")
