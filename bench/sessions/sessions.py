"""`baton bench sessions`: what a router costs, and how many routers 64 ranks need."""

import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from baton.bench.cluster.load import figures
from baton.bench.contract import (
    Report,
    json_option,
    numbers_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.bench.sessions.chat_model import write_chat_model
from baton.bench.sessions.curve import Curve, Polyline, draw
from baton.bench.sessions.mix import Lengths, draw_mix
from baton.bench.sessions.request_cpu import CountedRouter
from baton.bench.sessions.rig import LOOP, Rig, Round, rig
from baton.bench.sessions.router_cost import MOST_BUSY, Counted, RouterCost
from baton.deploy.certs.cluster_credentials import cluster_credentials

CONTEXT = 1 << 18  # tokens; the longest prompt of the mix fits
IDLE_S = 3.0
RANK_TOK_S = (500, 1000, 2000, 4000)
"""Tokens a second of one rank for which the routers are counted."""
FITTED_RANKS, FITTED_REQUESTS = 16, (1, 4, 16)
"""The rounds from which the costs of a message and of a token are told apart."""
KIND_STREAMS = 16
"""Streams on each rank in the rounds of one kind of answer."""
_CHAT = {"messages": [{"role": "user", "content": "Write a haiku."}]}
_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
_TOOL = {"type": "function", "function": {"name": "read", "parameters": _PARAMETERS}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": "Write a haiku."}),
    "top5": ("/v1/completions", {"prompt": "Write a haiku.", "logprobs": 5}),
    "chat": ("/v1/chat/completions", _CHAT),
    "tools": ("/v1/chat/completions", _CHAT | {"tools": [_TOOL]}),
}
"""The path and the body of each kind of stream."""


@click.command("sessions")
@click.option("--ranks", default="1,4,16,64", show_default=True,
              help="Numbers of ranks; the last is also played against two routers.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=4, show_default=True,
              help="Concurrent requests on each rank.")  # fmt: skip
@click.option("--step-ms", type=click.FloatRange(1), default=40.0, show_default=True,
              help="Time of a rank's step, which gives each of its requests a token.")  # fmt: skip
@click.option("--output-len", type=click.IntRange(2), default=96, show_default=True)
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              default=None,
              help="A request trace for the mix; a synthetic mix when left out.")  # fmt: skip
