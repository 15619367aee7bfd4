"""What was found: a table, a picture, and all numbers."""

import json
from pathlib import Path

from . import plan, plot
from .stats import Row

Key = tuple[str, int, int]


def bus_bandwidth(key: Key, microseconds: float, ranks: int) -> float:
    """GB/s that a link carried, as nccl-tests defines it."""
    collective, _, size = key
    return size / microseconds / 1000 * plan.COLLECTIVES[collective](ranks)


def table(about: dict, keys: list[Key], rows: list[Row], said: list[str]) -> str:
    lines = [
        "| collective | bytes | A us | B us | A GB/s | B GB/s | B/A time | runs of B | A/A | p | |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for key, row, word in zip(keys, rows, said):
        speeds = [bus_bandwidth(key, time, about["ranks"]) for time in (row.a, row.b)]
        lines.append(
            f"| {key[0]} | {plan.text_of(key[1])} | {row.a:.1f} | {row.b:.1f} | {speeds[0]:.3f} | {speeds[1]:.3f} "
            f"| {row.ratio:.3f} | {row.low:.3f} to {row.high:.3f} | {row.noise:.3f} | {row.p:.3f} | {word} |")
    return "\n".join(lines)


def summary(about: dict, keys: list[Key], rows: list[Row], said: list[str]) -> str:
    counts = {word: said.count(word) for word in ("better", "worse", "no difference")}
    name = {key[0]: None for key in keys}
    ratios = [f"{one} {geometric([r.ratio for k, r in zip(keys, rows) if k[0] == one]):.3f}" for one in name]
    return (f"Ferrite against NCCL {about['versions']['nccl']}'s IB transport, {about['ranks']} ranks, GPUDirect {about['gdr']}: "
            f"better in {counts['better']}, worse in {counts['worse']}, no difference shown in {counts['no difference']} rows; "
            f"time B/A, geometric mean: {', '.join(ratios)}")


def geometric(values: list[float]) -> float:
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product


def write(folder: Path, about: dict, keys: list[Key], rows: list[Row], said: list[str], times: dict) -> None:
    (folder / "report.svg").write_text(plot.draw(about, keys, rows))
    raw = {"about": about, "rows": [
        {"collective": key[0], "size": key[1], "bytes": key[2], "verdict": word, **vars(row),
         "a_us": [run[i] for run in times["A"]], "b_us": [run[i] for run in times["B"]]}
        for i, (key, row, word) in enumerate(zip(keys, rows, said))]}
    (folder / "raw.json").write_text(json.dumps(raw, indent=1))
    (folder / "report.md").write_text("\n\n".join([
        "# Ferrite against NCCL's built-in IB transport",
        summary(about, keys, rows, said),
        "![bus bandwidth over size, and the ratio](report.svg)",
        table(about, keys, rows, said),
        facts(about),
    ]) + "\n")


def facts(about: dict) -> str:
    variables = about["variables"]
    listed = {name: " ".join(f"`{k}={v}`" for k, v in sorted(variables[name].items())) or "none" for name in variables}
    return "\n".join([
        "A is NCCL's built-in IB transport, B is Ferrite. Times are medians over fresh processes; GB/s is bus bandwidth. "
        "\"A/A\" is how far the odd runs of A lie from the even ones: the noise. A difference is claimed where a permutation "
        "test over all runs, at a false discovery rate of 5 % over the rows, finds one that is above 3 % and above that noise.",
        "",
        f"- command: `{about['command']}`; order of runs: {about['order']}; type: {about['dtype']}",
        f"- versions: {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        f"- ranks: {'; '.join(about['gpus'])}",
        f"- plugin: sha256 `{about['plugin']['sha256']}`",
        f"- variables of A: {listed['A']}",
        f"- variables of B: {listed['B']}",
        f"- variables of both: {listed['both']}",
        *([f"- on the software device, both ends on one machine: no statement about a network card"]
          if about["softrnic"] else []),
    ])
