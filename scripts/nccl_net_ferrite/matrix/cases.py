"""What is tested: cases, and the environment of each."""

from dataclasses import dataclass

from ..errors import Invalid
from ..nccl.operations import OPERATIONS

# Ways in which GPU memory can be registered. The software device can be each kind of machine; elsewhere the machine decides.
SOFT_GDR = ["off", "dmabuf", "peermem", "both"]
REAL_GDR = ["off", "on"]
PROTOS, ALGOS = ["LL", "Simple"], ["Ring", "Tree"]
# Operations and sizes of a case for which a few are enough.
FEW_OPERATIONS, FEW_SIZES = ["all_reduce", "send_recv"], [8, 4096, 1 << 20, 32 << 20]
# For the case of a rank that dies: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT. Each try takes 4.096 us times 2 to the power of the timeout.
TIMEOUT, RETRIES = 15, 3
RETRIES_END_S = 4.096e-6 * 2**TIMEOUT * (RETRIES + 1)


@dataclass(frozen=True)
class Case:
    """One run."""

    part: str  # of PARTS
    ranks: int
    gdr: str
    scenario: str = "collectives"  # method of rank.Rank
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
        # NCCL refuses the other operations if NCCL_ALGO is Tree.
        return [name for name, (_, has_choice) in OPERATIONS.items() if has_choice or self.algo != "Tree"]

    def variables(self, on_softrnic: bool) -> dict[str, str]:
        chosen = {"NCCL_PROTO": self.proto, "NCCL_ALGO": self.algo, "NCCL_NET_FORCE_FLUSH": "1" if self.is_flushing else ""}
        is_wanted = self.gdr != "off" or self.part == "setups"
        chosen["NCCL_NET_GDR_LEVEL"] = "SYS" if is_wanted else "LOC"
        if on_softrnic:
            chosen["SOFTRNIC_GPU"] = "none" if self.gdr == "off" else self.gdr
            chosen["SOFTRNIC_STAT"] = "1"
        if self.part == "register":
            # Unless PXN is disabled, NCCL 2.24 and 2.25 register no buffer for sends and receives where NVLink joins all GPUs of a machine,
            # also if it has one GPU only (addP2pToPlan in enqueue.cc).
            chosen["NCCL_PXN_DISABLE"] = "1"
        if self.part == "abort":
            chosen |= {"NCCL_IB_TIMEOUT": str(TIMEOUT), "NCCL_IB_RETRY_CNT": str(RETRIES)}
        return {name: value for name, value in chosen.items() if value}


def collectives(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("collectives", count, way, proto=proto, algo=algo) for count in ranks for way in gdr for proto in PROTOS for algo in ALGOS]


def setups(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """All ways to register GPU memory, whatever `gdr` says. On a machine with NICs there is only its own."""
    return [Case("setups", ranks[0], way, proto="Simple", algo="Ring") for way in (SOFT_GDR if on_softrnic else REAL_GDR)]


def flush(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """With protocol Simple: NCCL does not flush what LL received."""
    return [
        Case("flush", ranks[0], way, proto="Simple", algo="Ring", is_flushing=is_flushing)
        for way in gdr
        if way != "off"
        for is_flushing in (False, True)
    ]


def register(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    """On a machine that registers GPU memory both ways: NCCL 2.21 registers the application's buffers by address, later ones by dma-buf."""
    return [Case("register", ranks[0], "both" if on_softrnic else "on", scenario="registered")]


def abort(ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    return [Case("abort", ranks[0], way, scenario="abort") for way in gdr]


PARTS = {"collectives": collectives, "setups": setups, "flush": flush, "register": register, "abort": abort}


def of_parts(parts: list[str], ranks: list[int], gdr: list[str], on_softrnic: bool) -> list[Case]:
    allowed = SOFT_GDR if on_softrnic else REAL_GDR
    for way in gdr:
        if way not in allowed:
            where = "on the software device" if on_softrnic else "without --softrnic"
            raise Invalid(f"--gdr {way}: {where} it is one of {', '.join(allowed)}")
    return [case for part in parts for case in PARTS[part](ranks, gdr, on_softrnic)]
