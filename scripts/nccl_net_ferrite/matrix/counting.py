"""The layer that counts calls between NCCL and a plugin: counting.c, built where there is a C compiler, and the line that it writes."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..repository import INCLUDE

SOURCE = Path(__file__).resolve().parent / "counting.c"
LINE = re.compile(r"counted: (\d+) sends, (\d+) truncated, (\d+) flushes, GPU memory (\d+) by address, (\d+) by dma-buf")


@dataclass(frozen=True)
class Calls:
    """Of one rank."""

    sends: int
    truncated: int
    flushes: int
    by_address: int
    by_dmabuf: int


def build(folder: Path) -> Path | None:
    """The library; None where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = folder / "libnccl-net-counting.so"
    if not compiler:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        "-Wl,-z,nodelete",
        "-I",
        INCLUDE,
        "-o",
        library,
        SOURCE,
        "-ldl",
    ]
    return library if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None


def read(output: str) -> Calls | None:
    found = LINE.search(output)
    return Calls(*map(int, found.groups())) if found else None


def sum_of(calls: list[Calls]) -> Calls:
    columns = zip(*((one.sends, one.truncated, one.flushes, one.by_address, one.by_dmabuf) for one in calls))
    return Calls(*map(sum, columns))