@click.option("--mix-requests", type=click.IntRange(1), default=256, show_default=True,
              help="Requests of the mix, all at once.")  # fmt: skip
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File for the curves.")  # fmt: skip
@repeats_option
@seed_option
@json_option
def sessions(
    ranks: str,
    requests: int,
    step_ms: float,
    output_len: int,
    trace: Path | None,
    mix_requests: int,
    svg: Path | None,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure a router's CPU time a token with many ranks that answer canned tokens: real routers,
    real gRPC and certificates, no engines.

    us_token_N: CPU of the router with N ranks; loop_us_token_N: of its event loop alone, which is
    what limits it. us_token_KIND: with 16 streams a rank on the last number of ranks, of text, of
    text with five log probabilities a token, of a chat, and of a chat that may call a tool.
    tok_s_router: tokens a second at which that thread would be full.
    message_us, token_us, request_us: of the loop for a message, a token and a request of the mix;
    the first two are fitted to rounds with 1, 4 and 16 requests a rank, whose tokens contain the
    starts of their requests. predicted_us_token_64: what
    they say of the round with so many ranks. routers_R: routers for the last number of ranks at R
    tokens a second each, with steps of --step-ms and requests as in the mix, none busier than 0.7
    of a core. The ranks are divided among them: a router that joins a rank pays for a message of
    each of its steps.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    counts = numbers_option(ranks, "--ranks")
    plan = _Plan(counts, requests, step_ms / 1000, output_len, trace, mix_requests)
    issued = max(counts[-1], FITTED_RANKS)  # certificates
    with tempfile.TemporaryDirectory() as folder:
        model = write_chat_model(Path(folder) / "model", CONTEXT)
        with (
            cluster_credentials(None) as credentials,
            rig(model, credentials, 2, issued, random.Random(seed)) as up,
        ):
            rounds = [plan.measured(up, random.Random(seed + i)) for i in range(repeats)]
    results = summarise(rounds)
    results |= _routers_needed(results, counts[-1], step_ms / 1000)
    if svg is not None:
        svg.write_text(draw(_curves(results, counts, step_ms / 1000)))
    settings = {
        "requests_a_rank": requests,
        "step_ms": step_ms,
        "output_len": output_len,
        "mix": "synthetic" if trace is None else str(trace),
        "mix_requests": mix_requests,
        "repeats": repeats,
        "seed": seed,
    }
    show(Report("sessions", settings, {"ranks": counts[-1]} | results), json_wanted)


@dataclass(frozen=True)
class _Plan:
    """The rounds of one repeat."""

    counts: Sequence[int]
    requests: int
    step_s: float
    output_len: int
    trace: Path | None
    mix_requests: int

    def measured(self, up: Rig, rng: random.Random) -> dict[str, float]:
        found: dict[str, float] = {}
        for count in self.counts:
            with up.ranks(count, self.step_s):
                if count == self.counts[-1]:
                    found["idle_cpu_pct"] = up.idle_percent(IDLE_S)
                even = up.play(self._even(count))
                found |= _named(even, f"_{count}")
        most = self.counts[-1]
        cost = self._cost(up)
        found |= {"message_us": cost.message_us, "token_us": cost.token_us}
        found[f"predicted_us_token_{most}"] = cost.of(even.messages, even.tokens) / even.tokens
        with up.ranks(most, self.step_s, routers=2):
            found |= _named(up.play(self._even(most), routers=2), f"_{most}_two_routers")
        with up.ranks(most, self.step_s):
            mix = draw_mix(self.trace, self.mix_requests, rng)
            played = up.play(mix)
            found |= _named(played, "_mix")
            found["request_us"] = cost.request_us(_counted(played))
            found["mix_prompt_tokens"] = sum(each.prompt for each in mix) / len(mix)
            found["mix_answer_tokens"] = sum(each.answer for each in mix) / len(mix)
            found |= {f"us_token_{kind}": self._kind(up, kind) for kind in KINDS}
        with up.ranks(most, self.step_s / 8):
            full = up.play(self._even(most))
            found |= {"tok_s_full": full.tok_s, "offered_tok_s_full": self._offered(most) * 8}
        found["tok_s_router"] = 1e6 / found[f"loop_us_token_{most}"]
        return found

    def _kind(self, up: Rig, kind: str) -> float:
        """Return the first router's CPU microseconds for a token of one kind of stream."""
        path, body = KINDS[kind]
        given = {"max_tokens": self.output_len, "ignore_eos": True, "stream": True}
        bodies = [json.dumps(body | given).encode()] * (self.counts[-1] * KIND_STREAMS)
        router = CountedRouter(up.addresses[0], partial(up.cpu_s, 0))
        return router.cost(path, bodies, len(bodies)) / self.output_len

    def _cost(self, up: Rig) -> RouterCost:
        """Measure what a message and a token cost a router."""
        rounds = []
        for requests in FITTED_REQUESTS:
            with up.ranks(FITTED_RANKS, self.step_s):
                shape = [Lengths(32, self.output_len)] * (FITTED_RANKS * requests)
                rounds.append(_counted(up.play(shape)))
        return RouterCost.fitted(rounds)

    def _even(self, ranks: int) -> list[Lengths]:
        return [Lengths(32, self.output_len)] * (ranks * self.requests)

    def _offered(self, ranks: int) -> float:
        return ranks * self.requests / self.step_s


def _named(played: Round, name: str) -> dict[str, float]:
    latencies = figures(played.answers, 0)
    threads = {
        f"thread_{thread}_us_token{name}": played.us_token(thread)
        for thread in sorted(played.cpu_s)
        if thread != LOOP and played.us_token(thread) >= 0.5
    }
    return {
        f"us_token{name}": played.us_token(),
        f"loop_us_token{name}": played.us_token(LOOP),
        f"tok_s{name}": played.tok_s,
        f"itl_ms_p99{name}": latencies["itl_ms_p99"],
    } | (threads if name.endswith("_two_routers") or name == "_mix" else {})


def _counted(played: Round) -> Counted:
    loop_us = played.us_token(LOOP) * played.tokens
    return Counted(played.messages, played.tokens, len(played.answers), loop_us)


def _needed(results: dict[str, float], ranks: int, rank_tok_s: float, step_s: float) -> float:
    cost = RouterCost(results["message_us"], results["token_us"])
    answer = results["mix_answer_tokens"]
    return cost.routers(ranks, rank_tok_s, step_s, results["request_us"], answer)


def _routers_needed(results: dict[str, float], ranks: int, step_s: float) -> dict[str, float]:
    return {
        f"routers_{rate}": math.ceil(_needed(results, ranks, rate, step_s)) for rate in RANK_TOK_S
    }


def _curves(results: dict[str, float], counts: Sequence[int], step_s: float) -> list[Curve]:
    def line(name: str, key: str) -> Polyline:
        return Polyline(name, [(count, results[f"{key}_{count}"]) for count in counts])

    most = counts[-1]
    rates = [rate * step / 4 for rate in RANK_TOK_S for step in range(1, 5)]
    needed = [(rate, _needed(results, most, rate, step_s)) for rate in sorted({*rates})]
    return [
        Curve(
            "CPU time of a router a token", "ranks", "µs",
            [line("all threads", "us_token"), line("event loop", "loop_us_token")],
        ),
        Curve(
            f"Routers for {most} ranks, each at most {MOST_BUSY:.0%} busy",
            "tokens a second of each rank", "routers", [Polyline("mix of the trace", needed)],
        ),
    ]  # fmt: skip
