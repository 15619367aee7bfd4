"""What the tests of this folder share: where the scripts are, environments without anything of the caller's, a play of NCCL and CUDA."""

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

# Of launchers, of NCCL, of the software device, and of these tests themselves.
OF_THE_CALLER = ("FAKE", "NCCL", "SOFTRNIC", "OMPI_", "PMI_", "SLURM_", "MPI_", "MASTER_", "TORCHELASTIC_")
EXACT = ("PYTHONUNBUFFERED", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(OF_THE_CALLER) and key not in EXACT}
    return {**clean, "FAKE_SCRIPTS": str(SCRIPTS), **more}


def build_nccl(folder: Path) -> Path:
    """A library that plays NCCL and the CUDA driver; needs a C compiler."""
    library = folder / "libnccl.so.2"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, HERE / "fake_nccl.c"], check=True)
    return library


def run(program: str, *arguments, timeout: float | None = None, **more: str) -> subprocess.CompletedProcess:
    """One of the scripts, as a user starts it."""
    return subprocess.run([sys.executable, SCRIPTS / program, *arguments], env=environment(**more), capture_output=True, text=True,
                          check=False, timeout=timeout)


def obey_signals() -> None:
    """For a process that is to be interrupted: who runs the tests in the background may have SIGINT ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_gone(pid: str) -> bool:
    """Whether the process has ended. One that nobody has waited for yet is a zombie: it has an entry still, but has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # The name before it is in parentheses, and may have any character.
    return status.rpartition(")")[2].split()[0] in ("Z", "X")

