"""`baton replay`: send the requests of a dump again, with their timing, and measure."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvloop

from baton.bench.cluster.load import DEADLINE_S, figures
from baton.bench.cluster.stream_client import (
    Exchange,
    RequestFailed,
    StreamedAnswer,
    exchange,
)
from baton.bench.contract import Report, json_option, percentile, seed_option, show
from baton.bench.request_replay.bodies import FIRST_ID, Bodies
from baton.bench.request_replay.dumps import Dumped, read_dumps
from baton.core.errors import ConfigError
from baton.deploy.client.router_options import RouterAddress, RouterChoice, router_from
from baton.deploy.options.click_options import takes


@click.command("replay")
@click.argument("dump", type=click.Path(exists=True, path_type=Path))
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
              help="Pace: 2 sends in half the time.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), default=None,
              help="Send the first so many requests; all when left out.")  # fmt: skip
@click.option("--vocab-size", type=click.IntRange(FIRST_ID + 1), default=256, show_default=True,
              help="Synthetic prompts are drawn from token ids below this.")  # fmt: skip
@takes(RouterChoice)
@seed_option
@json_option
def replay(
    choice: RouterChoice,
    dump: Path,
    speed: float,
    limit: int | None,
    vocab_size: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Send the requests of DUMP (a folder of `baton serve --dump-requests`, or one of its files)
    to a running cluster, at the times at which they came, and print the figures of `baton bench
    serve`.

    Redacted requests have synthetic prompts with the recorded lengths and shared beginnings, and
    answers with the recorded number of tokens.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    server = router_from(choice)
    try:
        requests = read_dumps(dump)[:limit]
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    bodies = Bodies(seed, vocab_size)
    lost = Counter(name for dumped in requests for name in bodies.lost(dumped))
    for name, count in lost.items():
        click.echo(
            f"{count} requests are sent without {name}, which no stream can ask for", err=True
        )
    sent = _play(server, [(d.at_s / speed, bodies.body(d)) for d in requests])
    settings = {"dump": str(dump), "url": server.url, "speed": speed, "seed": seed}
    for line in sent.complaints():
        click.echo(line, err=True)
    show(Report("replay", settings, sent.figures(requests)), json_wanted)


@dataclass(frozen=True)
class _Sent:
    """The replies, in the order of the requests, and how late each request was sent (seconds)."""

    answers: Sequence[StreamedAnswer | RequestFailed]
    late_s: Sequence[float]

    def figures(self, requests: Sequence[Dumped]) -> dict[str, float]:
        """Return the measurements. Raises click.ClickException where no request was answered."""
        good = [
            (answer, dumped.record.prompt_tokens)
            for answer, dumped in zip(self.answers, requests, strict=True)
            if isinstance(answer, StreamedAnswer)
        ]
        if not good:
            raise click.ClickException("no request was answered")
        read = sum(tokens for _, tokens in good)
        cached = sum(answer.cached_tokens for answer, _ in good)
        return {
            "requests": len(requests),
            "failed": len(requests) - len(good),
            **figures([answer for answer, _ in good], read),
            "hit_rate": cached / read,
            "late_ms_p99": percentile([late * 1e3 for late in self.late_s], 0.99),
        }

    def complaints(self) -> list[str]:
        """Return a line for each kind of failure, with its number."""
        reasons = [str(answer) for answer in self.answers if isinstance(answer, RequestFailed)]
        return [f"{reasons.count(reason)} failed: {reason}" for reason in dict.fromkeys(reasons)]


def _play(server: RouterAddress, requests: Sequence[tuple[float, Mapping[str, Any]]]) -> _Sent:
    """Send each request at its time, in seconds after the first."""

    async def one(
        begin: float, at_s: float, body: Mapping[str, Any]
    ) -> tuple[float, Exchange | RequestFailed]:
        await asyncio.sleep(begin + at_s - time.perf_counter())
        late = time.perf_counter() - begin - at_s
        try:
            return late, await exchange(server, body, DEADLINE_S)
        except RequestFailed as error:
            return late, error

    async def all_() -> list[tuple[float, Exchange | RequestFailed]]:
        begin = time.perf_counter()
        return list(await asyncio.gather(*(one(begin, at, body) for at, body in requests)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        replies = runner.run(all_())
    return _Sent([_parsed(reply) for _, reply in replies], [late for late, _ in replies])


def _parsed(reply: Exchange | RequestFailed) -> StreamedAnswer | RequestFailed:
    if isinstance(reply, RequestFailed):
        return reply
    try:
        return reply.answer()
    except (RequestFailed, json.JSONDecodeError) as error:
        return RequestFailed(str(error))
