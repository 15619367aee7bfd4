"""From the times of all runs to the report and the exit code: of runs just made, or of a raw.json made earlier."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import exit_codes
from ..errors import Invalid
from ..files import read_json
from . import report, stats
from .results import About, Judged, Key, Report, Run, Together


def judge_and_report(folder: Path, about: About, keys: list[Key], times: list[list[float]]) -> int:
    """Statistics, report, exit code. `times`: for each key the time of each run, in the order of `about.order`."""
    judged = judge(about, keys, times)
    exit_codes.write_and_print(lambda: report.write(folder, judged), report.summary(judged), folder)
    return code_of(judged)


def judge(about: About, keys: list[Key], times: list[list[float]]) -> Report:
    groups = groups_of(keys)
    together = [stats.geometric_mean([times[index] for index in members]) for _, members in groups]
    rows = stats.judge(times + together, about.order, about.effect)
    return Report(
        about,
        [Judged(key, row, runs) for key, row, runs in zip(keys, rows, times)],
        [Together(name, row) for (name, _), row in zip(groups, rows[len(keys) :])],
    )


def code_of(judged: Report) -> int:
    rows = [one.row.verdict for one in judged.rows]
    if stats.WORSE in rows + [one.row.verdict for one in judged.together]:
        return exit_codes.WRONG
    return exit_codes.TOO_FEW_RUNS if stats.TOO_FEW_RUNS in rows else exit_codes.GOOD


def groups_of(keys: list[Key]) -> list[tuple[str, list[int]]]:
    """Rows that are judged together as well: those of each collective, and all. Each with its name and the places of its rows."""
    names = list(dict.fromkeys(key.collective for key in keys))
    groups = [(name, [index for index, key in enumerate(keys) if key.collective == name]) for name in names]
    if len(names) > 1:
        groups.append(("all", list(range(len(keys)))))
    return [(name, members) for name, members in groups if len(members) > 1]


def judge_again(source: Path, folder: Path, effect: float) -> int:
    """Judges the times of `source`, a raw.json, once more."""
    try:
        about, keys, times = of_raw(read_json(source))
    except OSError as error:
        raise Invalid(f"--again {source}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Invalid(f"--again {source}: no raw.json of ab.py: {error!r}") from error
    return judge_and_report(folder, replace(about, effect=effect), keys, times)


def of_raw(raw: dict[str, Any]) -> tuple[About, list[Key], list[list[float]]]:
    """Of a raw.json: how the runs were made, keys and times."""
    about = About.from_json(raw["about"])
    keys = [Key(row["collective"], row["size"], row["bytes"]) for row in raw["rows"]]
    check_order(about.order)
    times = [in_order(about.order, row["a_us"], row["b_us"]) for row in raw["rows"]]
    check_times(times)
    return about, keys, times


def in_order(order: str, a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Times of all runs in the order in which they were made, from those of each side."""
    left = {"A": iter(a), "B": iter(b)}
    return [float(next(left[side])) for side in order]


def check_order(order: str) -> None:
    blocks = [order[begin : begin + stats.BLOCK] for begin in range(0, len(order), stats.BLOCK)]
    if not blocks or any(sorted(block) != ["A", "A", "B", "B"] for block in blocks):
        raise ValueError(f"order {order!r} is not made of blocks of two runs of each side")


def check_times(times: list[list[float]]) -> None:
    if not times:
        raise ValueError("no rows")
    for time in (time for row in times for time in row):
        if not 0 < time < math.inf:
            raise ValueError(f"a time of {time} us")


def gdr_of(runs: list[Run], order: str) -> str:
    """The one GPUDirect state of all runs."""
    states = {letter: {run.gdr for run, side in zip(runs, order) if side == letter} for letter in "AB"}
    if states["A"] != states["B"] or len(states["A"]) != 1:
        raise Invalid(f"GPUDirect differs: A {sorted(states['A'])}, B {sorted(states['B'])}; --gdr on or off makes it the same")
    return states["A"].pop()


def times_of(runs: list[Run]) -> tuple[list[Key], list[list[float]]]:
    """Keys, and for each the time of every run."""
    keys = [row.key for row in runs[0].rows]
    return keys, [[run.rows[index].us for run in runs] for index in range(len(keys))]
