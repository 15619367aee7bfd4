"""The container recipes, as far as they can be checked without a container engine."""

import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from .fixtures import ROOT

FOLDER = ROOT / "scripts/container"
DIST = Path(os.environ.get("FERRITE_DIST", ROOT / "dist"))


class Docker(unittest.TestCase):
    def test_the_page_shows_the_files(self) -> None:
        shown = re.findall(r"```Dockerfile\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)
        self.assertEqual(shown, [(FOLDER / name).read_text() for name in ("Dockerfile", "Dockerfile.image")])


class Kubernetes(unittest.TestCase):
    def setUp(self) -> None:
        try:
            import yaml
        except ImportError:
            self.skipTest("no yaml in this Python")
        self.service, self.job = yaml.safe_load_all((FOLDER / "job.yaml").read_text())
        self.pod = self.job["spec"]["template"]["spec"]
        [self.container] = self.pod["containers"]

    def test_kubernetes_knows_all_of_it(self) -> None:
        if not importlib.util.find_spec("kubernetes_validate"):
            self.skipTest("kubernetes-validate")
        command: list[str | Path] = [sys.executable, "-m", "kubernetes_validate", "--strict", FOLDER / "job.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual((done.stdout + done.stderr).count(" passed for resource "), 2)

    def test_nodes_and_ranks_agree(self) -> None:
        spec, command = self.job["spec"], self.container["command"]
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual(spec["completions"], spec["parallelism"])
        self.assertIn(f"--nnodes={spec['completions']}", command)
        self.assertIn(f"--nproc-per-node={self.container['resources']['limits']['nvidia.com/gpu']}", command)

    def test_the_first_pod_has_the_name_that_the_others_look_for(self) -> None:
        name = self.service["metadata"]["name"]
        self.assertEqual(self.pod["subdomain"], name)
        self.assertIn(f"--master-addr={self.job['metadata']['name']}-0.{name}", self.container["command"])
        self.assertEqual(self.service["spec"]["selector"], self.job["spec"]["template"]["metadata"]["labels"])
        self.assertEqual(self.service["spec"]["clusterIP"], "None")

    def test_what_rdma_needs(self) -> None:
        self.assertEqual(self.container["securityContext"]["capabilities"]["add"], ["IPC_LOCK"])
        self.assertTrue(self.pod["hostNetwork"])
        self.assertTrue(any(name.startswith("rdma/") for name in self.container["resources"]["limits"]))
        mounts = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        self.assertEqual(mounts["shm"], "/dev/shm")
        self.assertEqual({volume["name"] for volume in self.pod["volumes"]}, set(mounts))

    def test_the_plugin_comes_by_an_init_container(self) -> None:
        [first] = self.pod["initContainers"]
        [brought] = first["volumeMounts"]
        # The image's entry point is `copy /ferrite`: the argument is where to.
        self.assertEqual(first["args"], [brought["mountPath"]])
        self.assertIn(brought["name"], [mount["name"] for mount in self.container["volumeMounts"]])
        variables = {one["name"]: one["value"] for one in self.container["env"]}
        folder = brought["mountPath"]
        self.assertEqual(
            variables, {"PYTHONPATH": f"{folder}/python", "NCCL_NET_PLUGIN": f"{folder}/lib/libnccl-net.so", "NCCL_NET": "Ferrite"}
        )
        self.assertEqual(self.container["command"][-3:], ["-m", "nccl_net_ferrite", "ab"])
