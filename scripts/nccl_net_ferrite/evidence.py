"""What NCCL's log proves: which network carried the data, and whether GPUDirect was used."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exit_codes import Invalid

NETWORK = re.compile(r"Using network (\S+)")
# The end of a line about a connection: NET/name/device, then its properties, such as /GDRDMA, /GDRDMA(PCI), /flush=None, /Shared.
VIA_NET = re.compile(r" via NET/([^/\s]+)/(\S+)")
VIA_OTHER = re.compile(r" via (P2P|SHM|COLLNET|NVLS|direct pointer)\b")
VERSION = re.compile(r"NCCL version (\S+)")


@dataclass(frozen=True)
class Evidence:
    """Of one rank's log."""

    version: str
    network: str  # "" if the log names none
    channels: tuple[str, ...]  # how connections go, such as "NET/IB" or "SHM", sorted
    gdr: str  # "on", "off", or "mixed"

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Evidence":
        return cls(raw["version"], raw["network"], tuple(raw["channels"]), raw["gdr"])


def read(log: str) -> Evidence:
    networks = set(NETWORK.findall(log))
    version = VERSION.search(log)
    over_net = VIA_NET.findall(log)
    with_gdr = {any(word.startswith("GDRDMA") for word in rest.split("/")) for _, rest in over_net}
    channels = {f"NET/{name}" for name, _ in over_net} | set(VIA_OTHER.findall(log))
    return Evidence(
        version=version.group(1) if version else "",
        network=networks.pop() if len(networks) == 1 else "",
        channels=tuple(sorted(channels)),
        gdr="mixed" if len(with_gdr) > 1 else "on" if True in with_gdr else "off",
    )


def of_file(path: Path) -> Evidence:
    return read(path.read_text(errors="replace"))


def check(found: list[Evidence], network: str, where: str) -> str:
    """All ranks used `network` for what goes between machines; returns their GPUDirect state."""
    for rank, one in enumerate(found):
        if one.network != network:
            raise Invalid(f"{where}, rank {rank}: NCCL used network {one.network or 'unknown'}, not {network}")
        if f"NET/{network}" not in one.channels:
            channels = ", ".join(one.channels) or "nothing"
            raise Invalid(
                f"{where}, rank {rank}: no connection went via NET/{network}, only via {channels}; ranks on one machine "
                "need NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1, or --softrnic"
            )
    states = {one.gdr for one in found}
    return states.pop() if len(states) == 1 else "mixed"
