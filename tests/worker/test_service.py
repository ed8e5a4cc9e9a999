"""Tests of the calls that every worker answers."""

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import operator
from engine.engines import greedy, make_engine
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from worker.cluster import (
    DEADLINE_S,
    decode_worker,
    metrics_of,
    prefill_worker,
    running,
    session,
)

from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.proto import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.worker.config import WorkerConfig


async def test_status_audit_and_health_answer(seeded: random.Random) -> None:
    prefill, decode = prefill_worker("p5"), decode_worker("d5")
    async with running(prefill, decode), session(decode) as client:
        _, answer = await client.start((5, 6, 7), greedy(3), [prefill])
        await answer.end()
        await decode.clean()
        for worker, service in ((prefill, "baton.v1.Handoff"), (decode, "baton.v1.Rank")):
            async with operator().dial_worker(worker.identity, OPTIONS) as channel:
                stub = worker_pb2_grpc.WorkerStub(channel)
                status = await stub.Status(worker_pb2.StatusRequest())
                assert status.worker == worker.identity
                assert (status.running, status.waiting) == (0, 0)
                assert status.pid == worker.started.pid
                plan = {part.name: part.text for part in status.memory_plan}
                assert list(plan)[:2] == ["budget", "weights"] and plan["pages"]
                other = decode if worker is prefill else prefill
                assert [p.worker_id for p in status.peers] == [other.context.worker_id]
                audit = await stub.Audit(worker_pb2.AuditRequest())
                assert audit.clean and not audit.findings
                check = health_pb2_grpc.HealthStub(channel).Check
                for name in ("", service):
                    reply = await check(health_pb2.HealthCheckRequest(service=name))
                    assert reply.status == health_pb2.HealthCheckResponse.SERVING
                await _no_reflection(channel)


async def _no_reflection(channel: aio.Channel) -> None:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_flush_waits_for_idle_and_then_empties_the_cache() -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as client:
        async with operator().dial_worker(prefill.identity, OPTIONS) as channel:
            flush = worker_pb2_grpc.WorkerStub(channel).FlushCache
            await client.start(tuple(range(40)), greedy(3), [prefill])
            prefill.model.gate.allow(1)
            await prefill.opened(1)
            busy = asyncio.ensure_future(flush(worker_pb2.FlushCacheRequest(timeout_ms=1)))
            prefill.model.gate.open()
            reply = await flush(worker_pb2.FlushCacheRequest(timeout_ms=round(1000 * DEADLINE_S)))
            assert not reply.HasField("error")
            late = await busy
            if late.HasField("error"):
                assert late.error.code == common_pb2.DEADLINE_EXCEEDED


async def test_a_router_gets_the_metrics(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as client:
        _, answer = await client.start((5, 6, 7), greedy(3), [prefill])
        await answer.end()
        await decode.clean()
        await prefill.clean()
        text = await metrics_of(decode)
        for line in (
            'baton_worker_requests_total{outcome="length",role="decode",worker="d0"} 1.0',
            "baton_worker_incoming_handoff_transitions_total"
            '{from="complete",role="decode",to="active",worker="d0"} 1.0',
            'baton_worker_incoming_handoffs{role="decode",state="active",worker="d0"} 0.0',
        ):
            assert line in text
        text = await metrics_of(prefill)
        assert (
            'baton_worker_prefills_total{outcome="handed_over",role="prefill",worker="p0"} 1.0'
            in text
        )
        assert 'baton_worker_tokens_total{kind="prompt",role="prefill",worker="p0"} 3.0' in text
        for line in (
            'baton_worker_handoff_writing_seconds_count{role="prefill",worker="p0"} 0.0',
            'baton_worker_memory_budget_bytes{role="prefill",worker="p0"} '
            f"{float(prefill.engine.plan.budget_bytes)}",
        ):
            assert line in text
        planned = prefill.context.metrics.registry.get_sample_value
        labels = {"role": "prefill", "worker": "p0"}
        plan = prefill.engine.plan
        parts = ("weights", "steps", "request_tables", "slots", "pages")
        name = "baton_worker_memory_planned_bytes"
        assert sum(planned(name, labels | {"part": part}) for part in parts) <= plan.budget_bytes
        assert planned("baton_worker_memory_used_bytes", labels) > 1 << 20


async def test_a_worker_in_a_long_step_still_shows_its_metrics() -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as client:
        prefill.model.gate.allow(0)
        _, answer = await client.start((5, 6, 7), greedy(3), [prefill])
        await prefill.blocked()
        assert 'worker="p0"' in await metrics_of(prefill)
        prefill.model.gate.open()
        await answer.end()
        await decode.clean()
        await prefill.clean()


async def test_a_port_that_is_taken_is_named() -> None:
    first = prefill_worker()
    async with running(first):
        port = int(first.started.address.rpartition(":")[2])
        second = prefill_worker("p1")
        object.__setattr__(second.runtime._config, "grpc_port", port)
        with pytest.raises(ConfigError, match=str(port)):
            await second.runtime.start()


def test_options_that_cannot_work_are_refused() -> None:
    engine = make_engine().config
    right: dict[str, Any] = {
        "worker_id": "w",
        "role": Role.PREFILL,
        "engine": engine,
        "credentials": Path("c"),
    }
    for wrong, named in (
        ({"worker_id": ""}, "worker_id"),
        ({"channel": "pigeon"}, "pigeon"),
        ({"lease_ms": 1}, "lease_ms"),
        ({"role": Role.DECODE, "worker_id": "w3"}, "ticket"),
        ({"role": Role.DECODE}, "ends? with its number"),
        ({"credentials": None}, "certificate"),
        ({"role": Role.BOTH}, "stands alone"),
    ):
        with pytest.raises(ConfigError, match=named):
            WorkerConfig(**(right | wrong))


async def test_an_engine_that_stops_ends_its_requests_and_the_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as client:

        def broken(*_: object) -> None:
            raise AssertionError("the books do not balance")

        # Outside a step's own errors: the loop ends.
        monkeypatch.setattr(decode.engine, "plan_step", broken)
        _, answer = await client.start((5, 6, 7), greedy(3), [prefill])
        finished = await answer.end()
        assert finished.error.code == common_pb2.UNAVAILABLE
        assert finished.error.message.startswith("engine ended: AssertionError")
        _, later = await client.start((5, 6, 7), greedy(3), [prefill])
        assert (await later.end()).error.code == common_pb2.UNAVAILABLE
        async with operator().dial_worker(decode.identity, OPTIONS) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(aio.AioRpcError) as failed:
                stub = worker_pb2_grpc.WorkerStub(channel)
                await stub.Status(worker_pb2.StatusRequest(), timeout=DEADLINE_S)
            assert failed.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        await prefill.clean()
