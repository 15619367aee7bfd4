"""What has to be there before anything that takes long begins."""

import subprocess
import sys
import tempfile
from pathlib import Path

from .plan import Invalid

TORCH = "import torch; print(torch.cuda.device_count())"
# Of NCCL's library and the CUDA driver.
LIBRARIES = """
import sys
sys.path.insert(0, sys.argv[1])
from nccltest.cuda import Driver
from nccltest.nccl import Library
Library(sys.argv[3]).version()
print(Driver(sys.argv[2]).count())
"""


def writable(folder: Path, option: str = "--out") -> None:
    """Makes `folder`, and writes something in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Invalid(f"{option} {folder}: {error.strerror}; name a folder that can be written to") from error


def gpus_of_torch(otherwise: str = "") -> int:
    """GPUs that PyTorch sees, in a process of its own: this one stays without."""
    done = run([TORCH])
    if done.returncode:
        raise Invalid(f"PyTorch cannot be used in {sys.executable}: {last_line(done.stderr)}; install it"
                      + (f", {otherwise}" if otherwise else ""))
    return some(int(done.stdout), "PyTorch")


def gpus_of_driver(libcuda: str, libnccl: Path | str) -> int:
    """GPUs that the CUDA driver sees, where NCCL's library is one."""
    done = run([LIBRARIES, str(Path(__file__).resolve().parent.parent), libcuda, str(libnccl)])
    if done.returncode:
        raise Invalid(f"--libnccl {libnccl} with --libcuda {libcuda}: {last_line(done.stderr)}")
    return some(int(done.stdout), libcuda)


def run(arguments: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, check=False)


def some(count: int, who: str) -> int:
    if count == 0:
        raise Invalid(f"{who} sees no GPU on this machine")
    return count


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]


def softrnic(library: Path | None) -> None:
    if library and not (library / "libibverbs.so.1").is_file():
        raise Invalid(f"--softrnic {library}: no libibverbs.so.1 there; scripts/build.sh makes it")
