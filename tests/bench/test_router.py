"""The bench of a router: its client, its stand-ins and its decisions."""

import json
import random
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from baton.api.request_body import LARGE_BYTES
from baton.bench.cluster.stream_client import RequestFailed
from baton.bench.router import router as bench
from baton.bench.router.decisions import Decisions
from baton.bench.router.http_worker import serve_http
from baton.bench.router.sglang_router import missing
from baton.bench.sessions.bodies import (
    CHAT_BYTES,
    TOOLS,
    TURN_BYTES,
    TURNS,
    Conversation,
    chat_bodies,
    generate_bodies,
)
from baton.bench.sessions.http_client import post_all
from baton.bench.sessions.processes import child
from baton.router.policies.prefix_aware import PrefixAware


def test_canned_http_workers_answer_each_body_and_stream_tokens() -> None:
    bodies = [json.dumps({"text": "x"}).encode()] * 7
    with child(serve_http, (2, 0.001)) as workers:
        for url in workers.first:
            replies = post_all(f"{url}/generate", bodies, connections=3)
            assert len(replies.latencies_s) == 7 and 0 < replies.ms(0.5) <= replies.ms(1.0)
        answers = bench._streams(workers.first[0], random.Random(random.randrange(1 << 32)))
        assert [len(each.token_ids) for each in answers] == [bench.STREAM_TOKENS] * bench.STREAMS
    with pytest.raises(RequestFailed, match="127"):
        post_all(f"{workers.first[0]}/generate", bodies, connections=1)


def test_our_router_and_its_rank_are_measured_with_and_without_it() -> None:
    rng = random.Random(random.randrange(1 << 32))
    with bench._our_router(rng) as sides:
        assert len(sides.direct.ask(generate_bodies(5, rng)).latencies_s) == 5
        measured = bench._Shape(requests=10, connections=2).measured(sides, rng)
        assert min(measured["requests_s"], measured["tokens_s"], measured["direct_ms_p50"]) > 0
        kinds = ("generate", "chat", "first_turn", "turn")
        costs = [measured[f"cpu_us_request_{kind}"] for kind in kinds]
        secured = [measured[f"cpu_us_request_{kind}_secure"] for kind in kinds]
        assert min(*costs, *secured) > 0
        assert sides.secured is not None
        at = sides.secured.address
        with pytest.raises(RequestFailed, match="401"):
            post_all(f"{at.url}/generate", generate_bodies(1, rng), 1, replace(at, api_key=""))
        with pytest.raises(RequestFailed, match="not 200"):
            post_all(f"{sides.url}/generate", [b'{"x": 1}'], connections=1)


def test_each_turn_of_a_conversation_repeats_the_ones_before() -> None:
    rng = random.Random(5)
    bodies = Conversation.draw(rng).bodies()
    turns = [json.loads(body) for body in bodies]
    for before, after in pairwise(turns):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after["tools"] == before["tools"]
    assert len(turns) == TURNS and len(turns[0]["tools"]) == TOOLS
    assert {turn["messages"][-1]["role"] for turn in turns} == {"user"}
    assert all(0.75 * TURN_BYTES < len(body) < LARGE_BYTES for body in bodies)
    assert {len(body) for body in chat_bodies(9, rng)} == {CHAT_BYTES}


def test_a_python_without_the_peer_is_named_with_the_reason() -> None:
    for python, reason in ((Path("/nowhere/python"), "No such file"), (Path("/bin/false"), "pip")):
        found = missing(python)
        assert found is not None
        assert str(python) in str(found["skipped"]) and reason in str(found["skipped"])
    assert missing(Path(sys.executable)) is None or "sglang_router" not in sys.modules


def test_decisions_are_measured_with_every_report_applied() -> None:
    placed = Decisions(6, PrefixAware.name, random.Random(random.randrange(1 << 32)), prefixes=600)
    measured = placed.measure()
    assert 0 < measured["decision_us_p50"] <= measured["decision_us_p99"]
    assert measured["events_core_pct"] == pytest.approx(measured["event_us"] * 20 * 6 / 1e4)
    assert len(placed.states) == 600, "each report makes one and evicts one"
    assert {bench._numbered(key, 64) for key in measured} == {
        "decision_us_64", "decision_us_64_p50", "decision_us_64_p99", "event_us_64",
        "events_core_pct_64", "status_us_64", "statuses_core_pct_64",
    }  # fmt: skip
