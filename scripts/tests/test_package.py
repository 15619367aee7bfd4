"""The packages of what scripts/build.sh has built: each is made, unpacked or installed, and used. Without a network."""

import gzip
import hashlib
import importlib.util
import io
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import Any

from nccl_net_ferrite import elf

from . import installed
from .fixtures import ROOT, environment
from .installed import output
from .test_container import DIST


def versions_built() -> set[str]:
    """In the folder that scripts/build.sh fills; softrnic's libraries do not tell theirs."""
    return {elf.read(path).version for path in DIST.glob("*/*") if not path.is_symlink()} - {""}


def missing() -> str:
    """What the tests need and is not here; "" if nothing is missing."""
    if not importlib.util.find_spec("ensurepip"):
        return "venv of Python with pip (Debian: python3-venv)"
    count = len(versions_built())
    return "" if count == 1 else f"one build in {DIST}, which has {count} (scripts/build.sh makes one)"


def pages_and_completions() -> dict[str, bytes]:
    """Man pages and completions of the built programs, by where they lie below share."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in ("ferrite", "softrnic"):
            output(DIST / "bin" / program, "man", folder)
            for shell, name in (
                ("bash", f"bash-completion/completions/{program}"),
                ("zsh", f"zsh/site-functions/_{program}"),
                ("fish", f"fish/vendor_completions.d/{program}.fish"),
            ):
                found[name] = output(DIST / "bin" / program, "completions", shell).encode()
        return found | {f"man/man1/{path.name}.gz": path.read_bytes() for path in Path(folder).iterdir()}


def plain(name: str, content: bytes) -> bytes:
    """A compressed page must not tell when it was made, and has no name."""
    if not name.endswith(".gz"):
        return content
    if content[3:8] != bytes(5):
        raise AssertionError(f"{name}: flags {content[3]}, time {content[4:8]!r}")
    return gzip.decompress(content)


def block(page: str, first: str) -> list[str]:
    """The lines of the block of code on a page that begins with a line of these first words."""
    lines = (ROOT / page).read_text().splitlines()
    [start] = [number for number, line in enumerate(lines) if line.startswith(f"    {first}")]
    return [line.strip() for line in itertools.takewhile(lambda line: line.startswith("    "), lines[start:])]


class Packages(installed.Installed, unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if missing():
            return
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = Path(folder.name)
        command: list[str | Path] = [ROOT / "scripts/package.sh", "--built", DIST]
        variables = environment(FERRITE_PACKAGES=str(cls.out))
        # What a user has set for his own files must not show in the packages.
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, umask=0o077)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.venv = cls.out / "venv"
        output(sys.executable, "-m", "venv", cls.venv)
        output(cls.venv / "bin/pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", next(cls.out.glob("*.whl")))

    def setUp(self) -> None:
        if missing():
            self.skipTest(missing())

    def test_the_sums_are_those_of_the_files(self) -> None:
        lines = (self.out / "SHA256SUMS").read_text().splitlines()
        self.assertGreaterEqual(len(lines), 5)
        for line in lines:
            digest, name = line.split()
            self.assertEqual(hashlib.sha256((self.out / name).read_bytes()).hexdigest(), digest, name)

    def test_the_tarball_has_what_was_built(self) -> None:
        with tarfile.open(self.package("nccl-net-ferrite-*.tar.gz")) as file:
            [top] = {name.split("/")[0] for name in file.getnames()}
            for name in ("lib/libnccl-net.so", "bin/ferrite", "bin/softrnic", "softrnic/libibverbs.so.1"):
                member = file.getmember(f"{top}/{name}")
                found = file.extractfile(member)
                assert found
                self.assertEqual((found.read(), member.mode & 0o111), ((DIST / name).read_bytes(), 0o111), name)
            names = [name.removeprefix(f"{top}/") for name in file.getnames()]
        self.assertIn("python/nccl_net_ferrite/ab_rank.py", names)
        self.assertIn("python/nccl_net_ferrite/job.yaml", names)
        # What makes packages is in none.
        self.assertEqual([name for name in names if "package/" in name or "tests/" in name], [])

    def test_all_that_was_built_is_one_build(self) -> None:
        [version] = versions_built()
        self.assertEqual(output(DIST / "bin/ferrite", "-V"), f"ferrite {version}\n")
        self.assertEqual(output(DIST / "bin/softrnic", "-V"), f"softrnic {version}\n")
        commit = version.partition("+")[2].removesuffix(".modified")
        # Without git, or where it does not trust the folder, the commit is unknown.
        if commit != "unknown":
            output("git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}")

    def test_the_bill_of_materials_is_what_is_linked(self) -> None:
        bom = json.loads(self.package("*.cdx.json").read_text())
        names = {one["name"]: one for one in bom["components"]}
        self.assertTrue({"nccl-net-ferrite", "ferrite", "softrnic", "softrnic-cli", "libc"} <= set(names))
        # Of tests and of builds.
        self.assertFalse({"proptest", "loom", "bindgen", "rdma-sys", "testkit", "cc"} & set(names))
        lock = (ROOT / "Cargo.lock").read_text()
        for one in bom["components"]:
            self.assertIn(f'name = "{one["name"]}"\nversion = "{one["version"]}"\n', lock)
        references = {one["bom-ref"] for one in bom["components"]}
        self.assertTrue(all(set(one["dependsOn"]) <= references for one in bom["dependencies"]))

    def test_the_page_names_each_package_as_it_is_called(self) -> None:
        """On x86-64, where the table says what there is; the wheel's name has the glibc of this build."""
        if os.uname().machine != "x86_64":
            self.skipTest("an x86-64 machine")
        page = (ROOT / "docs/install.md").read_text()
        made = {re.sub(r"manylinux_\d+_\d+", "manylinux_2_17", path.name) for path in self.out.iterdir() if path.is_file()} - {"torch.py"}
        self.assertEqual({name for name in made if f"`{name}`" in page.split("## Wheel")[0]}, made)
        [debian, fedora] = re.findall(r"(?:apt|dnf) install \./(\S+)", page)
        self.assertLessEqual({debian, fedora}, made)

    def test_the_name_of_the_wheel_tells_the_glibc_that_it_needs(self) -> None:
        needed = max(elf.read(path).glibc for path in DIST.glob("*/*") if not path.is_symlink())
        major, minor = max(needed, (2, 17))
        self.assertIn(f"-py3-none-manylinux_{major}_{minor}_{os.uname().machine}.whl", self.package("*.whl").name)

    def test_one_line_sets_what_nccl_needs(self) -> None:
        line = 'eval "$("$1/python" -m nccl_net_ferrite)" && echo "$NCCL_NET $NCCL_NET_PLUGIN"'
        network, plugin = output("sh", "-c", line, "sh", self.venv / "bin").split()
        self.assertEqual((network, output(self.venv / "bin/nccl-net-ferrite", "path").strip()), ("Ferrite", plugin))
        self.assertEqual(Path(plugin).read_bytes(), (DIST / "lib/libnccl-net.so").read_bytes())
        load = "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), f'ncclNetPlugin_v{n}') for n in range(8, 13)]"
        output(sys.executable, "-c", load, plugin)

    def test_the_tarball_and_the_wheel_have_man_pages_and_completions(self) -> None:
        wanted = pages_and_completions()
        self.assertTrue({"man/man1/ferrite-doctor.1.gz", "man/man1/softrnic-run.1.gz"} <= set(wanted))
        with tarfile.open(self.package("nccl-net-ferrite-*.tar.gz")) as file:
            found = {name.partition("/share/")[2]: member for name in file.getnames() if (member := file.getmember(name)).isfile()}
            contents = {name: plain(name, self.content(file, found[name])) for name in wanted}
        self.assertEqual(contents, wanted)
        share = self.venv / "share"
        self.assertEqual({name: plain(name, (share / name).read_bytes()) for name in wanted}, wanted)

    def test_the_debian_package_has_them_where_debian_looks(self) -> None:
        try:
            root = self.out / "described"
            output("dpkg-deb", "--extract", self.package("*.deb"), root)
        except FileNotFoundError:
            self.skipTest("dpkg-deb")
        share = root / "usr/share"
        found = {
            str(path.relative_to(share)): path for path in share.rglob("*") if path.is_file() and "doc" not in path.relative_to(share).parts
        }
        wanted = {name.replace("site-functions", "vendor-completions"): content for name, content in pages_and_completions().items()}
        self.assertEqual({name: plain(name, path.read_bytes()) for name, path in found.items()}, wanted)

    def test_the_completions_of_the_package_complete_in_bash(self) -> None:
        script = self.venv / "share/bash-completion/completions/ferrite"
        line = 'source "$1"; COMP_WORDS=(ferrite do) COMP_CWORD=1; _ferrite ferrite do ferrite; echo "${COMPREPLY[@]}"'
        self.assertEqual(output("bash", "--norc", "-c", line, "bash", script), "doctor\n")

    def test_the_doctor_finds_nothing_wrong_on_softrnic(self) -> None:
        softrnic, ferrite = self.venv / "bin/softrnic", self.venv / "bin/nccl-net-ferrite"
        plugin = output(ferrite, "path").strip()
        said = output(softrnic, "run", "--", ferrite, "doctor", NCCL_NET_PLUGIN=plugin, NCCL_NET="Ferrite")
        self.assertRegex(said, r"ok +loopback +softrnic0:1: 1 MiB arrived right")
        self.assertRegex(said, rf"ok +plugins .*{re.escape(plugin)}")
        self.assertRegex(said, r"\n0 FAIL, ")

    def test_the_programs_of_the_package_are_there(self) -> None:
        for program in ("ab", "matrix", "ddp", "compare", "check", "top", "hang"):
            self.assertIn(program, output(self.venv / "bin/nccl-net-ferrite", program, "--help"))
        self.assertEqual(output(self.venv / "bin/ferrite", "-V"), output(DIST / "bin/ferrite", "-V"))
        self.assertEqual(output(self.venv / "bin/nccl-net-ferrite", "job"), (ROOT / "scripts/container/job.yaml").read_text())

    def test_the_lines_of_the_pages_in_their_order(self) -> None:
        """As they stand there, but for the glibc in the name of the wheel. Without PyTorch the comparison says what it needs."""
        (self.out / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
        wheel = self.package("*.whl").name
        for page in ("README.md", "docs/install.md"):
            [compare] = [line for line in block("README.md", "nccl-net-ferrite compare") if line.startswith("nccl-net-ferrite ab")]
            shown = block("README.md", "scripts/package.sh")[1:] if page == "README.md" else block(page, "pip install $REPOSITORY/")
            lines = [re.sub(r"(packages/)?nccl_net_ferrite-\S+\.whl", wheel, line) for line in [*shown, compare]]
            self.assertEqual(len(lines), 4)
            # Where a release would lie.
            for line in lines:
                if match := re.search(r"\$REPOSITORY/(\S+)/", line):
                    published = self.out / "repository" / match[1]
                    published.parent.mkdir(parents=True)
                    published.symlink_to(self.out)
            repository = f"file://{self.out}/repository"
            done = self.typed(lines, REPOSITORY=repository, PIP_NO_INDEX="1", PIP_FORCE_REINSTALL="1", PYTHONPATH=str(self.out))
            self.assertRegex(done.stdout, r"\nSuccessfully installed nccl-net-ferrite-[\s\S]*\n0 FAIL, ")
            self.assertRegex(done.stderr, r"not valid: (libcuda\.so\.1 sees no GPU|PyTorch cannot be used) [^\n]*\n$")
            self.assertEqual(done.returncode, 2)

    def test_the_lines_for_the_tarball_in_their_order(self) -> None:
        lines = [line.replace("x86_64", os.uname().machine) for line in block("docs/install.md", "tar xf nccl-net-ferrite")]
        done = self.typed(lines)
        self.assertRegex(done.stdout, r"ok +plugins +NCCL [^:]+: takes \S+/lib/libnccl-net.so: Ferrite[\s\S]*\n0 FAIL, ")
        self.assertEqual(done.returncode, 0, done.stderr)

    def typed(self, lines: list[str], **more: str) -> "subprocess.CompletedProcess[str]":
        """In a shell where the packages lie, with the virtual environment in PATH, on the software device."""
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        command: list[str | Path] = [self.venv / "bin/softrnic", "run", "--", "sh", "-c", "\n".join(lines)]
        return subprocess.run(command, env=environment(PATH=path, **more), cwd=self.out, capture_output=True, text=True, check=False)

    def test_the_tarball_of_the_software_device_has_that_alone(self) -> None:
        with tarfile.open(self.package("softrnic-*.tar.gz")) as file:
            [top] = {name.split("/")[0] for name in file.getnames()}
            names = {name.removeprefix(f"{top}/") for name in file.getnames() if not file.getmember(name).isdir()}
        self.assertEqual(top, self.package("softrnic-*.tar.gz").name.removesuffix(".tar.gz"))
        programs = {
            f"{folder}/{path.name}" for folder in ("softrnic", "softrnic-tools", "softrnic-provider") for path in (DIST / folder).glob("*")
        }
        shared = {f"share/{name}" for name in pages_and_completions() if "softrnic" in name}
        documents = {f"share/doc/softrnic/{name}" for name in ("README.md", "LICENSE", "docs/clients.md", "docs/faults.md")}
        self.assertLessEqual({"bin/softrnic"} | programs | shared | documents, names)
        self.assertEqual([name for name in names if "ferrite" in name or "nccl-net" in name], [])

    def test_links_of_the_packaged_pages_lead_somewhere(self) -> None:
        for package in ("nccl-net-ferrite-*.tar.gz", "softrnic-*.tar.gz"):
            with tarfile.open(self.package(package)) as file:
                pages = {name: self.content(file, file.getmember(name)).decode() for name in file.getnames() if name.endswith(".md")}
                self.assertTrue(any("](docs/" in text for text in pages.values()), package)
                for name, text in pages.items():
                    for target in re.findall(r"\]\(([^()#\s]+)", text):
                        there = os.path.normpath(Path(name).parent / target)
                        self.assertTrue("://" in target or there in file.getnames(), f"{name}: {target}")

    def test_the_first_page_of_the_software_device(self) -> None:
        """Its example as it stands there, in a shell where the tarball lies and that knows nothing of the device."""
        for program in ("ibv_devices", "rping"):
            if not shutil.which(program):
                self.skipTest(program)
        lines = [line.replace("x86_64", os.uname().machine) for line in block("softrnic/README.md", "tar xf softrnic")]
        self.assertLessEqual(len(lines), 10)
        command = ["timeout", "120", "sh", "-ec", "\n".join(lines)]
        done = subprocess.run(command, env=environment(), cwd=self.out, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(re.findall(r"^ +(softrnic\d)", done.stdout, re.MULTILINE), ["softrnic0", "softrnic1"])
        self.assertEqual(len(re.findall(r"^ping data: rdma-ping-\d", done.stdout, re.MULTILINE)), 10, done.stdout)

    def test_the_software_device_runs_beneath_the_system_s_libibverbs(self) -> None:
        """Which takes softrnic's functions by the same names if the linker has not hidden them."""
        if os.uname().machine != "x86_64":
            self.skipTest("an x86-64 machine")
        if not shutil.which("ibv_devinfo") or not any(Path("/usr/lib").glob("*/libibverbs/libmlx5-rdmav*.so")):
            self.skipTest("ibv_devinfo and libmlx5 (Debian: ibverbs-utils ibverbs-providers)")
        run = (self.venv / "bin/softrnic", "run", "--provider", "mlx5", "--")
        self.assertRegex(output(*run, "ibv_devinfo"), r"hca_id:\s+mlx5_0\n[\s\S]*hca_id:\s+mlx5_1\n")
        self.assertIn("valid run, data right", output(*run, self.venv / "bin/ferrite", "verify", "--verbs", "system", "--over", "single"))
        [library] = self.venv.glob("lib/python*/site-packages/nccl_net_ferrite/dist/softrnic-provider/*.so")
        symbols = output("nm", "--dynamic", "--defined-only", library) if shutil.which("nm") else ""
        self.assertEqual(re.findall(r"\S*(?:ibv_|softrnic_|_R|_ZN)\S*$", symbols, re.MULTILINE), [])

    def test_a_program_that_cannot_be_run_is_reported_with_the_cure(self) -> None:
        [program] = self.venv.glob("lib/python*/site-packages/nccl_net_ferrite/dist/bin/softrnic")
        program.chmod(0o644)
        self.addCleanup(program.chmod, 0o755)
        done = subprocess.run([self.venv / "bin/softrnic"], env=environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, rf"^not valid: {program} cannot be run: .*chmod \+x it")

    def test_the_debian_package(self) -> None:
        try:
            root = self.out / "root"
            output("dpkg-deb", "--extract", self.package("*.deb"), root)
        except FileNotFoundError:
            self.skipTest("dpkg-deb")
        for link in [path for path in root.rglob("*") if path.is_symlink()]:
            self.assertTrue(link.resolve().is_relative_to(root) and link.exists(), link)
        plugin = root / "usr/lib/nccl-net-ferrite/lib/libnccl-net.so"
        self.assertEqual(plugin.read_bytes(), (DIST / "lib/libnccl-net.so").read_bytes())
        self.assertTrue(output(root / "usr/bin/ferrite", "--version").splitlines()[1].startswith(f"plugin {root}"))
        fields = dict(line.split(": ", 1) for line in output("dpkg-deb", "--field", self.package("*.deb")).splitlines() if ": " in line)
        self.assertEqual(fields["Package"], "nccl-net-ferrite")
        self.assertRegex(fields["Depends"], r"^libc6 \(>= 2\.\d+\)")

    def test_everybody_can_read_what_the_rpm_package_installs(self) -> None:
        if not shutil.which("rpmbuild"):
            self.skipTest("rpmbuild (Debian: rpm)")
        files = [line.split() for line in output("rpm", "--query", "--package", "--dump", self.package("*.rpm")).splitlines()]
        modes = {line[0]: int(line[4], 8) for line in files}
        self.assertEqual(modes["/usr/lib/nccl-net-ferrite/lib"], 0o040755)
        for path, mode in modes.items():
            self.assertEqual(mode & 0o444, 0o444, path)
            self.assertFalse(stat.S_ISDIR(mode) and mode & 0o111 != 0o111, path)

    def test_the_image_copies_itself_into_a_volume(self) -> None:
        with tarfile.open(self.package("*-image.tar")) as file:
            contents = {member.name: self.content(file, member) for member in file.getmembers() if member.isfile()}

        def blob(descriptor: dict[str, Any]) -> bytes:
            content = contents[f"blobs/{descriptor['digest'].replace(':', '/')}"]
            self.assertEqual(f"sha256:{hashlib.sha256(content).hexdigest()}", descriptor["digest"])
            self.assertEqual(len(content), descriptor["size"])
            return content

        self.assertEqual(json.loads(contents["oci-layout"]), {"imageLayoutVersion": "1.0.0"})
        [described] = json.loads(contents["index.json"])["manifests"]
        names = described["annotations"]
        self.assertRegex(names["org.opencontainers.image.ref.name"], r"^nccl-net-ferrite:\d")
        self.assertTrue(names["io.containerd.image.name"].endswith("/" + names["org.opencontainers.image.ref.name"]))
        manifest = json.loads(blob(described))
        config = json.loads(blob(manifest["config"]))
        self.assertEqual(config["config"]["Entrypoint"], ["/copy", "/ferrite"])
        root, volume = self.out / "image", self.out / "volume"
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(layer))) as file:
                file.extractall(root)
        # The same is done again: an older copy is replaced.
        for _ in range(2):
            output(root / "copy", root / "ferrite", volume)
            names = {path.relative_to(root / "ferrite") for path in (root / "ferrite").rglob("*")}
            self.assertEqual({path.relative_to(volume) for path in volume.rglob("*")}, names)
        self.assertEqual(output(volume / "bin/ferrite", "-V"), output(DIST / "bin/ferrite", "-V"))
        self.assertEqual(os.readlink(volume / "softrnic/libibverbs.so"), "libibverbs.so.1")
        done = subprocess.run([root / "copy", root / "ferrite"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, "mounted at /target" in done.stderr), (2, True))

    def content(self, file: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
        found = file.extractfile(member)
        assert found
        return found.read()
