"""The bench of a router with many ranks of canned tokens."""

import json
import os
import random
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import click
import httpx
import pytest

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster.thread_cpu import thread_seconds
from baton.bench.contract import numbers_option
from baton.bench.sessions.chat_model import write_chat_model
from baton.bench.sessions.curve import HEIGHT, WIDTH, Curve, Polyline, draw
from baton.bench.sessions.mix import Lengths, draw_mix
from baton.bench.sessions.rig import LOOP, rig
from baton.bench.sessions.router_cost import Counted, RouterCost
from baton.bench.sessions.sessions import KINDS
from baton.deploy.certs.cluster_credentials import cluster_credentials

TINY = {**GRANITE_SMALL, "hidden_size": 64, "mamba_n_heads": 4, "num_attention_heads": 4}


def test_two_real_routers_pass_on_every_canned_token_of_three_ranks(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", TINY)
    wanted = [Lengths(5, 7), Lengths(40, 3), Lengths(9, 12), Lengths(1, 2)]
    with (
        cluster_credentials(None) as credentials,
        rig(
            model, credentials, 2, 3, random.Random(random.randrange(1 << 32)), lease_ms=60_000
        ) as up,
    ):
        for routers in (1, 2):
            with up.ranks(3, 0.005, routers):
                played = up.play(wanted, routers)
            assert [len(a.token_ids) for a in played.answers] == [each.answer for each in wanted]
            assert played.answers[2].token_ids == tuple(range(40, 52))
            assert played.tokens == 24 and played.tok_s > 0
            assert 12 <= played.messages <= 24  # the longest answer's steps; a step of each token
            assert 0 < played.us_token(LOOP) <= played.us_token()


def test_each_kind_of_stream_has_all_its_tokens(tmp_path: Path) -> None:
    model, rng = write_chat_model(tmp_path / "model"), random.Random(3)
    with cluster_credentials(None) as credentials, rig(model, credentials, 1, 1, rng) as up:
        with up.ranks(1, 0.002):
            for path, body in KINDS.values():
                whole = {**body, "max_tokens": 9, "stream": True}
                usage = {"stream_options": {"include_usage": True}}
                reply = httpx.post(f"{up.urls[0]}{path}", json=whole | usage, timeout=60)
                events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
                assert events.pop() == "[DONE]"
                assert json.loads(events.pop())["usage"]["completion_tokens"] == 9
                scored = [json.loads(each)["choices"][0].get("logprobs") for each in events]
                found = [top for each in scored if each for top in each["top_logprobs"]]
                assert len(found) == (9 if "logprobs" in body else 0)
                assert {len(top) for top in found} <= {5}


def test_costs_of_messages_tokens_and_requests_are_told_apart() -> None:
    rounds = [
        Counted(m, t, 4, 230.0 * m + 27.0 * t) for m, t in ((100, 100), (100, 400), (50, 800))
    ]
    cost = RouterCost.fitted(rounds)
    assert (cost.message_us, cost.token_us) == pytest.approx((230.0, 27.0))
    mix = Counted(90, 100, 5, 230.0 * 90 + 27.0 * 100 + 5 * 900.0)
    assert cost.request_us(mix) == pytest.approx(900.0)
    # A rank of 1,000 tokens a second in steps of 25 ms: 40 messages, and 10 requests, each second.
    busy = (40 * 230 + 1000 * 27 + 10 * 900) / 1e6
    assert cost.routers(64, 1000.0, 0.025, 900.0, 100.0) == pytest.approx(64 * busy / 0.7)
    # Slower than its steps: each token has a message.
    assert cost.routers(1, 10.0, 0.025, 0.0, 100.0) == pytest.approx(10 * 257 / 1e6 / 0.7)


def test_no_cost_is_negative() -> None:
    falling = [Counted(100, 100, 1, 1000.0), Counted(25, 100, 1, 4000.0)]
    assert RouterCost.fitted(falling) == RouterCost(0.0, 25.0)
    through_0 = [Counted(100, 100, 1, 5000.0), Counted(50, 100, 1, 1000.0)]
    assert RouterCost.fitted(through_0).token_us == 0.0


def test_cpu_time_is_counted_by_thread() -> None:
    over = threading.Event()
    spinning = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    spinning.start()
    names = {spinning.native_id or 0: "spinning", threading.get_native_id(): "this"}
    try:
        before = thread_seconds(os.getpid(), names)
        deadline = time.monotonic() + 60
        while thread_seconds(os.getpid(), names)["spinning"] < before["spinning"] + 0.05:
            assert time.monotonic() < deadline
    finally:
        over.set()
        spinning.join()
    assert thread_seconds(os.getpid(), names)["this"] >= before["this"] > 0


def test_a_mix_without_a_trace_has_the_statistics_of_one() -> None:
    mix = draw_mix(None, 4000, random.Random(5))
    assert 10_000 < sum(each.prompt for each in mix) / len(mix) < 14_000
    assert sorted(each.prompt for each in mix)[2000] == pytest.approx(6900, rel=0.1)
    assert min(each.answer for each in mix) >= 2


def test_a_mix_of_a_trace_has_its_lengths(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": %d, "output_length": %d, "hash_ids": [1]}\n'
    (tmp_path / "trace").write_text(line % (700, 8) + line % (900, 9))
    drawn = draw_mix(tmp_path / "trace", 50, random.Random(1))
    assert set(drawn) == {Lengths(700, 8), Lengths(900, 9)}


def test_curves_are_svg_with_each_point_inside_its_chart() -> None:
    lines = [Polyline("a < b", [(1, 10.0), (64, 80.0)]), Polyline("c", [(1, 5.0), (64, 3.0)])]
    drawn = ElementTree.fromstring(draw([Curve("one", "x", "y", lines)] * 2))
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 2 * 4
    for circle in circles:
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT
    heights = [float(circle.attrib["cy"]) for circle in circles[:2]]
    assert heights[0] > heights[1], "larger values stand higher"


def test_numbers_are_read_in_any_order_and_others_refused() -> None:
    assert numbers_option("4,2", "--ranks", more=(1,)) == [1, 2, 4]
    for wrong in ("", "0", "2,x"):
        with pytest.raises(click.BadParameter, match="such as 1,4,16"):
            numbers_option(wrong, "--ranks")
