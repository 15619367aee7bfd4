"""What the ranks of a case write, and the report that is made of all cases, with the form that both have as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..files import Library
from .cases import Case


@dataclass(frozen=True)
class OperationResult:
    """One operation at one size on one rank."""

    operation: str
    size: int
    in_place: bool
    wrong: str  # "" if every element is right
    s: float | None = None  # that it took; None if it was not timed


@dataclass(frozen=True)
class AbortResult:
    """What a rank saw of the death of another."""

    code: int  # NCCL's error; 0 if there was none
    error: str
    error_s: float  # from the first operation to the error
    abort_s: float | None  # that ncclCommAbort took; None if it was not called, because in this NCCL it never returns


@dataclass(frozen=True)
class RankResult:
    """What one rank writes at its end."""

    gpu: str
    version: str  # of NCCL
    rows: list[OperationResult]
    registered_bytes: int = 0  # by the application
    abort: AbortResult | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "RankResult":
        abort = AbortResult(**raw["abort"]) if raw["abort"] else None
        return cls(raw["gpu"], raw["version"], [OperationResult(**row) for row in raw["rows"]], raw["registered_bytes"], abort)


@dataclass
class Findings:
    """Of a check: what is wrong, and what else was seen."""

    wrong: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def add(self, more: "Findings") -> None:
        self.wrong += more.wrong
        self.seen += more.seen


@dataclass(frozen=True)
class CaseResult:
    """A line of the report."""

    nccl: str
    case: Case
    findings: Findings
    results: int  # that were compared, on all ranks
    operations: list[OperationResult]  # of the first rank, with the time of the slowest, as far as they were timed

    @classmethod
    def of_ranks(cls, nccl: str, case: Case, findings: Findings, ranks: list[RankResult]) -> "CaseResult":
        operations = []
        for rows in zip(*(rank.rows for rank in ranks)):
            times = [row.s for row in rows if row.s is not None]
            if times:
                first = rows[0]
                operations.append(OperationResult(first.operation, first.size, first.in_place, first.wrong, max(times)))
        return cls(nccl, case, findings, sum(len(rank.rows) for rank in ranks), operations)

    def line(self) -> str:
        wrong = "wrong: " + "; ".join(self.findings.wrong) if self.findings.wrong else "right"
        seen = "; ".join(self.findings.seen).replace("|", "/")
        return f"| {self.nccl} | {self.case.ranks} | {self.case.gdr} | {self.case.title()} | {wrong} | {seen} |"

    def to_json(self) -> dict[str, Any]:
        return {
            "nccl": self.nccl,
            "case": asdict(self.case),
            "wrong": self.findings.wrong,
            "told": self.findings.seen,
            "line": self.line(),
            "results": self.results,
            "operations": [asdict(one) for one in self.operations],
        }


@dataclass(frozen=True)
class Nccl:
    """A library that was tested."""

    version: str
    sha256: str


@dataclass(frozen=True)
class About:
    """How the cases were run: raw.json has these names, in this order."""

    command: str
    network: str
    sizes: list[int]
    gpus: list[str]
    nccl: list[Nccl]
    plugin: Library | None  # None if it is not Ferrite that was tested
    softrnic: bool


@dataclass(frozen=True)
class Report:
    about: About
    wrong: list[str]  # what no single case shows
    rows: list[CaseResult]

    def is_good(self) -> bool:
        return not self.wrong and not any(row.findings.wrong for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """raw.json."""
        return {"about": asdict(self.about), "wrong": self.wrong, "rows": [row.to_json() for row in self.rows]}
