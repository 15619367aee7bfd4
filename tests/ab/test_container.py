"""The container recipes, as far as they can be checked without a container engine."""

import os
import re
import shlex
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "scripts/container"
DIST = Path(os.environ.get("FERRITE_DIST", ROOT / "dist"))
# Of Ubuntu 22.04, on which the image is built.
GLIBC = (2, 35)


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: word, and the rest with its continuation lines."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in whole.splitlines()]


class Docker(unittest.TestCase):
    def test_the_page_shows_the_file(self):
        shown = re.search(r"```Dockerfile\n(.*?)```", (ROOT / "docs/users.md").read_text(), re.S)
        self.assertEqual(shown.group(1), (FOLDER / "Dockerfile").read_text())

    def test_each_instruction(self):
        words = [word for word, _ in instructions()]
        self.assertEqual(words, ["FROM", "RUN", "COPY", "ENV"])
        rest = dict(instructions())
        self.assertRegex(rest["FROM"], r"^pytorch/pytorch:2\.6\.0-cuda12\.4-cudnn9-runtime$")
        self.assertEqual(subprocess.run(["bash", "-n", "-c", rest["RUN"]], check=False).returncode, 0)
        installed = re.search(r"--no-install-recommends ([\w -]+?)\s*&&", rest["RUN"]).group(1).split()
        self.assertEqual(installed, ["libibverbs1", "ibverbs-providers"])
        source, target = rest["COPY"].split()
        variables = dict(part.split("=") for part in shlex.split(rest["ENV"]))
        self.assertEqual(variables, {"NCCL_NET_PLUGIN": target, "NCCL_NET": "Ferrite"})
        # An absolute path: NCCL takes it as it is, whatever its version.
        self.assertTrue(target.startswith("/"))
        self.assertIn(f"dist/{source} ", (ROOT / "scripts/build.sh").read_text())

    def test_the_run_line_has_what_the_table_explains(self):
        page = (ROOT / "docs/users.md").read_text()
        line = re.search(r"    docker run .*?\n\n", page, re.S).group(0)
        self.assertEqual(subprocess.run(["bash", "-n", "-c", line], check=False).returncode, 0)
        words = " ".join(shlex.split(line.replace("\\\n", " ")))
        explained = re.findall(r"^\| `(--[^`]+)` \|", page, re.M)
        self.assertEqual(len(explained), 4)
        for option in explained:
            self.assertIn(option, words)

    def test_the_plugin_suits_the_image(self):
        plugin = DIST / "lib/libnccl-net.so"
        if not plugin.exists():
            self.skipTest(f"{plugin} is missing (scripts/build.sh makes it)")
        needed = {tuple(map(int, one.split(b"."))) for one in re.findall(rb"GLIBC_([0-9.]+)", plugin.read_bytes())}
        self.assertGreater(len(needed), 1)
        self.assertLessEqual(max(needed)[:2], GLIBC, "built on a system that is newer than the image")


class Kubernetes(unittest.TestCase):
    def setUp(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no yaml in this Python")
        self.service, self.job = yaml.safe_load_all((FOLDER / "job.yaml").read_text())
        self.pod = self.job["spec"]["template"]["spec"]
        [self.container] = self.pod["containers"]

    def test_nodes_and_ranks_agree(self):
        spec, command = self.job["spec"], self.container["command"]
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertIn(f"--nnodes={spec['completions']}", command)
        self.assertIn(f"--nproc-per-node={self.container['resources']['limits']['nvidia.com/gpu']}", command)

    def test_the_first_pod_has_the_name_that_the_others_look_for(self):
        name = self.service["metadata"]["name"]
        self.assertEqual(self.pod["subdomain"], name)
        self.assertIn(f"--master-addr={self.job['metadata']['name']}-0.{name}", self.container["command"])
        self.assertEqual(self.service["spec"]["selector"], self.job["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(self.service["spec"]["clusterIP"], "None")

    def test_what_rdma_needs(self):
        self.assertEqual(self.container["securityContext"]["capabilities"]["add"], ["IPC_LOCK"])
        self.assertTrue(self.pod["hostNetwork"])
        self.assertTrue(any(name.startswith("rdma/") for name in self.container["resources"]["limits"]))
        [mount], [volume] = self.container["volumeMounts"], self.pod["volumes"]
        self.assertEqual((mount["name"], mount["mountPath"]), (volume["name"], "/dev/shm"))


if __name__ == "__main__":
    unittest.main()
