"""The options of where a process writes what it records, and their checks."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from baton.core.errors import ConfigError
from baton.core.options import Folder, Group, option
from baton.core.telemetry_options import TelemetryOptions
from baton.deploy.errors import StartError
from baton.router.dump.dump_options import DumpOptions
from baton.rpc.trace_endpoint import check_endpoint


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The place of profiles."""

    profile_folder: Path = option(
        Path(click.get_app_dir("baton")) / "profiles", Group.RECORDS,
        "Folder for the traces of /start_profile, on each worker's machine; made at the first, in "
        "this user's folder for applications when left out.", Folder(), shows_default=False)
# fmt: on


def check_telemetry(options: TelemetryOptions) -> None:
    """Check the collector of traces. Raises StartError."""
    try:
        check_endpoint(options.otlp_traces_endpoint)
    except ConfigError as err:
        raise StartError(f"--otlp-traces-endpoint: {err}") from err


def check_dump(options: DumpOptions) -> None:
    """Check the folder of request dumps. Raises StartError."""
    if options.folder is not None:
        _check_can_be_made("--dump-requests", options.folder)


def check_profiles(options: ProfileOptions) -> None:
    """Check the folder of profiles. Raises StartError."""
    _check_can_be_made("--profile-folder", options.profile_folder)


def _check_can_be_made(name: str, folder: Path) -> None:
    """Raise StartError unless `folder` is one that this user may write, or can make."""
    there = folder
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StartError(f"{name} {folder}: this user cannot write in {there}; name another")
