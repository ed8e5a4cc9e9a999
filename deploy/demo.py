"""`make demo`: a cluster on this machine answers questions that need the whole state.

The model (examples/recall) was trained for this. A key-value pair, a running sum and a copy of the
last words lie in different parts of the state. A hand-off that lost any part shows as a wrong
answer.
"""

import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.preflight import check_model
from baton.deploy.demo_clients import ask_grpc, ask_openai
from baton.deploy.errors import DeployError
from baton.deploy.files.example_model import EXAMPLE_MODEL
from baton.deploy.process.since_start import seconds_since_command
from baton.deploy.process.stop import stop_on_signals
from baton.deploy.terminal.progress import shown
from baton.deploy.terminal.status_table import render
from baton.deploy.terminal.timings_line import first_token, second_token
from baton.engine.settings.config import EngineConfig
from recall.language import END
from recall.questions import Question, draw
from recall.story import LEARNT

LENGTHS = (64, 128, 256, 512)  # tokens of the prompts
MAX_TOKENS = 16
SHOWN_WORDS = 12
MAX_RUNNING = 8


@click.command()
@click.option("--model", type=click.Path(path_type=Path), default=EXAMPLE_MODEL, show_default=True)
@click.option("--seed", type=int, default=None, help="Of the questions; drawn when left out.")
def demo(model: Path, seed: int | None) -> None:
    """Start one prefill and two decode workers, ask them over gRPC and HTTP, and stop."""
    console = Console(highlight=False)
    seed = random.randrange(10**6) if seed is None else seed
    config = ClusterConfig(EngineConfig(model, max_running=MAX_RUNNING), prefill=1, decode=2)
    check_model(config.engine)
    console.print(f"[bold]1 prefill + 2 decode workers and a router[/]  (questions: seed {seed})")
    with stop_on_signals(), ExitStack() as stack:
        with shown(console) as progress:
            cluster = stack.enter_context(Cluster(config, progress))
        up = seconds_since_command()
        first = _ask_all(console, cluster, random.Random(seed))
        console.print(render(cluster.router.server_info()))
        parts = ", ".join(f"{part} {took:.1f} s" for part, took in cluster.seconds.items())
        console.print(f"up after {up:.1f} s ({parts}), first token after {first:.1f} s")
        stopping = time.monotonic()
    console.print(f"stopped in {time.monotonic() - stopping:.1f} s; "
                  f"{seconds_since_command():.1f} s in all")  # fmt: skip


def _ask_all(console: Console, cluster: Cluster, rng: random.Random) -> float:
    """Ask a question of each kind over each protocol.

    Returns the seconds from the command's start to the first token.
    """
    firsts: list[float] = []
    right = asked = 0
    for protocol in ("gRPC", "OpenAI HTTP"):
        console.rule(f"[bold]{protocol}", align="left")
        for task, length in zip(2 * LEARNT, LENGTHS, strict=True):
            question = draw(rng, task, length)
            console.print(f"[cyan]{task}[/] [dim]… {escape(_tail(question))}[/]", end=" ")

            def show(text: str) -> None:
                firsts.append(seconds_since_command())
                console.print(f"[bold]{escape(text)}[/]", end="")

            if protocol == "gRPC":
                reply = ask_grpc(cluster.grpc_address, question.text, MAX_TOKENS, show)
            else:
                reply = ask_openai(cluster.http_url, question.text, MAX_TOKENS, show)
            expected = [word for word in question.answer if word != END]
            correct = reply.text.split() == expected
            right, asked = right + correct, asked + 1
            mark = "[green]right[/]" if correct else f"[red]wrong: {' '.join(expected)}[/]"
            console.print(f"  {mark}")
            console.print(f"  [dim]{length} tokens in; {second_token(reply.timings)}[/]")
            console.print(f"  [dim]{first_token(reply.timings)}[/]")
    console.rule(f"[bold]{right} of {asked} right", align="left")
    return firsts[0]


def _tail(question: Question) -> str:
    return " ".join(question.prompt[-SHOWN_WORDS:])


def main() -> None:
    try:
        demo(standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except DeployError as err:
        click.echo(f"demo: {err}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
