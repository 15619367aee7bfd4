"""The report of the trainings: a table, the loss curves, and all numbers."""

from pathlib import Path

from ..files import write_json
from ..svg import COLOURS, NOISE, axes, page, tick
from .results import KINDS, About, Report, Run

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 70, 60
# Colour and width of each curve. Equal curves cover each other, so the ones below are drawn wider.
STROKES: list[tuple[str, float]] = [(COLOURS["A"], 9), (COLOURS["B"], 5), (NOISE, 2), ("#000000", 0.7)]
# From one name of the legend to the next.
ENTRY = 160
HOW = (
    "A transformer of 3 million parameters learns the source text of Python's standard library, byte by byte, with "
    "{parallel}, AdamW and deterministic algorithms. Losses are compared as the 32-bit numbers that they are, of "
    "every rank at every step. The last columns are what rank 0 held after each of its process groups was destroyed."
)


def write(folder: Path, report: Report) -> None:
    (folder / "curves.svg").write_text(draw(report.runs))
    write_json(folder / "raw.json", report.to_json())
    verdict = report.verdict.text
    parts = [
        "# The same training over three networks",
        verdict[:1].upper() + verdict[1:] + ".",
        "![loss curves, one upon the other](curves.svg)",
        table(report.runs),
        HOW.format(parallel="FSDP (fully_shard)" if report.about.sharded else "DistributedDataParallel"),
        facts(report.about, report.runs[1]),
    ]
    (folder / "report.md").write_text("\n\n".join(parts) + "\n")


def table(runs: list[Run]) -> str:
    lines = [
        "| run | network | GPUDirect | first loss | last loss | parameters (sha256) | " + " | ".join(KINDS.values()) + " |",
        "|---|---|---|---:|---:|---|" + "---|" * len(KINDS),
    ]
    for run in runs:
        held = [", ".join(map(str, run.counts(kind))) or "not counted" for kind in KINDS]
        lines.append(
            f"| {run.name} | {run.network} | {run.gdr} | {run.first_loss():.9g} | {run.last_loss():.9g} "
            f"| `{run.digests[0][:16]}` | {' | '.join(held)} |"
        )
    return "\n".join(lines)


def facts(about: About, ferrite: Run) -> str:
    # Paths of the machine are left out.
    variables = " ".join(f"`{name}={value}`" for name, value in sorted(about.variables.items()) if not value.startswith("/"))
    grown = "; ".join(f"{words} {ferrite.growth(kind):+d}" for kind, words in KINDS.items() if ferrite.counts(kind))
    lines = [
        f"- command: `{about.command}`",
        f"- versions: {', '.join(f'{name} {version}' for name, version in about.versions.items())}",
        f"- ranks: {'; '.join(about.gpus)}",
        f"- plugin: {about.plugin.text()}",
        f"- variables: {variables}",
        f"- Ferrite, worst rank, from the first to the last of {about.cycles} process groups: {grown}",
    ]
    if about.softrnic:
        lines.append("- on the software device, both ends on one machine")
    return "\n".join(lines)


def draw(runs: list[Run]) -> str:
    """Rank 0's losses."""
    curves = [[float.fromhex(loss) for loss in run.losses[0]] for run in runs]
    # NaN is not equal to itself.
    numbers = [loss for curve in curves for loss in curve if loss == loss]
    low, high = min(numbers), max(max(numbers), min(numbers) + 1e-6)

    def to_y(loss: float) -> float:
        return TOP + HEIGHT - (loss - low) / (high - low) * HEIGHT

    parts = [axes(LEFT, TOP, HEIGHT, WIDTH)]
    for index in range(5):
        loss = low + (high - low) * index / 4
        parts.append(tick(LEFT, to_y(loss), f"{loss:.2f}", WIDTH))
    for index, (run, curve, (colour, width)) in enumerate(zip(runs, curves, STROKES)):
        step = WIDTH / max(1, len(curve) - 1)
        line = " ".join(f"{LEFT + place * step:.1f},{to_y(loss):.2f}" for place, loss in enumerate(curve) if loss == loss)
        left = LEFT + ENTRY * index
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        parts.append(
            f'<line x1="{left}" x2="{left + 18}" y1="42" y2="42" stroke="{colour}" stroke-width="{width}"/>'
            f'<text x="{left + 24}" y="46">{run.name}</text>'
        )
    parts += [
        f'<text x="{LEFT}" y="{TOP + HEIGHT + 18}">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">{len(curves[0]) - 1}</text>',
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">step</text>',
        f'<text x="{LEFT}" y="20" font-weight="bold">loss of rank 0, one curve upon the other</text>',
    ]
    return page(LEFT + WIDTH + 40, TOP + HEIGHT + 50, "".join(parts))
