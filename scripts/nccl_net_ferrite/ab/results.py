"""What the runs of a comparison measured, with the form that it has as JSON."""

from dataclasses import dataclass
from typing import Any

from ..evidence import Evidence, check


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
