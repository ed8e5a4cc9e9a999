"""The output of every benchmark: one JSON object for programs, or a table for people."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from baton import __version__
from baton.bench.machine import describe

MIN_REPEATS = 3

Peer = Mapping[str, float | str]


@dataclass(frozen=True)
class Report:
    """The results of one benchmark; `results`, `limits` and `peers` come from the same run."""

    bench: str
    config: Mapping[str, object]
    results: Mapping[str, float]
    limits: Mapping[str, float] = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)  # {"skipped": why} where one cannot run
    baton: str = __version__
    machine: Mapping[str, object] = field(default_factory=describe)


def summarise(repeats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each key's median over the repeats, and its spread, (max - min) / median."""
    merged: dict[str, float] = {}
    for key in repeats[0]:
        values = [repeat[key] for repeat in repeats]
        middle = median(values)
        merged[key] = middle
        merged[f"{key}_spread"] = (max(values) - min(values)) / middle if middle else 0.0
    return merged


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    if not values:
        raise ValueError("percentile of no values; expected at least one")
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def as_json(report: Report) -> str:
    """Return one line of JSON, with numbers to six significant digits."""
    return json.dumps(_rounded(asdict(report)), separators=(",", ":"))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value


def show(report: Report, json_wanted: bool) -> None:
    """Print the report as the last line of standard output, or as a table."""
    if json_wanted:
        click.echo(as_json(report))
        return
    table = Table("", "median", "spread", title=f"baton bench {report.bench}")
    for key, value in report.results.items():
        if not key.endswith("_spread"):
            table.add_row(key, _shown(value), _spread(report.results, key))
    for name, numbers in (("limit", report.limits), *report.peers.items()):
        for key, number in numbers.items():
            if not key.endswith("_spread"):
                table.add_row(f"{name}: {key}", _shown(number), _spread(numbers, key))
    Console().print(table)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _spread(numbers: Mapping[str, float | str], key: str) -> str:
    spread = numbers.get(f"{key}_spread")
    return f"{spread:.1%}" if isinstance(spread, float) else ""


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--json`."""
    text = "Print one JSON object as the last line."
    return click.option("--json", "json_wanted", is_flag=True, help=text)(command)


def repeats_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--repeats`."""
    return click.option(
        "--repeats", type=click.IntRange(MIN_REPEATS), default=MIN_REPEATS, show_default=True
    )(command)


def seed_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--seed`; a new seed is drawn if it is left out."""
    text = "For the inputs; drawn afresh, and printed, when left out."
    return click.option("--seed", type=int, default=None, help=text)(command)


def numbers_option(text: str, option: str, more: Sequence[int] = ()) -> list[int]:
    """Return ascending numbers from `1,4,16`, and `more`. Raises click.BadParameter."""
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = set()
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{text!r}; expected numbers such as 1,4,16", param_hint=option)
    return sorted(numbers | {*more})
