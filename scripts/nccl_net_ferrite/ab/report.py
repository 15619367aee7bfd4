"""The report of a comparison: a table, a picture, and all numbers."""

from pathlib import Path
from statistics import median

from .. import sizes
from ..files import write_json
from . import plan, plot, stats
from .results import About, Judged, Report
from .stats import Row


def write(folder: Path, report: Report) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.svg").write_text(plot.draw(report))
    write_json(folder / "raw.json", report.to_json())
    parts = [
        f"# Ferrite against {report.about.side_a()}",
        summary(report),
        "![bus bandwidth over size, and the ratio](report.svg)",
        table(report),
        f"A is {report.about.side_a()}, B is Ferrite. {HOW}",
        facts(report.about),
    ]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def summary(report: Report) -> str:
    about, verdicts = report.about, [one.row.verdict for one in report.rows]
    ratios = ", ".join(f"{one.name} {one.row.ratio:.3f}" for one in report.together)
    sentences = [
        f"Ferrite against {of_nccl(about)}, {about.ranks} ranks, GPUDirect {about.gdr}, {len(verdicts)} rows:",
        f"better in {verdicts.count(stats.BETTER)}, worse in {verdicts.count(stats.WORSE)}, "
        f"alike within {about.effect * 100:g} % in {verdicts.count(stats.ALIKE)}, "
        f"too few runs to tell in {verdicts.count(stats.TOO_FEW_RUNS)}.",
        smallest_effect(report),
    ]
    if ratios:
        sentences.append(f"Time B/A, geometric mean: {ratios}.")
    if about.cut:
        sentences.append(f"The run was {about.cut}.")
    return " ".join(sentences)


def of_nccl(about: About) -> str:
    """Side A, with the release of NCCL."""
    nccl = f"NCCL {about.versions['nccl']}"
    return f"{about.side_a()} under {nccl}" if about.baseline else f"{nccl}'s IB transport"


def smallest_effect(report: Report) -> str:
    """That this run could have found."""
    finds = [(one.row.finds, one.key) for one in report.rows if one.row.finds is not None]
    if len(finds) < len(report.rows):
        blocks = len(report.about.order) // stats.BLOCK
        return (
            f"With {blocks} block{'s' * (blocks != 1)} of four runs no difference could have been shown, however large: "
            "three are the least."
        )
    most, key = max(finds, key=lambda one: one[0])
    sentence = (
        f"This run would have found (in four of five cases) a row that differs by {percent(median(one for one, _ in finds))} in "
        f"the median row, by {percent(most)} in the noisiest ({key.collective} of {sizes.text_of(key.size)})"
    )
    of_all = [one.row.finds for one in report.together if one.name == "all" and one.row.finds is not None]
    return sentence + (f", and a difference of {percent(of_all[0])} that all rows share." if of_all else ".")


def table(report: Report) -> str:
    lines = [
        "| collective | bytes | A us | B us | A GB/s | B GB/s | time B/A | interval of B/A | would find | noise of a run | A/A | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---|",
        *(line(one, report.about.ranks) for one in report.rows),
        *(f"| {one.name} | together | | | | | {columns(one.row)} |" for one in report.together),
    ]
    return "\n".join(lines)


def line(one: Judged, ranks: int) -> str:
    key, row = one.key, one.row
    a, b = (plan.bus_bandwidth(key.collective, key.bytes, time, ranks) for time in (row.a, row.b))
    return f"| {key.collective} | {sizes.text_of(key.size)} | {row.a:.1f} | {row.b:.1f} | {a:.3f} | {b:.3f} | {columns(row)} |"


def columns(row: Row) -> str:
    """Of the ratio, in every line."""
    interval = "unknown" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
    finds = "nothing" if row.finds is None else f"{percent(row.finds)} or more"
    return f"{row.ratio:.3f} | {interval} | {finds} | {row.noise * 100:.1f} % | {row.a_to_a:.3f} | {row.verdict}"


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:.1f} %"


HOW = (
    'Times are medians over fresh processes; GB/s is bus bandwidth. "time B/A" is '
    'the mean ratio of a block of four runs, two of each side; "together" is the geometric mean of rows. The intervals hold all at '
    f"once: in {100 - stats.SIGNIFICANCE * 100:g} % of reports each of them holds its true ratio, by a permutation test within "
    "blocks over the largest statistic of all rows. A row is called better or worse if its interval leaves out 1 and the ratio is "
    f"{stats.LEAST_EFFECT * 100:g} % or more; alike if its interval lies within what matters; otherwise the runs were too few to tell. "
    '"would find" is the smallest difference that four of five comparisons with as much noise would call one. "A/A" is A\'s later '
    "run of a block over its earlier one: how far time alone moves it."
)


def facts(about: About) -> str:
    variables = {
        side: " ".join(f"`{name}={value}`" for name, value in sorted(chosen.items())) or "none" for side, chosen in about.variables.items()
    }
    lines = [
        f"- command: `{about.command}`; order of runs: {about.order}; type: {about.dtype}; a difference of "
        f"{about.effect * 100:g} % matters",
        f"- versions: {', '.join(f'{name} {version}' for name, version in about.versions.items())}",
        f"- ranks: {'; '.join(about.gpus)}",
    ]
    if about.libnccl:
        lines.append(f"- libnccl.so.2: sha256 `{about.libnccl.sha256}`, without PyTorch")
    if about.baseline:
        lines.append(f"- plugin of A: {about.baseline.text()}")
    lines += [
        f"- plugin{' of B' if about.baseline else ''}: {about.plugin.text()}",
        f"- variables of A: {variables['A']}",
        f"- variables of B: {variables['B']}",
        f"- variables of both: {variables['both']}",
    ]
    if about.seconds:
        lines.append(f"- seconds of each run: {' '.join(map(str, about.seconds))}")
    if about.softrnic:
        lines.append("- on the software device, both ends on one machine: no statement about a network card")
    return "\n".join(lines)
