"""scripts/release.sh: what it finds in the way of a release, what it would do, and the folder that it leaves. In a repository that has only
what it looks at, and a program in place of the build."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from . import fixtures

LOOKED_AT = ("scripts/setup.sh", "scripts/release.sh", "Cargo.toml", "rust-toolchain.toml", "crates/proto/src/lib.rs", ".gitignore")


def protocol() -> str:
    [found] = re.findall(
        r"^pub const PROTOCOL_VERSION: u16 = (\d+);$", (fixtures.ROOT / "crates/proto/src/lib.rs").read_text(), re.MULTILINE
    )
    return str(found)


# In place of scripts/package.sh: a package of each processor, and the program that has been built.
PACKAGE = """#!/bin/sh
set -e
mkdir -p "packages/$1/built/bin" && cd "packages/$1"
commit=$(git rev-parse --short=12 HEAD)
echo "$1 of $commit" >"ferrite-$1.tar.gz"
echo old >ferrite-0.0.1.tar.gz
sha256sum "ferrite-$1.tar.gz" >SHA256SUMS
printf '#!/bin/sh\necho "ferrite VERSION+%s"\n' "$commit" >built/bin/ferrite
chmod +x built/bin/ferrite
"""


class Release(fixtures.InFolder):
    def setUp(self) -> None:
        super().setUp()
        if not shutil.which("git"):
            self.skipTest("git")
        self.root = self.out / "repository"
        for name in LOOKED_AT:
            self.write(name, (fixtures.ROOT / name).read_text())
            os.chmod(self.root / name, (fixtures.ROOT / name).stat().st_mode)
        [version] = re.findall(r'^version = "(.+)"$', (self.root / "Cargo.toml").read_text(), re.MULTILINE)
        self.version = version
        self.write("CHANGELOG.md", f"# Changelog\n\n## Unreleased\n\n## {version} - 2026-11-25\n\n- All ([page](docs/x.md)).\n")
        self.write("scripts/package.sh", PACKAGE.replace("VERSION", version))
        os.chmod(self.root / "scripts/package.sh", 0o755)
        self.write("docs/releases.md", f"| {version} | {protocol()} |\n")
        self.write("README.md", f"nccl_net_ferrite-{version}-py3.whl releases/download/v{version}/\nNCCL 2.21.5\n")
        # Programs that a machine may lack.
        [pinned] = re.findall(r'^channel = "(.*)"$', (self.root / "rust-toolchain.toml").read_text(), re.MULTILINE)
        self.program("rpmbuild", "")
        self.program("rustc", f'case "$1" in --version) echo rustc {pinned} ;; *) echo {self.out}/$3$4 ;; esac')
        for processor in ("x86_64", "aarch64"):
            (self.out / f"{processor}-unknown-linux-gnu").mkdir()
            (self.out / f"--target{processor}-unknown-linux-gnu").mkdir()
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def program(self, name: str, script: str) -> None:
        file = self.out / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def git(self, *words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "tag.gpgSign=false", "-c", "commit.gpgSign=false"]
        subprocess.run(["git", "-C", self.root, *identity, *words], check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "x")

    def release(self, *words: str) -> tuple[int, str]:
        return self.started("--dry-run", *words)

    def started(self, *words: str) -> tuple[int, str]:
        who = {f"GIT_{one}_{what}": "x@example.org" for one in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        path = f"{self.out / 'bin'}:{os.environ['PATH']}"
        command: list[str | Path] = [self.root / "scripts/release.sh", *words]
        done = subprocess.run(command, env=fixtures.environment(PATH=path, **who), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def refused(self, *wanted: str) -> None:
        """One thing is in the way for each of these words."""
        code, said = self.release(self.version)
        self.assertEqual((code, said.count("in the way: ")), (1, len(wanted)), said)
        for words in wanted:
            self.assertIn(words, said)

    def test_all_that_would_be_done_is_said_and_nothing_is_done(self) -> None:
        code, said = self.release(self.version)
        self.assertEqual(code, 0, said)
        lines = [line.strip() for line in said.splitlines()[1:]]
        both = ["scripts/package.sh x86_64", "scripts/package.sh aarch64"]
        folder = f"packages/v{self.version}: the packages, SHA256SUMS and NOTES.md"
        self.assertEqual(lines, [*both, "no older release to compare with", folder, f"git tag --annotate v{self.version}"])
        self.assertEqual(subprocess.run(["git", "-C", self.root, "tag"], capture_output=True, check=True).stdout, b"")
        self.assertFalse((self.root / "packages").exists())
        self.git("tag", "v0.0.1")
        code, said = self.release("--without", "aarch64", self.version)
        self.assertEqual((code, "aarch64" in said), (0, False), said)
        self.assertIn("scripts/compatible.sh, with the plugin of v0.0.1\n", said)

    def test_the_folder_has_the_packages_their_sums_and_the_notes(self) -> None:
        code, said = self.started(self.version)
        self.assertEqual(code, 0, said)
        folder = self.root / f"packages/v{self.version}"
        files = ["NOTES.md", "SHA256SUMS", "ferrite-aarch64.tar.gz", "ferrite-x86_64.tar.gz"]
        self.assertEqual(sorted(path.name for path in folder.iterdir()), files)
        checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=True)
        self.assertEqual(checked.stdout.count(": OK"), 3)
        self.assertIn("\n- All (page).\n", (folder / "NOTES.md").read_text())

    def test_the_hosted_workflow_makes_the_same_folder_of_the_tag_or_refuses(self) -> None:
        tag = f"v{self.version}"
        code, said = self.started("--tagged", self.version)
        self.assertEqual((code, f"no tag {tag} of " in said), (1, True), said)
        self.assertEqual(self.started(self.version)[0], 0)
        sums = self.root / f"packages/{tag}/SHA256SUMS"
        first = sums.read_text()
        code, said = self.started("--tagged", self.version)
        self.assertEqual((code, sums.read_text()), (0, first), said)
        self.assertEqual(self.started("--tagged", "--without", "aarch64", self.version)[0], 0)
        # Of the same commit, with other bits.
        in_aarch64 = '[ "$2" = --short=12 ] && [ "$(basename $PWD)" = aarch64 ]'
        self.program("git", f'PATH={os.environ["PATH"]}; {in_aarch64} && echo 0 || git "$@"')
        code, said = self.started("--tagged", self.version)
        self.assertEqual((code, f"the message of the tag {tag} has other checksums: ferrite-aarch64.tar.gz" in said), (1, True), said)
        self.commit()
        self.assertIn(f"no tag {tag} of ", self.started("--tagged", self.version)[1])

    def test_another_version_anywhere_is_in_the_way(self) -> None:
        code, said = self.release("9.9.9")
        self.assertEqual((code, said.count("in the way: ")), (1, 4), said)
        for words in (
            "README.md: names of packages of another version",
            f"Cargo.toml has the version {self.version}",
            'should be "## 9.9.9 - 2',
            f'no row "| 9.9.9 | {protocol()} |"',
        ):
            self.assertIn(words, said)
        for version in ("", "1.0", "v1.0.0", "1.0.0 --force"):
            self.assertRegex(self.release(version)[1], "such as 0.1.0")

    def test_what_is_in_no_commit_or_waits_for_a_release_is_in_the_way(self) -> None:
        self.write("new.txt", "")
        self.write("CHANGELOG.md", f"## Unreleased\n\n- More.\n- And more.\n\n## {self.version} - 2026-11-25\n")
        self.refused("files that are in no commit: CHANGELOG.md new.txt", 'CHANGELOG.md has 2 entries under "Unreleased"')
        self.commit()
        self.git("tag", f"v{self.version}")
        self.refused("2 entries", f"the tag v{self.version} is there")

    def test_another_wire_protocol_than_the_page_has_is_in_the_way(self) -> None:
        self.write("crates/proto/src/lib.rs", f"pub const PROTOCOL_VERSION: u16 = {int(protocol()) + 1};\n")
        self.commit()
        self.refused(f'no row "| {self.version} | {int(protocol()) + 1} |"')

    def test_another_compiler_or_none_for_a_processor_is_in_the_way(self) -> None:
        self.program("rustc", f'case "$1" in --version) echo rustc 1.90.0 ;; *) echo {self.out}/$4 ;; esac')
        self.refused("Rust is 1.90.0, and rust-toolchain.toml says")
        shutil.rmtree(self.out / "aarch64-unknown-linux-gnu")
        self.refused("Rust is 1.90.0", "rustup target add aarch64-unknown-linux-gnu, or --without aarch64")
