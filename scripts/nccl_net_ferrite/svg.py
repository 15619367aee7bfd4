"""Parts of pictures that several reports draw, as SVG."""

# As `ferrite compare` has them: A, B, and what is noise.
COLOURS = {"A": "#c2571a", "B": "#1b6ca8"}
NOISE, GRID = "#777777", "#e8e8e8"


def page(width: float, height: float, inside: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="DejaVu Sans,Verdana,sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>{inside}</svg>\n'
    )


def axes(left: float, top: float, height: float, width: float) -> str:
    return f'<path d="M{left} {top} V{top + height} H{left + width}" fill="none" stroke="black"/>'


def tick(left: float, y: float, text: str, width: float, colour: str = GRID) -> str:
    """A mark of the vertical axis, and a line across the plot."""
    return (
        f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
    )
