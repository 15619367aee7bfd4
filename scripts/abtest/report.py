"""What was found: a table, a picture, and all numbers."""

import json
from pathlib import Path
from statistics import median

from . import plan, plot, stats
from .stats import Row

# Collective, size that was asked for, bytes that it really has.
Key = tuple[str, int, int]
# Rows judged together: of which, and how.
Mean = tuple[str, Row]


def table(about: dict, keys: list[Key], rows: list[Row], means: list[Mean]) -> str:
    lines = [
        "| collective | bytes | A us | B us | A GB/s | B GB/s | time B/A | interval of B/A | would find | noise of a run | A/A | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for key, row in zip(keys, rows):
        speeds = [plan.bus_bandwidth(key, time, about["ranks"]) for time in (row.a, row.b)]
        lines.append(f"| {key[0]} | {plan.text_of(key[1])} | {row.a:.1f} | {row.b:.1f} | {speeds[0]:.3f} | {speeds[1]:.3f} | {judged(row)} |")
    lines += [f"| {name} | together | | | | | {judged(row)} |" for name, row in means]
    return "\n".join(lines)


def judged(row: Row) -> str:
    interval = "unknown" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
    return f"{row.ratio:.3f} | {interval} | {found_from(row)} | {row.noise * 100:.1f} % | {row.a_to_a:.3f} | {row.verdict}"


def found_from(row: Row) -> str:
    return "nothing" if row.finds is None else f"{percent(row.finds)} or more"


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:.1f} %"


def summary(about: dict, keys: list[Key], rows: list[Row], means: list[Mean]) -> str:
    words = [row.verdict for row in rows]
    ratios = ", ".join(f"{name} {row.ratio:.3f}" for name, row in means)
    return " ".join([
        f"Ferrite against NCCL {about['versions']['nccl']}'s IB transport, {about['ranks']} ranks, GPUDirect {about['gdr']}, "
        f"{len(rows)} rows:",
        f"better in {words.count(stats.BETTER)}, worse in {words.count(stats.WORSE)}, "
        f"alike within {about['effect'] * 100:g} % in {words.count(stats.ALIKE)}, "
        f"too few runs to tell in {words.count(stats.UNTOLD)}.",
        sharpness(about, keys, rows, means),
        *([f"Time B/A, geometric mean: {ratios}."] if ratios else []),
        *([f"The run was {about['cut']}."] if about.get("cut") else []),
    ])


def sharpness(about: dict, keys: list[Key], rows: list[Row], means: list[Mean]) -> str:
    """The smallest effect that this run could have found."""
    if any(row.finds is None for row in rows):
        blocks = len(about["order"]) // stats.BLOCK
        return (f"With {blocks} block{'s' * (blocks != 1)} of four runs no difference could have been shown, however large: "
                "three are the least.")
    worst = max(range(len(rows)), key=lambda index: rows[index].finds)
    overall = [row for name, row in means if name == "all"]
    return (f"This run would have found (in four of five cases) a row that differs by {percent(median(row.finds for row in rows))} in "
            f"the median row, by {percent(rows[worst].finds)} in the noisiest ({keys[worst][0]} of {plan.text_of(keys[worst][1])})"
            + (f", and a difference of {percent(overall[0].finds)} that all rows share." if overall else "."))


def write(folder: Path, about: dict, keys: list[Key], rows: list[Row], means: list[Mean], times: list[list[float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.svg").write_text(plot.draw(about, keys, rows))
    raw = {"about": about, "together": [{"rows": name, **vars(row)} for name, row in means], "rows": [
        {"collective": key[0], "size": key[1], "bytes": key[2], **vars(row),
         **{f"{side.lower()}_us": [time for time, ran in zip(runs, about["order"]) if ran == side] for side in "AB"}}
        for key, row, runs in zip(keys, rows, times)]}
    (folder / "raw.json").write_text(json.dumps(raw, indent=1))
    (folder / "report.md").write_text("\n\n".join([
        "# Ferrite against NCCL's built-in IB transport",
        summary(about, keys, rows, means),
        "![bus bandwidth over size, and the ratio](report.svg)",
        table(about, keys, rows, means),
        HOW,
        facts(about),
    ]) + "\n")


HOW = (
    "A is NCCL's built-in IB transport, B is Ferrite. Times are medians over fresh processes; GB/s is bus bandwidth. \"time B/A\" is "
    "the mean ratio of a block of four runs, two of each side; \"together\" is the geometric mean of rows. The intervals hold all at "
    f"once: in {100 - stats.SIGNIFICANCE * 100:g} % of reports each of them holds its true ratio, by a permutation test within blocks over the "
    "largest statistic of all rows. A row is called better or worse if its interval leaves out 1 and the ratio is "
    f"{stats.LEAST_EFFECT * 100:g} % or more; alike if its interval lies within what matters; otherwise the runs were too few to tell. "
    "\"would find\" is the smallest difference that four of five comparisons with as much noise would call one. \"A/A\" is A's later "
    "run of a block over its earlier one: how far time alone moves it."
)


def facts(about: dict) -> str:
    variables = about["variables"]
    listed = {name: " ".join(f"`{k}={v}`" for k, v in sorted(variables[name].items())) or "none" for name in variables}
    return "\n".join([
        f"- command: `{about['command']}`; order of runs: {about['order']}; type: {about['dtype']}; a difference of "
        f"{about['effect'] * 100:g} % matters",
        f"- versions: {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        f"- ranks: {'; '.join(about['gpus'])}",
        *([f"- libnccl.so.2: sha256 `{about['libnccl']['sha256']}`, without PyTorch"] if about.get("libnccl") else []),
        f"- plugin: sha256 `{about['plugin']['sha256']}`",
        f"- variables of A: {listed['A']}",
        f"- variables of B: {listed['B']}",
        f"- variables of both: {listed['both']}",
        *([f"- seconds of each run: {' '.join(map(str, about['seconds']))}"] if about.get("seconds") else []),
        *(["- on the software device, both ends on one machine: no statement about a network card"] if about["softrnic"] else []),
    ])
