"""Files of the repository that this package lies in."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "dist/lib/libnccl-net.so"
SOFTRNIC = ROOT / "dist/softrnic"
# NCCL's plugin headers.
INCLUDE = ROOT / "include"
