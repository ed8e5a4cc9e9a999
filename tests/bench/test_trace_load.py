"""A trace's requests as a load."""

import json
import random
from pathlib import Path

import pytest

from baton.bench.cluster.stream_client import StreamedAnswer
from baton.bench.cluster.trace_load import (
    TraceLoad,
    cacheable_share,
    conversations,
    figures,
    sample,
)
from baton.bench.prefix.trace import TraceRequest, read

TRACE = [
    TraceRequest(0, 1000, 80, (0, 1)),
    TraceRequest(500, 700, 40, (0, 2)),
    TraceRequest(1000, 2000, 8, (0, 1, 3, 4)),
    TraceRequest(4000, 100, 16, (0,)),
]


def test_a_conversation_is_drawn_whole_and_in_order() -> None:
    assert [len(each) for each in conversations(TRACE)] == [2, 1, 1]
    for seed in range(8):
        drawn = sample(TRACE, 2, random.Random(seed))
        assert drawn == sorted(drawn, key=lambda request: request.timestamp)
        assert (TRACE[0] in drawn) == (TRACE[2] in drawn)
        assert 2 <= len(drawn) <= 3
    assert sample(TRACE, 99, random.Random(0)) == TRACE


def test_what_one_cache_would_have_is_counted_to_the_first_new_block() -> None:
    assert cacheable_share(TRACE) == pytest.approx((0 + 512 + 1024 + 100) / 3800)


def test_prompts_share_what_the_traces_do_and_arrive_at_the_rate() -> None:
    load = TraceLoad(TRACE, 2.0, 8, 200, 512)
    assert load.due_s() == pytest.approx([0, 0.25, 0.5, 2.0])
    first, second, third, last = load.prompts(7)
    assert [len(each) for each in (first, second, third, last)] == [125, 87, 198, 12]
    assert first[:64] == second[:64] and first[64:87] != second[64:]
    assert third[:125] == first and last == first[:12]
    assert [load.output_len(request) for request in TRACE] == [10, 5, 2, 2]
    other = load.prompts(8)
    assert other[0][:64] != first[:64]


def test_goodput_counts_what_came_in_time() -> None:
    def answer(sent: float, first: float) -> StreamedAnswer:
        return StreamedAnswer(sent, (first, first + 0.5), (1, 2), 3, {})

    found = figures([answer(0, 0.1), answer(1, 3.5)], [[1] * 4, [1] * 8], 1.0)
    assert found["goodput_requests_s"] == pytest.approx(1 / 4)
    assert found["cached_share"] == pytest.approx(0.5)
    assert (found["ttft_ms_p50"], found["ttft_ms_p99"]) == pytest.approx((100, 2500))
    assert found["itl_ms_p99"] == pytest.approx(500)


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    good = {"timestamp": 0, "input_length": 3, "output_length": 2, "hash_ids": [1]}
    file.write_text(json.dumps(good) + "\n{}\n")
    with pytest.raises(Exception, match="line 2"):
        read(file)
