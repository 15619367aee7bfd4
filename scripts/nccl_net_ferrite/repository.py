"""Files beside this package: those that were installed with it, or those of the repository that it lies in."""

import os
from pathlib import Path

from . import elf
from .exit_codes import Invalid

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Folders with lib/, bin/ and softrnic/: named by the user, of a wheel, of the repository, of the tarball and the system's packages.
NAMED = [Path(named).absolute() for named in [os.environ.get("FERRITE_DIST")] if named]
PLACES = [*NAMED, HERE / "dist", ROOT / "dist", ROOT]
DIST = next((place for place in PLACES if (place / "lib/libnccl-net.so").is_file()), ROOT / "dist")
PLUGIN = DIST / "lib/libnccl-net.so"
SOFTRNIC = DIST / "softrnic"
# NCCL's plugin headers.
INCLUDE = next((place for place in (HERE / "include", ROOT / "include") if place.is_dir()), ROOT / "include")
# The comparison as a job of Kubernetes.
JOB = next((place for place in (HERE / "job.yaml",) if place.is_file()), ROOT / "scripts/container/job.yaml")


def program(name: str) -> Path:
    """A program of bin/, which this machine can run; raises Invalid with what helps."""
    path = DIST / "bin" / name
    try:
        elf.check_machine(path)
    except FileNotFoundError as error:
        raise Invalid(f"{path} is missing: install the package again, or run scripts/build.sh in the repository") from error
    return path
