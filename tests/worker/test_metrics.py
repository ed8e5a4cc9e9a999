"""A worker's metrics: by how much each call makes which series grow."""

from collections.abc import Callable
from typing import Any

import pytest
from samples import grown, samples

from baton.core.role import Role
from baton.decode.request_timings import RequestTimings
from baton.engine.cache.cached_pools import FileCounts
from baton.engine.cache.eviction_causes import Shortages
from baton.engine.layout.owners import Owner
from baton.engine.settings.counters import Counters
from baton.engine.status import EngineStatus
from baton.proto import handoff_pb2
from baton.transfer.handoff import HandoffState
from baton.transfer.memory.segments import Kind
from baton.worker.metrics import WorkerMetrics

T = "baton_worker_"
OWN = {"worker": "decode-0", "role": "decode"}


def made() -> WorkerMetrics:
    return WorkerMetrics("decode-0", Role.DECODE)


def effect(call: Callable[[WorkerMetrics], Any], metrics: WorkerMetrics | None = None) -> Any:
    metrics = metrics or made()
    before = samples(metrics.registry, tuple(OWN))
    call(metrics)
    found = grown(before, samples(metrics.registry, tuple(OWN)))
    return {name.removeprefix(T): value for name, value in found.items()}


def test_every_series_names_its_worker_and_role() -> None:
    metrics = made()
    metrics.set_counters(Counters())
    for name, labels in samples(metrics.registry):
        assert OWN.items() <= dict(labels).items(), name


def test_tokens_count_by_kind_and_both_kinds_begin_at_0() -> None:
    assert effect(lambda m: m.count_tokens("output", 5)) == {"tokens_total{kind=output}": 5}
    assert effect(lambda m: m.count_tokens("prompt", 7)) == {"tokens_total{kind=prompt}": 7}
    found = samples(made().registry, tuple(OWN))
    assert [found[(T + "tokens_total", (("kind", kind),))] for kind in ("output", "prompt")] == [
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("count", "name"),
    [
        (WorkerMetrics.count_request, "requests"),
        (WorkerMetrics.count_prefill, "prefills"),
        (WorkerMetrics.count_fetch, "prefix_fetches"),
    ],
)
def test_an_outcome_counts_once(count: Callable[[WorkerMetrics, str], None], name: str) -> None:
    assert effect(lambda m: count(m, "stop")) == {f"{name}_total{{outcome=stop}}": 1}


def test_times_are_seconds() -> None:
    assert effect(lambda m: m.observe_step(0.25)) == {
        "step_seconds_sum": 0.25,
        "step_seconds_count": 1,
    }
    assert effect(lambda m: m.set_lag(1.5)) == {"engine_lag_seconds": 1.5}
    assert effect(lambda m: m.transfers.set_links({"d1": 5.0})) == {
        "link_bandwidth_bytes{peer=d1}": 5.0
    }


def test_bytes_and_moves_count_where_they_went() -> None:
    assert effect(lambda m: m.transfers.count_sent(Kind.KV, 64)) == {
        "sent_bytes_total{kind=kv}": 64
    }
    assert effect(lambda m: m.transfers.count_received(Kind.STATE, 96)) == {
        "received_bytes_total{kind=state}": 96
    }
    source, to = HandoffState.RESERVED, HandoffState.WRITING
    assert effect(lambda m: m.transfers.count_move(source, to)) == {
        f"incoming_handoff_transitions_total{{from={source},to={to}}}": 1
    }
    assert effect(lambda m: m.transfers.set_handoffs(to, 3)) == {
        f"incoming_handoffs{{state={to}}}": 3
    }
    assert effect(lambda m: m.transfers.observe_writing(0.5)) == {
        "handoff_writing_seconds_sum": 0.5,
        "handoff_writing_seconds_count": 1,
    }


def test_the_status_shows_slots_and_pages_by_owner() -> None:
    status = EngineStatus(
        running=3, waiting=4, queued_tokens=12, held=5, slots={Owner.LIVE: 6, Owner.FREE: 7},
        pages={Owner.LIVE: 8, Owner.CACHE: 9}, shortages=Shortages(), max_running=10,
        max_model_len=11, decode_step_s=0.1, prompt_token_s=0.2, beside_decode=32,
        host_slots={Owner.CACHE: 12}, host_pages={Owner.CACHE: 13, Owner.FREE: 14},
        host_saving=15, host_loading=16, files=FileCounts(17, 18, 19, writing=20, reading=21),
    )  # fmt: skip
    metrics = made()
    for _ in range(2):  # gauges: the second time changes nothing
        found = effect(lambda m: m.set_status(status), metrics)
        assert found in (
            {
                "requests_running": 3, "requests_waiting": 4,
                "slots{owner=live}": 6, "slots{owner=free}": 7,
                "pages{owner=live}": 8, "pages{owner=cache}": 9,
                "host_slots{owner=cache}": 12,
                "host_pages{owner=cache}": 13, "host_pages{owner=free}": 14,
                "host_copies{kind=save}": 15, "host_copies{kind=load}": 16,
                "files": 17, "file_bytes": 18, "file_limit_bytes": 19,
                "file_copies{kind=write}": 20, "file_copies{kind=read}": 21,
            },
            {},
        )  # fmt: skip
    assert not found


def test_the_engines_counters_are_exported_as_they_are() -> None:
    counters = Counters()
    counters.snapshots_evicted, counters.pages_evicted = 3, 5
    metrics = made()
    for _ in range(2):
        metrics.set_counters(counters)
    found = samples(metrics.registry, tuple(OWN))
    assert found[("baton_engine_snapshots_evicted_total", ())] == 3
    assert found[("baton_engine_pages_evicted_total", ())] == 5


def test_lengths_of_accepted_runs_are_a_histogram() -> None:
    counters = Counters()
    counters.accepted_length_tokens = (5, 0, 2, 1, 0, 0, 0, 1)
    metrics = made()
    metrics.set_counters(counters)
    (found,) = [
        family
        for family in metrics.registry.collect()
        if family.name == "baton_engine_accepted_length_tokens"
    ]
    assert found.type == "histogram"
    values = {(s.name, s.labels.get("le")): s.value for s in found.samples}
    name = "baton_engine_accepted_length_tokens"
    below = [values[f"{name}_bucket", f"{length}.0"] for length in range(1, 9)]
    assert below == [5, 5, 7, 8, 8, 8, 8, 9]
    assert values[f"{name}_bucket", "+Inf"] == values[f"{name}_count", None] == 9
    assert values[f"{name}_sum", None] == 5 + 6 + 4 + 8


def test_each_part_of_a_requests_time_on_the_rank_is_observed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("baton.decode.request_timings.time.monotonic", lambda: now[0])
    metrics = made()

    def life(metrics: WorkerMetrics) -> None:
        timings = RequestTimings(metrics)
        timings.on_first_token(handoff_pb2.FirstToken())
        now[0] = 102.0
        timings.on_complete(layers_ended_s=101.5)
        timings.on_launched(105.0)
        timings.on_first_step_ended(111.0)

    assert effect(life, metrics) == {
        f"{name}_seconds_{kind}": value
        for name, seconds in {
            "transfer": 2.0, "decode_wait": 3.0, "prefill_to_decode": 3.5, "first_decode_step": 6.0,
        }.items()
        for kind, value in (("sum", seconds), ("count", 1))
    }  # fmt: skip
