"""Whether several trainings are the same to the last bit, where they differ first, and what they leave behind."""

from .results import KINDS, Run, Verdict


def judge(runs: list[Run]) -> Verdict:
    """The first run and the last are of the same network, the second is Ferrite's."""
    first, ferrite, last = runs[0], runs[1], runs[-1]
    wrong = [what for run in runs for what in errors_within(run)]
    control = difference(first, last)
    if control:
        wrong.append(f"the training does not repeat itself over the same network: {first.name} and {last.name}: {control}")
    else:
        for run in runs[1:-1]:
            found = difference(first, run)
            if found:
                wrong.append(f"{run.name} differs from {first.name}: {found}")
    wrong += leaks(ferrite, first)
    if wrong:
        return Verdict(False, "; ".join(wrong))
    names = ", ".join(dict.fromkeys(run.name for run in runs[:-1]))
    return Verdict(
        True,
        f"the same to the last bit over {names}: {len(first.losses[0])} losses of each rank, and all parameters; "
        f"{ferrite.name} leaks nothing",
    )


def errors_within(run: Run) -> list[str]:
    """What has to hold within a run: it learns, and all ranks have the same parameters."""
    wrong = []
    # Written so that it also holds where the last loss is NaN.
    if not run.last_loss() < run.first_loss():
        wrong.append(f"{run.name} learns nothing: its loss goes from {run.first_loss():.4f} to {run.last_loss():.4f}")
    if len(set(run.digests)) != 1:
        wrong.append(f"{run.name}: the parameters of its ranks differ")
    return wrong


def difference(one: Run, other: Run) -> str:
    """The first place where two runs differ, or ""."""
    for rank, (left, right) in enumerate(zip(one.losses, other.losses)):
        for step, (a, b) in enumerate(zip(left, right)):
            if a != b:
                return f"the loss of rank {rank} at step {step}, {float.fromhex(a):.9g} and {float.fromhex(b):.9g}"
    if one.digests != other.digests:
        return "the parameters at the end"
    return ""


def leaks(run: Run, built_in: Run) -> list[str]:
    """What `run` leaves behind, as far as `built_in` leaves less of it."""
    found = []
    for kind, words in KINDS.items():
        if not run.counts(kind):
            continue
        mine, theirs = run.growth(kind), built_in.growth(kind)
        if mine > max(0, theirs):
            found.append(f"{run.name} leaks {mine} {words} over {len(run.held[0])} process groups, the built-in {theirs}")
    return found
