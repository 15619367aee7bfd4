"""Files beside this package: those that were installed with it, or those of the repository that it lies in."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Folders with lib/, bin/ and softrnic/: of a wheel, of the repository, of the tarball and the system's packages.
PLACES = (HERE / "dist", ROOT / "dist", ROOT)
DIST = next((place for place in PLACES if (place / "lib/libnccl-net.so").is_file()), ROOT / "dist")
PLUGIN = DIST / "lib/libnccl-net.so"
SOFTRNIC = DIST / "softrnic"
# NCCL's plugin headers.
INCLUDE = next((place for place in (HERE / "include", ROOT / "include") if place.is_dir()), ROOT / "include")
# The comparison as a job of Kubernetes.
JOB = next((place for place in (HERE / "job.yaml",) if place.is_file()), ROOT / "scripts/container/job.yaml")
