"""The start of a cluster that outlives the command, as `baton serve --detach` makes it."""

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import IO

from rich.console import Console

from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.start_reports import StartReport
from baton.deploy.errors import StartError
from baton.deploy.messages.start_progress import StartProgress
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop import StopWanted, stop_on_signals
from baton.deploy.terminal.progress import shown
from baton.deploy.terminal.startup_banner import StartupBanner, print_banner

_END_S = 60.0
_TOLD = 4000  # characters of a starter's last words


def run_detached(console: Console, config: ClusterConfig) -> None:
    """Start a detached cluster, and return when it serves. Ctrl-C and SIGTERM give up the start.

    Raises StartError.
    """
    words = [sys.executable, "-m", "baton.deploy.detached.detached_main"]
    with stop_on_signals(), tempfile.TemporaryFile() as errors:
        starter = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # no signal to this command's group reaches it
        )
        assert starter.stdin is not None and starter.stdout is not None
        try:
            with starter.stdin as pipe:
                pickle.dump(config, pipe)
            with shown(console) as progress:
                banner = _follow(starter.stdout, progress)
        except StopWanted:
            starter.terminate()
            starter.wait(_END_S)
            raise
        if banner is None:
            raise StartError(f"the cluster's starter has ended: {_last_words(errors)}")
    print_banner(console, banner, seconds_since_command())
    name = config.name
    console.print(
        f"{name} runs on without this command. `baton status --cluster {name}` shows it, "
        f"`baton stop --cluster {name}` ends it.",
        highlight=False,
        soft_wrap=True,
    )


def _follow(lines: Iterable[bytes], progress: StartProgress) -> StartupBanner | None:
    """Report progress until the cluster serves. Return None if the lines end before that.

    Raises StartError.
    """
    for line in lines:
        message = json.loads(line)
        if "report" in message:
            StartReport(**message["report"]).tell(progress)
        elif "failed" in message:
            raise StartError(message["failed"])
        else:
            return StartupBanner(**message["greeting"])
    return None


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read()[-_TOLD:].decode(errors="replace").strip() or "it said nothing"
