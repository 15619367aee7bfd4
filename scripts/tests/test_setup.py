"""scripts/setup.sh where something is missing: no Rust, one that is too old, no network. PATH has what stands in for the system's."""

import os
import re
import shutil
import subprocess

from . import fixtures

PROGRAMS = ("awk", "basename", "bash", "cat", "dirname", "env", "grep", "head", "mktemp", "realpath", "rm", "sed", "sort", "tail", "tr")
PINNED = re.findall(r'^channel = "(.*)"$', (fixtures.ROOT / "rust-toolchain.toml").read_text(), re.MULTILINE)


class Missing(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        for name in PROGRAMS:
            path = shutil.which(name, path="/usr/bin:/bin")
            assert path, name
            os.symlink(path, self.out / name)
        self.write("id", "echo 0")

    def write(self, name: str, script: str) -> None:
        file = self.out / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)

    def apt(self, **versions: str) -> None:
        """Packages that there are; apt-get writes what it is to install, and makes what would be there then."""
        cases = "".join(f"{name}) echo '  Candidate: {version}' ;;\n" for name, version in versions.items())
        self.write("apt-cache", f'case "$2" in {cases} *) echo "  Candidate: (none)" ;; esac')
        self.write("later", "echo rustc 1.99.0")
        links = f"/bin/ln -s later {self.out}/rustc; /bin/ln -s later {self.out}/cargo"
        self.write("apt-get", f'echo "$@" >>{self.out}/log; case "$1" in install) {links} ;; esac')

    def call(self, function: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", f'. "$1/scripts/setup.sh"; {function}', "x", fixtures.ROOT],
            env={"PATH": str(self.out), "HOME": str(self.out)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def test_rustup_of_the_system_is_taken_first(self) -> None:
        self.apt(rustup="1.27.1-3", rustc="1.85.0+dfsg3-1")
        self.assertEqual(self.call("install_rust"), (0, "installing: rustup\n"))
        self.assertRegex((self.out / "log").read_text(), r"install .* rustup\n")

    def test_a_compiler_of_the_system_that_is_new_enough_is_taken(self) -> None:
        self.apt(rustc="1.93.1+dfsg1-1")
        self.assertEqual(self.call("install_rust"), (0, "installing: cargo rustfmt rust-clippy\n"))

    def test_without_rust_the_lines_that_help_are_reported(self) -> None:
        self.apt(rustc="1.63.0+dfsg1-2")
        code, said = self.call("install_rust")
        self.assertEqual(code, 1)
        self.assertIn("missing: cargo, and the system's packages have 1.63.0; Rust 1.90 or newer is needed.", said)
        self.assertIn(f"\n    rustup toolchain install {PINNED[0]} ", said)
        self.assertNotIn("install", (self.out / "log").read_text())
        self.write("id", "echo 1000")
        self.assertRegex(self.call("install_rust")[1], r"missing: cargo; Rust 1\.90 or newer is needed")

    def test_a_compiler_that_is_too_old_or_cannot_be_fetched_is_reported(self) -> None:
        self.write("cargo", "")
        self.write("rustc", "echo rustc 1.63.0")
        self.assertRegex(self.call("install_rust")[1], r"Rust 1\.63\.0 is too old; Rust 1\.90 or newer is needed")
        self.write("rustc", "echo 'error: could not download file' >&2; exit 1")
        said = self.call("install_rust")[1]
        self.assertRegex(said, r"rustc cannot be run: error: could not download file; [^\n]*\n +rustup toolchain install")

    def test_without_a_network_packages_and_crates_are_reported_with_what_helps(self) -> None:
        self.write("apt-get", "echo 'E: Failed to fetch http://mirror.invalid/: Temporary failure resolving' >&2; exit 100")
        code, said = self.call("install_packages gcc binutils")
        self.assertEqual(code, 1)
        self.assertRegex(said, r"apt-get cannot install gcc binutils: E: Failed to fetch [^\n]*resolving\n +It needs a mirror")
        self.write("cargo", "echo 'error: download of config.json failed' >&2; exit 101")
        for function in ("install_nextest", "install_auditable", "install_mdbook", "install_deny"):
            code, said = self.call(function)
            self.assertEqual(code, 1)
            self.assertRegex(said, r"download of config.json failed\n.*cargo install [a-z@0-9.-]+ failed, and it .* needs the network")
        self.write("rustup", "echo 'error: could not download' >&2; exit 1")
        self.assertRegex(self.call("install_components")[1], r"rustup component add .* needs a network: error: could not download")
