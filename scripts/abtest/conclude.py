"""From the times of all runs to the verdict: of a comparison just made, or of a raw.json made earlier."""

import json
import math
from pathlib import Path

from . import ending, report, stats
from .plan import Invalid


def conclude(folder: Path, about: dict, keys: list[report.Key], times: list[list[float]], effect: float) -> int:
    """Statistics, report, exit code. `times`: for each key that of each run, in the order of about["order"]."""
    groups = groups_of(keys)
    together = [stats.geometric([times[index] for index in members]) for _, members in groups]
    judged = stats.judge(times + together, about["order"], effect)
    rows, means = judged[:len(keys)], list(zip([name for name, _ in groups], judged[len(keys):]))
    about = {**about, "effect": effect}
    with ending.telling(report.summary(about, keys, rows, means), folder):
        report.write(folder, about, keys, rows, means, times)
    return code_of([row.verdict for row in rows], [row.verdict for _, row in means])


def code_of(rows: list[str], means: list[str]) -> int:
    if stats.WORSE in rows + means:
        return ending.WRONG
    return ending.UNTOLD if stats.UNTOLD in rows else ending.GOOD


def groups_of(keys: list[report.Key]) -> list[tuple[str, list[int]]]:
    """Rows that are judged together as well, by what all of them have in common: each collective, and all."""
    names = list(dict.fromkeys(key[0] for key in keys))
    groups = [(name, [index for index, key in enumerate(keys) if key[0] == name]) for name in names]
    if len(names) > 1:
        groups.append(("all", list(range(len(keys)))))
    return [(name, members) for name, members in groups if len(members) > 1]


def again(source: Path, folder: Path, effect: float) -> int:
    """Judges the times of `source`, a raw.json, once more."""
    try:
        raw = json.loads(source.read_text())
        about, order = raw["about"], raw["about"]["order"]
        keys = [(row["collective"], row["size"], row["bytes"]) for row in raw["rows"]]
        check_order(order)
        times = [in_order(order, row["a_us"], row["b_us"]) for row in raw["rows"]]
        check_times(times)
    except OSError as error:
        raise Invalid(f"--again {source}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Invalid(f"--again {source}: no raw.json of ab.py: {error!r}") from error
    return conclude(folder, about, keys, times, effect)


def in_order(order: str, a: list[float], b: list[float]) -> list[float]:
    left = {"A": iter(a), "B": iter(b)}
    return [float(next(left[side])) for side in order]


def check_order(order: str) -> None:
    blocks = [order[begin:begin + stats.BLOCK] for begin in range(0, len(order), stats.BLOCK)]
    if not blocks or any(sorted(block) != ["A", "A", "B", "B"] for block in blocks):
        raise ValueError(f"order {order!r} is not made of blocks of two runs of each side")


def check_times(times: list[list[float]]) -> None:
    if not times:
        raise ValueError("no rows")
    for time in (time for row in times for time in row):
        if not 0 < time < math.inf:
            raise ValueError(f"a time of {time} us")


def about_times(results: list[dict], order: str) -> tuple[list[report.Key], list[list[float]], str]:
    """Keys, times, and the one GPUDirect state of all `results`."""
    gdr = {letter: {result["gdr"] for result, side in zip(results, order) if side == letter} for letter in "AB"}
    if gdr["A"] != gdr["B"] or len(gdr["A"]) != 1:
        raise Invalid(f"GPUDirect differs: A {sorted(gdr['A'])}, B {sorted(gdr['B'])}; --gdr on or off makes it the same")
    keys = [(row["collective"], row["size"], row["bytes"]) for row in results[0]["rows"]]
    times = [[result["rows"][index]["us"] for result in results] for index in range(len(keys))]
    return keys, times, gdr["A"].pop()
