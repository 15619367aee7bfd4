"""The picture: for each collective bus bandwidth of both sides over size, and below it the ratio of times with its interval."""

from math import ceil, floor, log10

from .. import sizes
from ..svg import COLOURS, GRID, NOISE, axes, page, tick
from . import plan
from .results import Judged, Report

# A panel's plot, two of them beside each other; space to its left and above; what lies below for the sizes.
WIDTH, HEIGHT, LEFT, ABOVE, BELOW = 480, 220, 80, 44, 56
COLUMNS, HEADER = 2, 60
# Ratios that an axis of them may have a mark at.
MARKS = [0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 5, 10]


def draw(report: Report) -> str:
    names = list(dict.fromkeys(one.key.collective for one in report.rows))
    parts = []
    for index, name in enumerate(names):
        points = [one for one in report.rows if one.key.collective == name]
        left = LEFT + index % COLUMNS * (LEFT + WIDTH)
        top = HEADER + index // COLUMNS * 2 * (ABOVE + HEIGHT + BELOW)
        parts.append(speeds(report.about.ranks, name, points, left, top + ABOVE))
        parts.append(ratios(name, points, left, top + 2 * ABOVE + HEIGHT + BELOW))
    width = min(len(names), COLUMNS) * (LEFT + WIDTH) + 40
    height = HEADER + ceil(len(names) / COLUMNS) * 2 * (ABOVE + HEIGHT + BELOW)
    return page(width, height, legend(report.about.side_a()) + "".join(parts))


def legend(side_a: str) -> str:
    words = {"A": f"A: {side_a}", "B": "B: Ferrite"}
    lines = [
        f'<line x1="{LEFT + 300 * i}" x2="{LEFT + 300 * i + 28}" y1="22" y2="22" stroke="{COLOURS[side]}" stroke-width="3"/>'
        f'<text x="{LEFT + 300 * i + 36}" y="26">{words[side]}</text>'
        for i, side in enumerate("AB")
    ]
    return (
        "".join(lines) + f'<text x="{LEFT}" y="48" fill="{NOISE}">band: interval of the ratio; grey: one run\'s noise to either side</text>'
    )


def speeds(ranks: int, name: str, points: list[Judged], left: float, top: float) -> str:
    """Bus bandwidth, logarithmic like the sizes."""
    found = {
        "A": [plan.bus_bandwidth(name, one.key.bytes, one.row.a, ranks) for one in points],
        "B": [plan.bus_bandwidth(name, one.key.bytes, one.row.b, ranks) for one in points],
    }
    both = [log10(value) for side in found.values() for value in side]
    low, high = floor(min(both)), max(ceil(max(both)), floor(min(both)) + 1)

    def to_y(value: float) -> float:
        return top + HEIGHT - (log10(value) - low) / (high - low) * HEIGHT

    parts = [tick(left, to_y(10.0**power), f"{10.0**power:g}", WIDTH) for power in range(low, high + 1)]
    xs = places(points, left)
    parts += [curve(xs, [to_y(value) for value in values], COLOURS[side]) for side, values in found.items()]
    return (
        title(left, top, f"{name}: bus bandwidth, GB/s") + axes(left, top, HEIGHT, WIDTH) + "".join(parts) + size_labels(points, left, top)
    )


def ratios(name: str, points: list[Judged], left: float, top: float) -> str:
    """Time of B over A, logarithmic: twice and half are as far from 1."""
    rows = [one.row for one in points]
    shown = [value for row in rows for value in (row.ratio, row.low, row.high) if value]
    reach = max(log10(1.1), *(abs(log10(value)) for value in shown))
    reach = min(reach * 1.05, 1.0)

    def to_y(value: float) -> float:
        return top + HEIGHT / 2 - max(-reach, min(reach, log10(value))) / reach * HEIGHT / 2

    xs = places(points, left)
    parts = [band(xs, [to_y(1 + row.noise) for row in rows], [to_y(1 / (1 + row.noise)) for row in rows], "#dddddd", 1.0)]
    parts += [tick(left, to_y(mark), f"{mark:g}", WIDTH, "#888888" if mark == 1 else GRID) for mark in marks(reach)]
    lows, highs = [row.low for row in rows if row.low is not None], [row.high for row in rows if row.high is not None]
    if len(lows) == len(rows):
        parts.append(band(xs, [to_y(high) for high in highs], [to_y(low) for low in lows], COLOURS["B"], 0.25))
    parts.append(curve(xs, [to_y(row.ratio) for row in rows], COLOURS["B"]))
    return (
        title(left, top, f"{name}: time B/A (below 1: Ferrite is faster)")
        + axes(left, top, HEIGHT, WIDTH)
        + "".join(parts)
        + size_labels(points, left, top)
    )


def marks(reach: float) -> list[float]:
    """Those within `reach`, a power of ten, that leave room for their numbers."""
    within = [mark for mark in MARKS if abs(log10(mark)) <= reach]
    near = reach / 8
    return [mark for mark in within if mark == 1 or abs(log10(mark)) > near]


def places(points: list[Judged], left: float) -> list[float]:
    """Where each size lies, with a little air at both ends."""
    values = [log10(one.key.size) for one in points]
    span = (max(values) - min(values)) or 1
    return [left + 14 + (value - min(values)) / span * (WIDTH - 28) for value in values]


def size_labels(points: list[Judged], left: float, top: float) -> str:
    step = ceil(len(points) / 8)
    labels = [
        f'<text x="{x:.1f}" y="{top + HEIGHT + 18}" text-anchor="middle">{sizes.text_of(one.key.size)}</text>'
        for x, one in list(zip(places(points, left), points))[::step]
    ]
    return "".join(labels) + f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 38}" text-anchor="middle">size of the message, bytes</text>'


def title(left: float, top: float, text: str) -> str:
    return f'<text x="{left}" y="{top - 10}" font-weight="bold">{text}</text>'


def curve(xs: list[float], ys: list[float], colour: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in zip(xs, ys))
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def band(xs: list[float], upper: list[float], lower: list[float], colour: str, opacity: float) -> str:
    around = [*zip(xs, upper), *reversed([*zip(xs, lower)])]
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in around)}" fill="{colour}" opacity="{opacity}"/>'
