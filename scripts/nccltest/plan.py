"""What is tried: cases, and the environment of each."""

from dataclasses import dataclass

from abtest.plan import Invalid

from .collective import OPERATIONS

# Ways to GPU memory. On the software device each is a machine of its own kind; elsewhere the machine decides.
SOFT_GDR = ["off", "dmabuf", "peermem", "both"]
REAL_GDR = ["off", "on"]
PROTOS, ALGOS = ["LL", "Simple"], ["Ring", "Tree"]
# What a single case tries in which not every operation and size matters.
FEW_OPERATIONS, FEW_SIZES = ["all_reduce", "send_recv"], [8, 4096, 1 << 20, 32 << 20]
# For the case of a rank that dies: how long the device tries to reach it, 4.096 us · 2^timeout for each try.
TIMEOUT, RETRIES = 15, 3
GIVES_UP_S = 4.096e-6 * 2**TIMEOUT * (RETRIES + 1)


@dataclass(frozen=True)
class Case:
    """One run."""

    part: str  # of PARTS
    ranks: int
    gdr: str
    scenario: str = "collectives"  # what rank.py is to do
    proto: str = ""
    algo: str = ""
    is_flushing: bool = False

    def name(self) -> str:
        words = [self.part, str(self.ranks), self.gdr, self.proto, self.algo, "flush" if self.is_flushing else ""]
        return "-".join(filter(None, words)).lower()

    def title(self) -> str:
        choice = " ".join(filter(None, [self.proto, self.algo]))
        return {
            "collectives": choice,
            "setups": "capability and registration",
            "flush": f"NCCL_NET_FORCE_FLUSH={int(self.is_flushing)}",
            "register": "registered buffers (ncclCommRegister)",
            "abort": "a rank killed in the middle",
        }[self.part]

    def is_counted(self) -> bool:
        """Whether it is about which calls NCCL makes."""
        return self.part in ("setups", "flush", "register")

    def operations(self) -> list[str]:
        if self.part != "collectives":
            return FEW_OPERATIONS
        # Only with it NCCL has a choice: forced to a tree it refuses the others.
        return [name for name, (_, has_choice) in OPERATIONS.items() if has_choice or self.algo != "Tree"]

    def variables(self, on_softrnic: bool) -> dict[str, str]:
        chosen = {"NCCL_PROTO": self.proto, "NCCL_ALGO": self.algo, "NCCL_NET_FORCE_FLUSH": "1" if self.is_flushing else ""}
        is_wanted = self.gdr != "off" or self.part == "setups"
        chosen["NCCL_NET_GDR_LEVEL"] = "SYS" if is_wanted else "LOC"
        if on_softrnic:
            chosen["SOFTRNIC_GPU"] = "none" if self.gdr == "off" else self.gdr
            chosen["SOFTRNIC_STAT"] = "1"
        if self.part == "abort":
            chosen |= {"NCCL_IB_TIMEOUT": str(TIMEOUT), "NCCL_IB_RETRY_CNT": str(RETRIES)}
        return {name: value for name, value in chosen.items() if value}


def collectives(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("collectives", count, way, proto=proto, algo=algo)
            for count in ranks for way in gdr for proto in PROTOS for algo in ALGOS]


def setups(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """All ways to GPU memory, whatever `gdr` says: on a machine with NICs there is only its own."""
    return [Case("setups", ranks[0], way, proto="Simple", algo="Ring") for way in (SOFT_GDR if on_softrnic else REAL_GDR)]


def flush(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """Simple: NCCL flushes nothing else."""
    return [Case("flush", ranks[0], way, proto="Simple", algo="Ring", is_flushing=is_flushing)
            for way in gdr if way != "off" for is_flushing in (False, True)]


def register(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """On a machine that takes GPU memory both ways: NCCL 2.21 registers the application's by address, later ones by dma-buf."""
    return [Case("register", ranks[0], "both" if on_softrnic else "on", scenario="registered")]


def abort(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("abort", ranks[0], way, scenario="abort") for way in gdr]


PARTS = {"collectives": collectives, "setups": setups, "flush": flush, "register": register, "abort": abort}


def cases(parts: list[str], ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    allowed = SOFT_GDR if on_softrnic else REAL_GDR
    for way in gdr:
        if way not in allowed:
            where = "on the software device" if on_softrnic else "without --softrnic"
            raise Invalid(f"--gdr {way}: {where} it is one of {', '.join(allowed)}")
    return [case for part in parts for case in PARTS[part](ranks, gdr, on_softrnic)]
