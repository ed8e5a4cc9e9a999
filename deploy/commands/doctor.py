"""`baton doctor`."""

import json
import sys
from collections import Counter
from dataclasses import asdict

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from baton.deploy.doctor.checkup import findings
from baton.deploy.doctor.finding import Finding, Level

_STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
}
_INDENT = 9


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address that the router would listen on.")  # fmt: skip
@click.option("--http-port", "--port", "http_port", type=click.IntRange(0, 65535), default=8000,
              show_default=True, help="Port of the router's HTTP server.")  # fmt: skip
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=50051, show_default=True,
              help="Port of the router's gRPC server.")  # fmt: skip
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object a line.")
def doctor(host: str, http_port: int, grpc_port: int, json_wanted: bool) -> None:
    """Check what Baton needs of this machine, and say what to do about what it lacks.

    Exits with 1 if it finds a problem.
    """
    console = Console(highlight=False)
    counts: Counter[Level] = Counter()
    for finding in findings(host, {"--http-port": http_port, "--grpc-port": grpc_port}):
        counts[finding.level] += 1
        if json_wanted:
            click.echo(json.dumps(asdict(finding)))
        else:
            _print(console, finding)
    if not json_wanted:
        problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
        console.print(f"{problems} problems, {warnings} warnings, {counts.total()} checks")
    if counts[Level.PROBLEM]:
        sys.exit(1)


def _print(console: Console, finding: Finding) -> None:
    mark = Text(f"{finding.level:<{_INDENT}}", style=_STYLES[finding.level])
    console.print(Text.assemble(mark, (finding.check, "bold"), ": ", finding.found))
    for name, text in (("it means", finding.meaning), ("remedy", finding.remedy)):
        if text:
            console.print(Padding(f"{name}: {text}", (0, 0, 0, _INDENT)), soft_wrap=False)
