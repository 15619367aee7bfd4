"""Makes the packages of what scripts/build.sh has built, and SHA256SUMS of them. scripts/package.sh starts it.

Exit code 0: made. 2: it could not be.
"""

import argparse
import hashlib
import os
from pathlib import Path

from .. import exit_codes, files
from ..errors import Invalid
from . import deb, description, image, pages, rpm, sbom, tarball, wheel
from .description import Release

LATEST = 2**32 - 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="package", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, required=True, metavar="DIR", help="what scripts/build.sh made")
    parser.add_argument("--copy", type=Path, required=True, metavar="FILE", help="scripts/container/copy.c, compiled without libraries")
    parser.add_argument("--share", type=Path, required=True, metavar="DIR", help="man pages and completions, as they lie below /usr/share")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the packages")
    return parser.parse_args()


def epoch() -> int:
    """SOURCE_DATE_EPOCH, the time of every file."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not text.isdigit() or int(text) > LATEST:
        raise Invalid(f"SOURCE_DATE_EPOCH={text}: must be seconds since 1970, a number from 0 to {LATEST}")
    return int(text)


def make(release: Release, copy: bytes) -> dict[str, bytes]:
    """Every package by its name."""
    tarballs = [tarball.make(release), tarball.make_device(release)]
    made = dict([*tarballs, wheel.make(release), deb.make(release), image.make(release, copy), sbom.make(release)])
    if rpm.is_possible():
        made |= dict([rpm.make(release)])
    else:
        print("no .rpm: rpmbuild is missing (Debian: apt-get install rpm)")
    return made


def run(chosen: argparse.Namespace) -> int:
    files.check_writable(chosen.out)
    release = description.read(chosen.built, pages.read(chosen.share), epoch())
    if not chosen.copy.is_file():
        raise Invalid(f"--copy {chosen.copy}: no such file")
    made = make(release, chosen.copy.read_bytes())
    chosen.out.mkdir(parents=True, exist_ok=True)
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(made.items())]
    for name, content in made.items():
        (chosen.out / name).write_bytes(content)
    (chosen.out / "SHA256SUMS").write_text("".join(sums))
    print(f"{release.build} for {release.machine} with glibc {release.glibc[0]}.{release.glibc[1]} or newer:")
    for name, content in sorted(made.items()):
        print(f"  {len(content) / 1e6:6.2f} MB  {chosen.out / name}")
    return exit_codes.GOOD


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))
