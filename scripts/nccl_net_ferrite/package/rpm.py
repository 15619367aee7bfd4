"""The RPM package, made by rpmbuild: the files of the Debian package."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .archive import folders
from .deb import installed
from .description import LICENCE, NAME, SUMMARY, TEXT, Entry, Release


def is_possible() -> bool:
    return shutil.which("rpmbuild") is not None


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    entries = installed(release, "usr/lib64")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        lay_out(entries, top / "root")
        (top / "spec").write_text(spec(release, entries, top))
        command = ["rpmbuild", "-bb", "--quiet", "--target", f"{release.machine}-linux", f"--define=_topdir {top}", str(top / "spec")]
        done = subprocess.run(command, env=environment(release), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"rpmbuild failed: {done.stderr}")
        [made] = (top / "RPMS").rglob("*.rpm")
        return made.name, made.read_bytes()


def environment(release: Release) -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch), "LC_ALL": "C", "TZ": "UTC"}


def lay_out(entries: list[Entry], root: Path) -> None:
    for entry in entries:
        path = root / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
        else:
            path.write_bytes(entry.content)
            path.chmod(0o755 if entry.executable else 0o644)


def spec(release: Release, entries: list[Entry], top: Path) -> str:
    """The files are there already: nothing is compiled, stripped, compressed or looked into."""
    own = [f"%dir /{folder}" for folder in folders(entries) if f"/{NAME}" in f"/{folder}"]
    files = [f"/{entry.path}" for entry in entries]
    date = time.strftime("%a %b %d %Y", time.gmtime(release.epoch))
    lines = "\n".join([*own, *files])
    return f"""%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global _buildhost localhost
%global _binary_payload w6.gzdio
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global source_date_epoch_from_changelog 0
Name: {NAME}
Version: {release.version}
Release: 1
Summary: {SUMMARY}
License: {LICENCE}
AutoReqProv: no
Requires: libc.so.6(GLIBC_{release.glibc[0]}.{release.glibc[1]})(64bit), libgcc_s.so.1()(64bit)
Recommends: libibverbs, python3 >= 3.10

%description
{TEXT}

%install
mkdir -p %{{buildroot}}
cp -a {top}/root/. %{{buildroot}}

%files
%defattr(-,root,root,0755)
{lines}

%changelog
* {date} The Ferrite authors - {release.version}-1
- Build {release.build}.
"""
