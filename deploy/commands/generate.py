"""`baton generate`."""

from typing import Any

import click
from rich.console import Console

from baton.deploy.client.ask import stream_text
from baton.deploy.client.router_options import RouterChoice, router_from
from baton.deploy.options.click_options import GroupedCommand, takes
from baton.deploy.terminal.timings_line import first_token, second_token


@click.command(cls=GroupedCommand)
@click.argument("prompt")
@click.option("--chat", is_flag=True, help="The prompt is a user's message, not raw text.")
@click.option("--max-tokens", type=int, default=128, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: greedy.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Same seed, same answer.")
@click.option("--stop", multiple=True, help="End at this text; may be given several times.")
@click.option("--stream/--no-stream", default=True, help="Print text as it arrives, or at the end.")
@takes(RouterChoice)
def generate(
    choice: RouterChoice,
    prompt: str,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    stream: bool,
) -> None:
    """Ask a running cluster one question. The answer goes to standard output, timings to standard
    error.
    """
    body: dict[str, object] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "stop": list(stop),
    }
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    held: list[str] = []
    for kind, value in stream_text(router_from(choice), body, chat=chat):
        if kind == "end":
            click.echo("".join(held))
            _account(value)
        elif stream:
            click.echo(value, nl=False)
        else:
            held.append(value)


def _account(event: dict[str, Any]) -> None:
    """Print tokens, rates and timings from the stream's last event."""
    usage, timings = event["usage"], event["timings"]
    written = usage["completion_tokens"]
    writing = timings["e2e_us"] - timings["ttft_us"]
    console = Console(stderr=True, highlight=False, style="dim", soft_wrap=True)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    rate = f", {(written - 1) / writing * 1e6:.1f} tok/s" if written > 1 and writing else ""
    console.print(f"{usage['prompt_tokens']} tokens in ({cached} cached), {written} out{rate}")
    console.print(first_token(timings))
    if written > 1:
        console.print(second_token(timings))
