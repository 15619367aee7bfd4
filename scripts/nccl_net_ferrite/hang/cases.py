"""What is done to which rank, and what the reports have to say."""

from dataclasses import dataclass

# When a wait is reported: FERRITE_HANG_SECONDS of all runs.
THRESHOLD_S = 3
# How long the rank holds up the others, where a report is due.
HOLD_S = 10
# all_reduce operations before the one that is held up: its number, as NCCL counts them, and after it.
BEFORE, AFTER = 5, 5
# The first NCCL that tells a profiler in Ferrite's library of its operations.
NAMES_FROM = (2, 28, 3)


@dataclass(frozen=True)
class Case:
    name: str
    claim: str
    hold_s: float  # how long the culprit holds up the others
    is_reported: bool
    # Verdicts of the cause, of which a report has to have one; none: a report may also name the culprit as the most likely one.
    verdicts: tuple[str, ...] = ()
    # Where operations have names: whether the culprit has begun the operation; None: nobody can know.
    has_begun: bool | None = None


CASES = [
    Case("absent", "one rank has not begun the all_reduce", HOLD_S, True, ("PeerHasNotSent", "PeerHasNotAsked"), False),
    Case("gpu", "one rank has begun the all_reduce behind a kernel that runs for long", HOLD_S, True, has_begun=True),
    Case("stopped", "one rank's process is stopped by SIGSTOP", HOLD_S, True, ("PeerSilent",)),
    Case("late", "one rank begins the all_reduce late, before the threshold", THRESHOLD_S / 3, False),
]


def named(names: str) -> list[Case]:
    """Of a list with commas. Raises ValueError with what is allowed."""
    known = {case.name: case for case in CASES}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} must be one of {', '.join(known)}")
    return [known[name] for name in names.split(",")]
