"""The `baton` command: the one place that lists its subcommands.

Subcommands live in `deploy` and `bench`; neither of these imports this room.
"""

import sys

import click

from baton import __version__
from baton.bench.registry import BENCHES
from baton.cli.lazy_group import Lazy, LazyGroup
from baton.deploy.errors import DeployError

_COMMANDS = "baton.deploy.commands"

bench = LazyGroup(
    "bench",
    {name: Lazy(at, line) for name, (at, line) in BENCHES.items()},
    "Measure, with limits and peers in the same run.",
)

baton = LazyGroup(
    "baton",
    {
        "serve": Lazy(f"{_COMMANDS}.serve:serve", "Start a cluster and keep it up until Ctrl-C."),
        "router": Lazy(f"{_COMMANDS}.router:router", "Run one router here, without Ray."),
        "worker": Lazy(f"{_COMMANDS}.worker:worker", "Run one worker here, without Ray."),
        "generate": Lazy(f"{_COMMANDS}.generate:generate", "Ask a running cluster one question."),
        "models": Lazy(f"{_COMMANDS}.models:models", "Model families, and what a folder holds."),
        "status": Lazy(f"{_COMMANDS}.status:status", "Workers, slots, pages and queues."),
        "explain": Lazy(f"{_COMMANDS}.explain:explain", "Why a request went where it did."),
        "apply": Lazy(f"{_COMMANDS}.apply:apply", "Let a running cluster follow its file."),
        "config": Lazy(f"{_COMMANDS}.config:config", "What is in force, and where it is from."),
        "restart": Lazy(f"{_COMMANDS}.restart:restart", "Restart its processes while it serves."),
        "drain": Lazy(f"{_COMMANDS}.drain:drain", "Take a worker out of service, or back."),
        "scale": Lazy(f"{_COMMANDS}.scale:scale", "Let workers join or leave while it serves."),
        "stop": Lazy(f"{_COMMANDS}.stop:stop", "Stop the cluster that you started last."),
        "doctor": Lazy(f"{_COMMANDS}.doctor:doctor", "What this machine lacks, and the remedy."),
        "replay": Lazy(
            "baton.bench.request_replay.replay:replay", "Send the requests of a dump again."
        ),
        "keys": Lazy(f"{_COMMANDS}.keys:keys", "Add, list and remove API keys."),
        "certs": Lazy(f"{_COMMANDS}.certs:certs", "Keep an authority for workers' certificates."),
        "bench": Lazy(f"{__name__}:bench", "Measure, with limits and peers in the same run."),
    },
    "Serve hybrid Mamba/attention models with prefill and decode on workers of their own.",
)
click.version_option(__version__)(baton)


def main() -> None:
    """Run the command line. A `DeployError` ends it as one line and exit code 1, Ctrl-C as 130."""
    try:
        baton(standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except DeployError as err:
        click.echo(f"baton: {err}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()
