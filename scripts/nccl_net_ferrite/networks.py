"""The networks that NCCL can be given. NCCL_NET forces each: NCCL fails rather than take another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import elf
from .exit_codes import Invalid

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Side:
    """One of those that are compared."""

    name: str  # in the report, such as "A" or "sockets"
    network: str  # as NCCL's log names it
    variables: Variables


def built_in(name: str, more: Sequence[tuple[str, str]] = ()) -> Side:
    """NCCL's own IB transport; `more`: variables that only this side has."""
    return Side(name, "IB", (("NCCL_NET", "IB"), ("NCCL_NET_PLUGIN", "none"), *more))


def sockets(name: str) -> Side:
    """NCCL's own transport over TCP."""
    return Side(name, "Socket", (("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "none")))


def ferrite(name: str, plugin: Path, more: Sequence[tuple[str, str]]) -> Side:
    """The plugin in that file; `more`: variables that only this side has."""
    check_plugin(plugin)
    return Side(name, "Ferrite", (("NCCL_NET", "Ferrite"), ("NCCL_NET_PLUGIN", str(plugin.resolve())), *more))


def check_plugin(plugin: Path, option: str = "--plugin") -> None:
    if not plugin.is_file():
        raise Invalid(f"{option} {plugin}: no such file; scripts/build.sh makes it")
    elf.check_machine(plugin)


def gpudirect(choice: str, on_softrnic: bool) -> Variables:
    """Variables that turn GPUDirect "on" or "off", the same for all sides; none for "as-is"."""
    if choice == "as-is":
        return ()
    level = ("NCCL_NET_GDR_LEVEL", "SYS" if choice == "on" else "LOC")
    return (level, ("SOFTRNIC_GPU", "dmabuf" if choice == "on" else "none")) if on_softrnic else (level,)
