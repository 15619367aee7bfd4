"""How a Python process of this package is started. It works from the repository, and where the package is installed."""

import sys
from pathlib import Path

# The folder that has the package. It takes the place of the current folder, which -c puts first in the path of modules: a folder
# `torch` in the current folder must not be taken for PyTorch.
PARENT = Path(__file__).resolve().parents[2]
RUN_MODULE = "import runpy, sys; sys.path[0] = sys.argv.pop(1); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def command(module: str, *arguments: str) -> list[str]:
    """Runs `module`, such as "nccl_net_ferrite.matrix.rank", as a program."""
    return [sys.executable, "-c", RUN_MODULE, str(PARENT), module, *arguments]
