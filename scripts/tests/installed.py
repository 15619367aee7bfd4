"""What packages and what was installed of them do on systems that are not as one would like: read-only, noexec, without root."""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from .fixtures import environment

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def output(*command: str | Path, **more: str) -> str:
    """Of a command that has to succeed, in a folder that has no Python package."""
    done = subprocess.run(command, env=environment(**more), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class Installed(unittest.TestCase):
    """Tests of a class that has made the packages and installed the wheel."""

    out: Path  # has all packages
    venv: Path  # has the wheel

    def package(self, pattern: str) -> Path:
        [found] = self.out.glob(pattern)
        return found

    def mounted(self, option: str, *command: str | Path, **more: str) -> "subprocess.CompletedProcess[str]":
        """A command where the virtual environment is mounted with this option, in a mount namespace of its own."""
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
            self.skipTest("unshare (a mount namespace)")
        lines = 'mount --bind "$0" "$0" && mount -o "remount,bind,$1" "$0" && cd "$0" && shift && exec "$@"'
        whole: list[str | Path] = ["unshare", "--mount", "sh", "-c", lines, self.venv, option, *command]
        return subprocess.run(whole, env=environment(**more), capture_output=True, text=True, check=False)

    def test_a_read_only_installation_is_used_and_a_report_has_another_place(self) -> None:
        done = self.mounted("ro", self.venv / "bin/nccl-net-ferrite")
        self.assertEqual((done.returncode, "\nexport NCCL_NET=Ferrite\n" in done.stdout), (0, True), done.stderr)
        plugin = self.venv / "bin/nccl-net-ferrite"
        done = self.mounted("ro", self.venv / "bin/softrnic", "run", "--", plugin, "doctor", "--only", "loopback")
        self.assertRegex(done.stdout, r"ok +loopback +softrnic0:1: 1 MiB arrived right", done.stderr)
        done = self.mounted("ro", plugin, "ab", "--softrnic")
        self.assertRegex(done.stderr, r"^not valid: --out report-ab: Read-only file system; name a folder that can be written to\n$")
        self.assertEqual(done.returncode, 2)

    def test_an_installation_on_a_file_system_that_is_mounted_noexec_is_reported_with_the_cure(self) -> None:
        for words in ([], ["ab"], ["doctor"], ["softrnic", "stat"]):
            done = self.mounted("noexec", self.venv / "bin/python", "-m", "nccl_net_ferrite", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertRegex(done.stderr, r"file system is mounted noexec: install the package on another one\n$", words)

    def test_a_user_who_is_not_root_installs_and_uses_the_wheel(self) -> None:
        if os.getuid() or not shutil.which("setpriv"):
            self.skipTest("root and setpriv, to be another user")
        python = Path("/usr/bin/python3")
        if subprocess.run([*NOBODY, python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
            self.skipTest(f"{python} with pip (Debian: python3-pip)")
        folder = self.out / "nobody"
        folder.mkdir()
        for path in (self.out, self.package("*.whl"), folder):
            path.chmod(0o755)
        os.chown(folder, 65534, 65534)
        home = {"HOME": str(folder)}
        place = folder / "site"
        pip = (python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--target", place)
        output(*NOBODY, *pip, self.package("*.whl"), **home)
        lines = [
            'eval "$(nccl-net-ferrite)"',
            "softrnic run -- nccl-net-ferrite doctor --only plugins,loopback",
            'softrnic run -- ferrite verify --plugin "$NCCL_NET_PLUGIN" --over single',
        ]
        said = output(*NOBODY, "sh", "-ec", "\n".join(lines), PATH=f"{place}/bin:/usr/bin:/bin", PYTHONPATH=str(place), **home)
        self.assertRegex(said, rf"ok +plugins +NCCL [^:]+: takes {place}/\S+: Ferrite[\s\S]*\n0 FAIL, [\s\S]*\nvalid run, data right")

    def test_dpkg_and_rpm_install_into_a_root_and_no_program_finds_the_plugin_there_unasked(self) -> None:
        """Each into a root folder of its own, with a database of its own; what the package depends on is not there."""
        root = self.out / "dpkg-root"
        for name in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        debian = ("dpkg", f"--root={root}", "--force-depends,not-root,bad-path", "--log=/dev/null", "--install", self.package("*.deb"))
        self.installed_by(debian, root)
        self.assertIn("\nStatus: install ok ", output("dpkg", f"--root={root}", "--status", "nccl-net-ferrite"))
        root = self.out / "rpm-root"
        root.mkdir()
        rpm = ("rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "--nosignature", "--install")
        if shutil.which("rpm"):
            self.installed_by((*rpm, self.package("*.rpm")), root)
        else:
            self.skipTest("rpm")

    def installed_by(self, command: tuple[str | Path, ...], root: Path) -> None:
        if not shutil.which(command[0]):
            self.skipTest(str(command[0]))
        output(*command)
        plugin = root / "usr/lib/nccl-net-ferrite/lib/libnccl-net.so"
        output(sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclNetPlugin_v12", plugin)
        self.assertRegex(output(root / "usr/bin/ferrite", "-V"), r"^ferrite \d")
        # It makes a link of each library's soname, in all folders where the loader looks.
        if ldconfig := shutil.which("ldconfig", path="/usr/sbin:/sbin"):
            (root / "etc").mkdir(exist_ok=True)
            (root / "etc/ld.so.conf").touch()
            output(ldconfig, "-r", root)
            self.assertEqual([str(path) for path in root.glob("**/libnccl-net*") if plugin.parent not in path.parents], [])
            self.assertNotIn("nccl", output(ldconfig, "-r", root, "-p"))
