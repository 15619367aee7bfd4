"""What the runs of a training left, with the form that it has as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from ..evidence import Evidence, check
from ..files import Library
from ..networks import Side

# What a process holds, by its name in raw.json. Queue pairs are counted on the software device only.
KINDS = {"fds": "file descriptors", "threads": "threads", "qps": "queue pairs"}


@dataclass(frozen=True)
class Run:
    """One training over one network."""

    name: str
    network: str
    losses: list[list[str]]  # of each rank at each step, as hexadecimal floating point numbers
    digests: list[str]  # SHA-256 of each rank's parameters at the end
    evidence: list[Evidence]  # of each rank
    gpus: list[str]
    held: list[list[dict[str, int]]]  # of each rank after each process group: how many of each of KINDS
    versions: dict[str, str]
    seconds: float
    gdr: str

    @classmethod
    def from_json(cls, raw: dict[str, Any], side: Side) -> "Run":
        """Of what rank 0 wrote. Raises Invalid unless the logs prove that it ran on `side`."""
        evidence = [Evidence.from_json(one) for one in raw["evidence"]]
        gdr = check(evidence, side.network, f"run {side.name}")
        return cls(
            side.name,
            side.network,
            raw["losses"],
            raw["digests"],
            evidence,
            raw["gpus"],
            raw["held"],
            raw["versions"],
            raw["seconds"],
            gdr,
        )

    def first_loss(self) -> float:
        """Of rank 0."""
        return float.fromhex(self.losses[0][0])

    def last_loss(self) -> float:
        """Of rank 0."""
        return float.fromhex(self.losses[0][-1])

    def counts(self, kind: str) -> list[int]:
        """What rank 0 held after each process group; empty if it was not counted."""
        return [held[kind] for held in self.held[0] if kind in held]

    def growth(self, kind: str) -> int:
        """How much more of it the worst rank holds after its last process group than after its first; of queue pairs, which all have to
        be destroyed, how many it holds after its last."""
        if kind == "qps":
            return max(held[-1][kind] for held in self.held)
        return max(held[-1][kind] - held[0][kind] for held in self.held)


@dataclass(frozen=True)
class About:
    """How the trainings were made: raw.json has these names, in this order."""

    command: str
    plugin: Library
    versions: dict[str, str]
    gpus: list[str]
    variables: dict[str, str]
    cycles: int  # process groups, one after the other
    softrnic: bool
    sharded: bool = False  # parameters shared out among the ranks


@dataclass(frozen=True)
class Verdict:
    is_good: bool
    text: str


@dataclass(frozen=True)
class Report:
    about: About
    verdict: Verdict
    runs: list[Run]

    def to_json(self) -> dict[str, Any]:
        """raw.json."""
        return asdict(self)
