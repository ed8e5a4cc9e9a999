"""The options of what a cluster records: logs, and when asked request dumps, profiles, traces."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from baton.core.errors import ConfigError
from baton.core.logs import LogFormat
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.errors import StartError
from baton.router.dump.request_dump import DEFAULT_MB, DumpOptions
from baton.rpc.trace_endpoint import check_endpoint

_FOLDER = click.Path(file_okay=False, path_type=Path)
_DUMP = (
    click.option("--dump-requests", type=_FOLDER, default=None,
                 help="Folder in which the router records each request that ended, for `baton "
                 "replay`: lengths, shared beginnings, times and numeric parameters, but no "
                 "prompt."),
    click.option("--dump-prompts", is_flag=True,
                 help="Record prompts and all parameters too."),
    click.option("--dump-requests-mb", type=click.IntRange(1), default=DEFAULT_MB,
                 show_default=True, help="Largest file of --dump-requests, in MiB; then it ends."),
)  # fmt: skip
_TELEMETRY = (
    click.option("--log-format", type=click.Choice([each.value for each in LogFormat]),
                 default=LogFormat.JSON.value, show_default=True,
                 help="Form of the lines in the logs of router and workers."),
    click.option("--otlp-traces-endpoint", default=None, metavar="URL",
                 help="OpenTelemetry collector that takes OTLP over gRPC, as "
                 "http://127.0.0.1:4317, to which router and workers send traces of requests. "
                 "Needs `pip install 'baton-serve[otel]'`."),
)  # fmt: skip


def telemetry_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of logs and traces; `telemetry_from` reads their values."""
    for option in reversed(_TELEMETRY):
        command = option(command)
    return command


def telemetry_from(options: dict[str, Any]) -> TelemetryOptions:
    """Return the options of logs and traces. Raises StartError."""
    endpoint: str | None = options["otlp_traces_endpoint"]
    try:
        check_endpoint(endpoint)
    except ConfigError as err:
        raise StartError(f"--otlp-traces-endpoint: {err}") from err
    return TelemetryOptions(LogFormat(options["log_format"]), endpoint)


def dump_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of request dumps; `dump_from` reads their values."""
    for option in reversed(_DUMP):
        command = option(command)
    return command


def dump_from(options: dict[str, Any]) -> DumpOptions | None:
    """Return the options of the dump; None for no dump. Raises StartError."""
    folder: Path | None = options["dump_requests"]
    if folder is None:
        if options["dump_prompts"]:
            raise StartError("--dump-prompts needs --dump-requests FOLDER: it says where to")
        return None
    check_can_be_made("--dump-requests", folder)
    return DumpOptions(
        folder.absolute(), options["dump_prompts"], options["dump_requests_mb"] << 20
    )


def check_can_be_made(option: str, folder: Path) -> None:
    """Raise StartError unless `folder` is one that this user may write, or can make."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StartError(f"{option} {folder}: this user cannot write in {there}; name another")


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the folder of profiles."""
    return click.option(
        "--profile-folder", type=_FOLDER, default=Path(click.get_app_dir("baton")) / "profiles",
        help="Folder for the traces of /start_profile, on each worker's machine; made at the "
        "first, in this user's folder for applications when left out.",
    )(command)  # fmt: skip
