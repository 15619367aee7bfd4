"""What was found: a table, the curves, and all numbers."""

import json
from pathlib import Path

from abtest.plot import COLOURS, NOISE, axes, page, tick

from .curves import KINDS, Verdict, growth, last_loss

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 70, 60
# Equal curves cover each other: the ones below are drawn wider.
STROKES = [(COLOURS["A"], 9), (COLOURS["B"], 5), (NOISE, 2), ("#000000", 0.7)]
# From one name of the legend to the next.
ENTRY = 160


def write(folder: Path, about: dict, sides: list[tuple[str, str]], results: list[dict], verdict: Verdict) -> None:
    names = [name for name, _ in sides]
    (folder / "curves.svg").write_text(draw(names, results))
    rows = [dict(name=name, network=network, **result) for (name, network), result in zip(sides, results)]
    raw = {"about": about, "verdict": {"is_good": verdict.is_good, "text": verdict.text}, "runs": rows}
    (folder / "raw.json").write_text(json.dumps(raw, indent=1))
    (folder / "report.md").write_text("\n\n".join([
        "# The same training over three networks", verdict.text[:1].upper() + verdict.text[1:] + ".",
        "![loss curves, one upon the other](curves.svg)", table(sides, results), facts(about, results)]) + "\n")


def table(sides: list[tuple[str, str]], results: list[dict]) -> str:
    lines = ["| run | network | GPUDirect | first loss | last loss | parameters (sha256) | " + " | ".join(KINDS.values()) + " |",
             "|---|---|---|---:|---:|---|" + "---|" * len(KINDS)]
    for (name, network), result in zip(sides, results):
        first = float.fromhex(result["losses"][0][0])
        held = [series(result, kind) for kind in KINDS]
        lines.append(f"| {name} | {network} | {result['gdr']} | {first:.9g} | {last_loss(result):.9g} "
                     f"| `{result['digests'][0][:16]}` | {' | '.join(held)} |")
    return "\n".join(lines)


def series(result: dict, kind: str) -> str:
    """What rank 0 held after each process group."""
    held = result["held"][0]
    if kind not in held[0]:
        return "not counted"
    return ", ".join(str(one[kind]) for one in held)


def facts(about: dict, results: list[dict]) -> str:
    listed = " ".join(f"`{name}={value}`" for name, value in sorted(about["variables"].items()) if not value.startswith("/"))
    grown = "; ".join(f"{words} {growth(results[1], kind):+d}" for kind, words in KINDS.items() if kind in results[1]["held"][0][0])
    return "\n".join([
        "A transformer of 3 million parameters learns the source text of Python's standard library, byte by byte, with "
        "DistributedDataParallel, AdamW and deterministic algorithms. Losses are compared as the 32-bit numbers that they are, of "
        "every rank at every step. The last columns are what rank 0 held after each of its process groups was destroyed.",
        "",
        f"- command: `{about['command']}`",
        f"- versions: {', '.join(f'{k} {v}' for k, v in about['versions'].items())}",
        f"- ranks: {'; '.join(about['gpus'])}",
        f"- plugin: sha256 `{about['plugin']['sha256']}`",
        f"- variables: {listed}",
        f"- Ferrite, worst rank, from the first to the last of {about['cycles']} process groups: {grown}",
        *(["- on the software device, both ends on one machine"] if about["softrnic"] else []),
    ])


def draw(names: list[str], results: list[dict]) -> str:
    """Rank 0's losses."""
    curves = [[float.fromhex(loss) for loss in result["losses"][0]] for result in results]
    every = [loss for curve in curves for loss in curve if loss == loss]
    low, high = min(every), max(max(every), min(every) + 1e-6)
    to_y = lambda loss: TOP + HEIGHT - (loss - low) / (high - low) * HEIGHT  # noqa: E731
    parts = [axes(LEFT, TOP, HEIGHT, WIDTH)]
    for index in range(5):
        loss = low + (high - low) * index / 4
        parts.append(tick(LEFT, to_y(loss), f"{loss:.2f}", WIDTH))
    for index, (curve, (colour, width)) in enumerate(zip(curves, STROKES)):
        step = WIDTH / max(1, len(curve) - 1)
        line = " ".join(f"{LEFT + place * step:.1f},{to_y(loss):.2f}" for place, loss in enumerate(curve) if loss == loss)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        parts.append(f'<line x1="{LEFT + ENTRY * index}" x2="{LEFT + ENTRY * index + 18}" y1="42" y2="42" stroke="{colour}" '
                     f'stroke-width="{width}"/><text x="{LEFT + ENTRY * index + 24}" y="46">{names[index]}</text>')
    last = len(curves[0]) - 1
    parts += [f'<text x="{LEFT}" y="{TOP + HEIGHT + 18}">0</text>',
              f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">{last}</text>',
              f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">step</text>',
              f'<text x="{LEFT}" y="20" font-weight="bold">loss of rank 0, one curve upon the other</text>']
    return page(LEFT + WIDTH + 40, TOP + HEIGHT + 50, "".join(parts))
