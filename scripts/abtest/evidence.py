"""What NCCL's log proves: which network carried the data, and whether GPUDirect did."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .plan import Invalid

NETWORK = re.compile(r"Using network (\S+)")
VIA = re.compile(r"via (NET/[A-Za-z]+|P2P|SHM|direct pointer)[^\s]*?(/GDRDMA)?(?:/Shared)?(?:\s|$)")
VERSION = re.compile(r"NCCL version (\S+)")


@dataclass(frozen=True)
class Evidence:
    version: str
    network: str  # "" if the log names none
    channels: tuple[str, ...]  # how connections go, such as "NET/IB" or "SHM", sorted
    gdr: str  # "on", "off", or "mixed"


def read(log: str) -> Evidence:
    networks = set(NETWORK.findall(log))
    version = VERSION.search(log)
    ways = VIA.findall(log)
    over_net = [bool(gdr) for way, gdr in ways if way.startswith("NET/")]
    gdr = "mixed" if len(set(over_net)) > 1 else "on" if any(over_net) else "off"
    return Evidence(
        version=version.group(1) if version else "",
        network=networks.pop() if len(networks) == 1 else "",
        channels=tuple(sorted({way for way, _ in ways})),
        gdr=gdr,
    )


def of_file(path: Path) -> dict:
    return asdict(read(path.read_text(errors="replace")))


def check(found: list[dict], network: str, where: str) -> str:
    """All ranks used `network` for what goes between machines; returns their GPUDirect state."""
    for rank, one in enumerate(found):
        if one["network"] != network:
            raise Invalid(f"{where}, rank {rank}: NCCL used network {one['network'] or 'unknown'}, not {network}")
        if f"NET/{network}" not in one["channels"]:
            ways = ", ".join(one["channels"]) or "nothing"
            raise Invalid(f"{where}, rank {rank}: no connection went via NET/{network}, only via {ways}; ranks on one machine "
                          "need NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1, or --softrnic")
    states = {one["gdr"] for one in found}
    return states.pop() if len(states) == 1 else "mixed"
