"""What the runs of a comparison measured, and the report that is made of it, with the form that both have as JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from ..evidence import Evidence, check
from ..files import Library
from .stats import Row


@dataclass(frozen=True)
class Key:
    """Which row of the report."""

    collective: str
    size: int  # that was asked for
    bytes: int  # that it really has


@dataclass(frozen=True)
class Measured:
    """One row in one run."""

    key: Key
    us: float
    wrong: int  # ranks that saw a wrong value


@dataclass(frozen=True)
class Run:
    """What rank 0 of one run wrote."""

    rows: list[Measured]
    evidence: list[Evidence]
    gpus: list[str]
    versions: dict[str, str]
    seconds: float
    gdr: str

    @classmethod
    def from_json(cls, raw: dict[str, Any], network: str, name: str) -> "Run":
        """Raises Invalid unless the logs prove that it ran on `network`."""
        evidence = [Evidence.from_json(one) for one in raw["evidence"]]
        rows = [Measured(Key(row["collective"], row["size"], row["bytes"]), row["us"], row["wrong"]) for row in raw["rows"]]
        return cls(rows, evidence, raw["gpus"], raw["versions"], raw["seconds"], check(evidence, network, f"run {name}"))


@dataclass(frozen=True)
class About:
    """How the comparison was made: raw.json has these names, in this order."""

    command: str
    order: str  # the side of each run, such as "ABBA"
    gdr: str
    versions: dict[str, str]
    gpus: list[str]
    plugin: Library
    baseline: Library | None  # side A; None: NCCL's built-in IB transport
    variables: dict[str, dict[str, str]]  # of "A", of "B", of "both"
    ranks: int
    dtype: str
    cut: str  # why there are fewer runs than were asked for; "" if there are all
    libnccl: Library | None  # None: PyTorch's own
    softrnic: str | None
    evidence: list[list[Evidence]]  # of each rank in each run
    seconds: list[float]  # of each run; empty in reports of earlier versions, which lack `cut` and `libnccl` too
    effect: float  # a ratio of 1 + `effect` matters; 0 where an earlier version did not say

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "About":
        libnccl, baseline = raw.get("libnccl"), raw.get("baseline")
        return cls(
            command=raw["command"],
            order=raw["order"],
            gdr=raw["gdr"],
            versions=raw["versions"],
            gpus=raw["gpus"],
            plugin=Library(**raw["plugin"]),
            baseline=Library(**baseline) if baseline else None,
            variables=raw["variables"],
            ranks=raw["ranks"],
            dtype=raw["dtype"],
            cut=raw.get("cut", ""),
            libnccl=Library(**libnccl) if libnccl else None,
            softrnic=raw["softrnic"],
            evidence=[[Evidence.from_json(one) for one in run] for run in raw["evidence"]],
            seconds=raw.get("seconds", []),
            effect=raw.get("effect", 0.0),
        )

    def side_a(self) -> str:
        """What side A is, in a title."""
        return "another Ferrite" if self.baseline else "NCCL's built-in IB transport"

    def to_json(self) -> dict[str, Any]:
        missing = () if self.seconds else ("cut", "libnccl", "seconds")
        found = {name: value for name, value in asdict(self).items() if name not in missing}
        if not self.baseline:
            del found["baseline"]
        for library in (found["plugin"], found.get("baseline"), found.get("libnccl")):
            if library and not library["version"]:
                del library["version"]
        return found


@dataclass(frozen=True)
class Judged:
    """A row of the report, and the times that it was judged by."""

    key: Key
    row: Row
    times: list[float]  # of each run, in microseconds


@dataclass(frozen=True)
class Together:
    """Rows that were judged together as well: of one collective, or "all"."""

    name: str
    row: Row


@dataclass(frozen=True)
class Report:
    about: About
    rows: list[Judged]
    together: list[Together]

    def to_json(self) -> dict[str, Any]:
        """raw.json."""
        order = self.about.order
        together = [{"rows": one.name, **asdict(one.row)} for one in self.together]
        rows = [
            {
                **asdict(one.key),
                **asdict(one.row),
                "a_us": [time for time, side in zip(one.times, order) if side == "A"],
                "b_us": [time for time, side in zip(one.times, order) if side == "B"],
            }
            for one in self.rows
        ]
        return {"about": self.about.to_json(), "together": together, "rows": rows}
