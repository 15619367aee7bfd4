"""Whether the reports of a run name the rank that was held up."""

from dataclasses import dataclass
from typing import Any

from .cases import BEFORE, NAMES_FROM, Case


@dataclass(frozen=True)
class Found:
    """Of one case."""

    case: str
    claim: str
    culprit: int
    texts: dict[int, str]  # of each rank that wrote a report: the text of its first one
    named: dict[int, int | None]  # the rank that it names as the cause, or as the most likely one
    wrong: list[str]  # what is not as it has to be

    def is_good(self) -> bool:
        return not self.wrong


def judge(case: Case, culprit: int, ranks: list[dict[str, Any]], reports: list[dict[str, Any]], nccl: str) -> Found:
    """`ranks`: what each rank left, in order, with its "pid" and whether its sums were "right". `reports`: the JSON files of all.
    `nccl`: the version of NCCL."""
    by_pid = {one["pid"]: rank for rank, one in enumerate(ranks)}
    firsts: dict[int, dict[str, Any]] = {}
    for report in sorted(reports, key=lambda report: int(report["number"])):
        if report["pid"] in by_pid:
            firsts.setdefault(by_pid[report["pid"]], report)
    wrong = [f"rank {rank} has wrong sums" for rank, one in enumerate(ranks) if not one["right"]]
    named = {}
    for rank, report in sorted(firsts.items()):
        verdict, named[rank] = cause_of(report)
        if rank == culprit:
            wrong.append(f"rank {rank} was held up and has reported a wait")
        elif named[rank] != culprit:
            wrong.append(f"rank {rank} names rank {named[rank]}, and rank {culprit} was held up")
        elif case.verdicts and verdict not in case.verdicts:
            wrong.append(f"rank {rank} has the verdict {verdict}, and not {' or '.join(case.verdicts)}")
        if rank != culprit and names_operations(nccl):
            wrong += [f"rank {rank} {what}" for what in wrong_operation(case, report)]
    if case.is_reported and not firsts:
        wrong.append("nobody has reported a wait")
    if not case.is_reported:
        wrong += [f"rank {rank} has reported a wait that was below the threshold" for rank in firsts]
    return Found(case.name, case.claim, culprit, {rank: report["text"] for rank, report in firsts.items()}, named, wrong)


def cause_of(report: dict[str, Any]) -> tuple[str | None, int | None]:
    """The verdict and the rank that a report names: the nearest cause's, or that of the process that is most likely the cause."""
    waits = report["waits"]
    if waits and waits[0]["cause"]:
        return waits[0]["cause"]["verdict"], rank_of(waits[0]["cause"]["far"])
    likely = report["least_lead"]
    return None, rank_of(likely["who"]) if likely else None


def names_operations(nccl: str) -> bool:
    return tuple(int(number) for number in nccl.split(".")[:3]) >= NAMES_FROM


def wrong_operation(case: Case, report: dict[str, Any]) -> list[str]:
    """What a report says wrongly, or does not say, of the operation that was held up."""
    wait = report["waits"][0] if report["waits"] else {}
    operation = wait.get("operation") or {}
    named = (operation.get("function"), operation.get("number"))
    wrong = [] if named == ("AllReduce", BEFORE) else [f"waits in {named[0]} number {named[1]}, and it was AllReduce number {BEFORE}"]
    has_begun = (wait.get("cause") or {}).get("far_has_begun")
    if None not in (case.has_begun, has_begun) and has_begun != case.has_begun:
        wrong.append(f"says that NCCL there has {'' if has_begun else 'not '}launched the operation")
    if case.has_begun is False and has_begun is None:
        wrong.append("does not say whether NCCL there has launched the operation")
    return wrong


def rank_of(process: dict[str, Any]) -> int | None:
    """As NCCL's tags tell it, or else the launcher."""
    found: int | None = process["rank"] if process["rank"] is not None else process["rank_in_job"]
    return found
