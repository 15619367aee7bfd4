"""The picture: bus bandwidth of both sides over size, and the ratio of times with its band, per collective. SVG by hand."""

from math import log10

from . import plan, report
from .stats import Row

WIDTH, TOP, BOTTOM, GAP = 420, 190, 110, 60
COLOURS = {"A": "#7a7a7a", "B": "#c1440e"}


def draw(about: dict, keys: list, rows: list[Row]) -> str:
    names = list({key[0]: None for key in keys})
    panels = [panel(about, name, [(k, r) for k, r in zip(keys, rows) if k[0] == name], index * (WIDTH + GAP) + GAP)
              for index, name in enumerate(names)]
    width = len(names) * (WIDTH + GAP) + GAP
    height = TOP + BOTTOM + 150
    legend = "".join(
        f'<text x="{GAP + 170 * i}" y="22" fill="{COLOURS[s]}">{s}: {w}</text>'
        for i, (s, w) in enumerate([("A", "built-in IB"), ("B", "Ferrite")]))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
            f'<rect width="{width}" height="{height}" fill="white"/>{legend}{"".join(panels)}</svg>\n')


def panel(about: dict, name: str, points: list[tuple[tuple, Row]], left: int) -> str:
    xs = scale([log10(key[1]) for key, _ in points], left, left + WIDTH)
    speeds = {side: [report.bus_bandwidth(key, getattr(row, side.lower()), about["ranks"]) for key, row in points]
              for side in "AB"}
    both = [log10(value) for side in speeds.values() for value in side]
    low, high = min(both), max(max(both), min(both) + 0.5)
    to_y = lambda value: 60 + TOP - (log10(value) - low) / (high - low) * TOP  # noqa: E731
    parts = [f'<text x="{left}" y="48" font-weight="bold">{name}: bus bandwidth, GB/s</text>', axes(left, 60, TOP)]
    for power in range(int(low) - 1, int(high) + 2):
        if low <= power <= high:
            parts.append(tick(left, to_y(10 ** power), f"{10 ** power:g}"))
    for side, values in speeds.items():
        line = " ".join(f"{x:.1f},{to_y(value):.1f}" for x, value in zip(xs, values))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[side]}" stroke-width="2"/>')
    parts.append(ratio(points, xs, left, 60 + TOP + 30))
    return "".join(parts)


def ratio(points: list[tuple[tuple, Row]], xs: list[float], left: int, top: int) -> str:
    """Time of B over A; the band is that of B's runs, the grey one the noise of A."""
    spread = max(0.1, *(abs(value - 1) for _, row in points for value in (row.low, row.high, row.ratio)))
    spread = min(spread, 1.0)
    to_y = lambda value: top + BOTTOM / 2 - max(-spread, min(spread, value - 1)) / spread * BOTTOM / 2  # noqa: E731
    band = lambda upper, lower: " ".join(  # noqa: E731
        [f"{x:.1f},{to_y(v):.1f}" for x, v in zip(xs, upper)] + [f"{x:.1f},{to_y(v):.1f}" for x, v in reversed([*zip(xs, lower)])])
    rows = [row for _, row in points]
    noise = band([1 + row.noise for row in rows], [1 - row.noise for row in rows])
    runs = band([row.high for row in rows], [row.low for row in rows])
    line = " ".join(f"{x:.1f},{to_y(row.ratio):.1f}" for x, row in zip(xs, rows))
    labels = "".join(f'<text x="{x:.1f}" y="{top + BOTTOM + 16}" text-anchor="middle">{plan.text_of(key[1])}</text>'
                     for index, (x, (key, _)) in enumerate(zip(xs, points)) if index % 2 == 0)
    return (f'<text x="{left}" y="{top - 8}">time B/A: below 1, Ferrite is faster</text>{axes(left, top, BOTTOM)}'
            f'<polygon points="{noise}" fill="#dddddd"/><polygon points="{runs}" fill="{COLOURS["B"]}" opacity="0.25"/>'
            f'<polyline points="{line}" fill="none" stroke="{COLOURS["B"]}" stroke-width="2"/>'
            + "".join(tick(left, to_y(value), f"{value:.2f}") for value in (1 - spread, 1, 1 + spread)) + labels)


def scale(values: list[float], low: float, high: float) -> list[float]:
    least, most = min(values), max(values)
    span = (most - least) or 1
    return [low + (value - least) / span * (high - low) for value in values]


def axes(left: int, top: int, height: int) -> str:
    return f'<path d="M{left} {top} V{top + height} H{left + WIDTH}" fill="none" stroke="black"/>'


def tick(left: int, y: float, text: str) -> str:
    return (f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e8e8e8"/>')
