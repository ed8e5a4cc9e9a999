"""Draws the dashboards from a Prometheus, as pictures for the documents, without a Grafana.

pip install -e ".[pictures]"
python monitoring/draw_panels.py --prometheus http://127.0.0.1:9090 --minutes 5
"""

import argparse
import io
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from dashboards import DASHBOARDS, HERE
from grafana_json import Dashboard, Panel
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

COLUMNS = 4
POINTS = 80  # of each line
COLOURS = 64  # of a picture: a quarter of the bytes of all colours
TIMEOUT_S = 30.0
_STEPS = {
    "s": ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (86400.0, "d")),
    "bytes": ((1.0, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")),
    "Bps": ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")),
    "percentunit": ((0.01, "%"),),
    "ops": ((1.0, "/s"), (1e3, "k/s")),
    "reqps": ((1.0, "/s"),),
    "none": ((1.0, ""), (1e3, "k")),
}
"""By Grafana's unit: what a value is divided by, and the word for it."""

Query = Callable[[str], list[dict[str, Any]]]


def readable(value: float, unit: str) -> str:
    """Format a value of Grafana's `unit`: 0.012 "s" is "12 ms"."""
    steps = _STEPS[unit]
    scale, word = next((s for s in reversed(steps) if abs(value) >= s[0]), steps[0])
    return f"{value / scale:.3g} {word}".strip() if value else "0"


def ranges(url: str, job: str, seconds: float, window: str) -> Query:
    """Return a function that asks a Prometheus for what a graph of the last `seconds` shows."""
    now = time.time()

    def ask(expr: str) -> list[dict[str, Any]]:
        fields = {
            "query": expr.replace("$__rate_interval", window).replace("$job", job),
            "start": now - seconds,
            "end": now,
            "step": seconds / POINTS,
        }
        where = f"{url}/api/v1/query_range?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(where, timeout=TIMEOUT_S) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        return found

    return ask


def draw(spec: Dashboard, ask: Query, path: Path) -> None:
    """Draw all panels of a dashboard into one picture."""
    rows = -(-len(spec.panels) // COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(4.2 * COLUMNS, 2.5 * rows), squeeze=False, layout="constrained"
    )
    figure.suptitle(spec.title, fontsize=13)
    for place in axes.flat[len(spec.panels) :]:
        place.set_axis_off()
    for place, panel in zip(axes.flat, spec.panels, strict=False):
        _draw_panel(place, panel, ask)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    pyplot.close(figure)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _draw_panel(place: Axes, panel: Panel, ask: Query) -> None:
    lines = _lines(panel, ask)
    if panel.stacked:
        times = sorted({at for _, points in lines for at in points})
        heights = [[points.get(at, 0.0) for at in times] for _, points in lines]
        place.stackplot(times, heights, labels=[name for name, _ in lines], alpha=0.7)
    else:
        for name, points in lines:
            place.plot(list(points), list(points.values()), label=name, linewidth=1.1)
    place.set_title(panel.title, fontsize=9)
    place.set_ylim(bottom=0)
    place.xaxis.set_major_locator(MaxNLocator(4))
    place.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f} s"))
    place.yaxis.set_major_locator(MaxNLocator(4))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: readable(value, panel.unit)))
    place.tick_params(labelsize=7)
    place.grid(alpha=0.3)
    if any(name for name, _ in lines):
        place.legend(fontsize=6, loc="upper left", framealpha=0.6)


def _lines(panel: Panel, ask: Query) -> list[tuple[str, dict[float, float]]]:
    """Return the lines of a panel: name, and value by seconds from now."""
    now = time.time()
    lines = []
    for query in panel.queries:
        for found in ask(query.expr):
            name = query.legend
            for label, text in found["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", text)
            points = {
                float(at) - now: float(value) for at, value in found["values"] if value != "NaN"
            }
            lines.append((name, points))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw Baton's dashboards.")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its URL")
    parser.add_argument("--job", default="baton", help="the cluster")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far back")
    parser.add_argument("--rate", default="1m", help="window of the rates: 4 scrapes or more")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs/pictures")
    given = parser.parse_args()
    matplotlib.use("agg")
    given.out.mkdir(parents=True, exist_ok=True)
    ask = ranges(given.prometheus, given.job, 60 * given.minutes, given.rate)
    for spec in DASHBOARDS:
        draw(spec, ask, given.out / f"{spec.uid}.png")


if __name__ == "__main__":
    main()
