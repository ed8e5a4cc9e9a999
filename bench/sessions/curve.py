"""Polyline charts as SVG, without a plotting library: a few lines each, side by side."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 300  # of one chart
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 48
COLOURS = ("#1f6feb", "#d1651a", "#2da44e", "#8250df")
TICKS = 5


@dataclass(frozen=True)
class Polyline:
    """One line: its name, and its points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One chart. Both axes begin at 0."""

    title: str
    x: str
    y: str
    lines: Sequence[Polyline]


def draw(curves: Sequence[Curve]) -> str:
    """Return an SVG document with the charts side by side."""
    width = WIDTH * len(curves)
    charts = "".join(
        f'<g transform="translate({at * WIDTH} 0)">{_chart(curve)}</g>'
        for at, curve in enumerate(curves)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>{charts}</svg>\n'
    )


def _chart(curve: Curve) -> str:
    most_x = max(x for line in curve.lines for x, _ in line.points)
    step = _step(max(y for line in curve.lines for _, y in line.points))
    most_y = step * TICKS
    parts = [
        _text(WIDTH / 2, 20, curve.title, 'text-anchor="middle" font-size="13"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, curve.x, 'text-anchor="middle"'),
        _text(8, TOP - 10, curve.y),
    ]

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / most_x * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM), 1)

    for tick in range(TICKS + 1):
        _, height = place(0, tick * step)
        parts.append(
            f'<path d="M{LEFT} {height}H{WIDTH - RIGHT}" stroke="#d0d7de"/>'
            + _text(LEFT - 6, height + 4, f"{tick * step:g}", 'text-anchor="end"')
        )
    for x in sorted({x for line in curve.lines for x, _ in line.points}):
        if x / most_x * (WIDTH - LEFT - RIGHT) >= 12 and (len(curve.lines[0].points) <= 6 or
                                                          x * 4 % most_x == 0):  # fmt: skip
            across, bottom = place(x, 0)
            parts.append(_text(across, bottom + 16, f"{x:g}", 'text-anchor="middle"'))
    for number, line in enumerate(curve.lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line.points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>'
            for x, y in (place(*point) for point in line.points)
        ]
        parts.append(_text(LEFT + 8, TOP + 12 + 14 * number, line.name, f'fill="{colour}"'))
    return "".join(parts)


def _step(most: float) -> float:
    """Return a round distance of ticks, so that TICKS of them reach `most`."""
    step = 1e-6
    while True:
        for factor in (1, 2, 2.5, 5):
            if step * factor * TICKS >= most:
                return step * factor
        step *= 10


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{html.escape(text)}</text>'
