"""A real Prometheus reads other servers' metric names from a router and its workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from certificates import folder_of
from deploy.tiny_worker import DEADLINE_S, GRID, TINY, Client, make_worker, prompt
from kit.polling import until_answered
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import Prometheus, prometheus

from baton.bench.checkpoints import write_checkpoint
from baton.core.metric_dialect import MetricDialect
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.core.telemetry_options import TelemetryOptions
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.router.config import RouterConfig
from baton.router.server import RouterServer
from baton.rpc.metric_aliases.alias import Alias
from baton.rpc.metric_aliases.alias_collector import ALIASES

TELEMETRY = TelemetryOptions(metric_aliases=tuple(MetricDialect))
ALL = [alias for aliases in ALIASES.values() for alias in aliases]
ROLES = ("router", "prefill", "decode")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Client]:
    """A router, a prefill worker and a decode rank that drafts, each on free ports."""
    credentials = folder_of("router", "router-0")
    router = RouterServer(
        RouterConfig(folder, credentials, prefill_here=0, telemetry=TELEMETRY), ProcessSupervisor()
    )
    started = await router.start()
    try:
        routers = (started.internal_address,)
        url = f"http://{started.http_address}"
        async with (
            make_worker(folder, Role.PREFILL, routers, telemetry=TELEMETRY),
            make_worker(
                folder,
                Role.DECODE,
                routers,
                telemetry=TELEMETRY,
                speculative_algorithm=SpeculativeAlgorithm.NGRAM,
            ),
            httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
        ):
            client = Client(http, started.grpc_address)
            await client.ready()
            yield client
    finally:
        await router.stop(0.0)


def selector(alias: Alias, role: str) -> str:
    shown = f"{alias.name}_count" if alias.kind == "histogram" else alias.name
    return f'{shown}{{baton_role="{role}"}}'


async def reads(server: Prometheus, expected: Mapping[str, float]) -> None:
    """Wait until Prometheus has these values of these expressions."""
    found: dict[str, float] = {}

    def all_there() -> bool:
        found.update({expr: server.value(expr) for expr in expected})
        return found == pytest.approx(dict(expected))

    try:
        await server.until(all_there, DEADLINE_S, "the values")
    except AssertionError:
        assert found == pytest.approx(dict(expected))
        raise


async def test_prometheus_reads_each_name_with_its_value_on_router_and_workers(
    tiny: Path, tmp_path: Path
) -> None:
    rng = random.Random(20)
    ids = prompt(rng, 5 * GRID + 3)
    repeated = 3 * prompt(rng, GRID)  # which gives draft tokens
    async with cluster(tiny) as client:
        router = client.http.base_url.netloc.decode()
        with prometheus(tmp_path, router, speed=100.0) as server:
            answers = [await client.generate(ids, 12) for _ in range(2)]
            answers.append(await client.generate(repeated, 30))
            hits = [answer["meta_info"]["cached_tokens"] for answer in answers]
            assert hits == [0, 5 * GRID, 0]
            asked = 2 * len(ids) + len(repeated)
            values = EQUAL | SAME | IDLE | await pools(client)
            values |= after(3, asked, 12 + 12 + 30, 5 * GRID)
            await reads(server, values)
            assert not [alias.name for alias in ALL if not any(alias.name in at for at in values)]
            info = (await client.http.get("/server_info")).json()
            shown = server.value('sglang:spec_accept_length{baton_role="decode"}')
            assert info["internal_states"][0]["avg_spec_accept_length"] == pytest.approx(shown)
            names = [
                selector(alias, role)
                for alias in ALL
                for role in ROLES
                if alias.on_worker or role == "router"
            ]
            found = {expr: bool(await asyncio.to_thread(server.raw, expr)) for expr in names}
            assert not [expr for expr, is_there in found.items() if not is_there]

            long = asyncio.create_task(client.generate(prompt(rng, 9), 3900, rid="long"))
            busy = [f'{{baton_role="{role}"}}' for role in ("router", "decode")]
            await reads(server, {f"vllm:num_requests_running{labels}": 1.0 for labels in busy})
            held = " and ".join(f"sum(sglang:token_usage{labels}) > 0" for labels in busy)
            await server.until(lambda: bool(server.query(held)), DEADLINE_S, held)
            await client.http.post("/abort_request", json={"rid": "long"})
            await long
            await reads(server, {f"sglang:token_usage{labels}": 0.0 for labels in busy})


EQUAL = {
    f"sum({one}) - ({other})": 0.0
    for one, other in {
        'vllm:spec_decode_num_draft_tokens_total{baton_role="router"}':
            "sum(baton_engine_drafts_proposed_total)",
        'vllm:spec_decode_num_accepted_tokens_total{baton_role="router"}':
            "sum(baton_engine_drafts_accepted_total)",
        'vllm:spec_decode_num_drafts_total{baton_role="router"}':
            "sum(baton_engine_draft_rows_total)",
        'vllm:num_preemptions_total{baton_role="router"}': "sum(baton_engine_preemptions_total)",
        'vllm:external_prefix_cache_hits_total{baton_role="router"}':
            "sum(baton_engine_adopted_tokens_total) "
            "- sum(baton_engine_transfer_hit_tokens_total)",
        'vllm:external_prefix_cache_queries_total{baton_role="router"}':
            'sum(vllm:external_prefix_cache_queries_total{baton_role!="router"})',
        'vllm:prefix_cache_hits_total{baton_role="decode"}':
            'sum(baton_engine_transfer_hit_tokens_total{baton_role="decode"})',
        'vllm:time_to_first_token_seconds_sum{baton_role="router"}':
            "sum(baton_router_ttft_seconds_sum)",
    }.items()
} | {"sum(baton_engine_drafts_proposed_total) > bool 0": 1.0}  # fmt: skip
"""Expressions of aliases and of what they stand for, and their values when nothing runs."""


def of(name: str, role: str) -> str:
    return f'sum({name}{{baton_role="{role}"}})'


SAME = {
    f"{of(one, role)} - {of(other, role)}": 0.0
    for one, other in {
        "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total":
            "vllm:spec_decode_num_accepted_tokens_total",
        "sglang:num_running_reqs": "vllm:num_requests_running",
        "sglang:num_queue_reqs": "vllm:num_requests_waiting",
        "sglang:full_token_usage": "vllm:kv_cache_usage_perc",
        "sglang:prompt_tokens_total": "vllm:prompt_tokens_total",
        "sglang:generation_tokens_total": "vllm:generation_tokens_total",
        "sglang:num_retracted_reqs_total": "vllm:num_preemptions_total",
    }.items()
    for role in ROLES
} | {
    f"{of(f'{one}_{part}', 'router')} - {of(f'{other}_{part}', 'router')}": 0.0
    for one, other in {
        "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
        "sglang:inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
        "sglang:time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
        "sglang:e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
        "sglang:queue_time_seconds": "vllm:request_queue_time_seconds",
    }.items()
    for part in ("sum", "count")
} | {
    f"{of('sglang:' + name, role)} - {share}": 0.0
    for role in ("router", "decode")
    for name, share in {
        "spec_accept_rate":
            f"{of('vllm:spec_decode_num_accepted_tokens_total', role)}"
            f" / {of('vllm:spec_decode_num_draft_tokens_total', role)}",
        "spec_accept_length":
            f"(1 + {of('vllm:spec_decode_num_accepted_tokens_total', role)}"
            f" / {of('vllm:spec_decode_num_drafts_total', role)})",
    }.items()
}  # fmt: skip
"""Expressions of aliases that two servers name differently, and 0, their difference."""
IDLE = {
    of(name, role): 0.0
    for role in ROLES
    for name in (
        "vllm:cpu_cache_usage_perc", "vllm:lora_requests_info", "sglang:hicache_host_used_tokens",
        "sglang:hicache_host_total_tokens", "sglang:mamba_usage", "sglang:num_used_tokens",
        "sglang:token_usage",
    )
}  # fmt: skip
"""Gauges that are 0 when nothing runs."""


def after(requests: int, asked: int, answered: int, cached: int) -> dict[str, float]:
    """Return the values after requests that ended one after another.

    asked, answered: tokens. cached: those that prefill found.
    """
    rest = answered - requests  # the decode rank's: first tokens are sampled by prefill
    rows: dict[str, tuple[float | None, float | None, float | None]] = {
        "vllm:num_requests_running": (0, 0, 0),
        "vllm:num_requests_waiting": (0, 0, 0),
        "vllm:kv_cache_usage_perc": (0, 0, 0),
        "vllm:prompt_tokens_total": (asked, asked, asked),
        "vllm:generation_tokens_total": (answered, requests, rest),
        "vllm:prefix_cache_queries_total": (asked, asked, asked),
        "vllm:prefix_cache_hits_total": (cached, cached, None),
        "vllm:external_prefix_cache_queries_total": (None, asked - cached, None),
        'vllm:request_success_total{finished_reason="length"}': (requests, 0, requests),
        "vllm:time_to_first_token_seconds_count": (requests, None, None),
        "vllm:inter_token_latency_seconds_count": (rest, None, None),
        "vllm:e2e_request_latency_seconds_count": (requests, None, None),
        "vllm:request_queue_time_seconds_count": (requests, requests, 0),
        "vllm:request_prefill_time_seconds_count": (requests, requests, 0),
        "sglang:num_requests_total": (requests, 0, requests),
        "sglang:cached_tokens_total": (cached, cached, None),
        "sglang:cache_hit_rate": (cached / asked, cached / asked, None),
        "sglang:page_size": (GRID, GRID, GRID),
    }
    return {
        f'sum({name} and on(instance, baton_role) up{{baton_role="{role}"}})': value
        for name, values in rows.items()
        for role, value in zip(ROLES, values, strict=True)
        if value is not None
    }


async def pools(client: Client) -> dict[str, float]:
    """Return the pages and slots of each worker, and of both together, as expressions' values."""
    workers = (await client.http.get("/server_info")).json()["workers"]
    pages = {w["role"]: sum(w["pages"].values()) for w in workers}
    blocks = {**pages, "router": sum(pages.values())}
    labels = (("vllm", "num_gpu_blocks", "block_size"), ("sglang", "num_pages", "page_size"))
    return {
        f'{name}{{baton_role="{role}"}}': count * tokens
        for role, count in blocks.items()
        for name, tokens in (("sglang:num_pages", 1), ("sglang:max_total_num_tokens", GRID))
    } | {
        f'{server}:cache_config_info{{baton_role="{role}",{pages_label}="{count}",'
        f'{tokens_label}="{GRID}"}}': 1.0
        for role, count in blocks.items()
        for server, pages_label, tokens_label in labels
    }


async def test_a_worker_that_stands_alone_shows_them_at_its_own_port(tiny: Path) -> None:
    rng = random.Random(21)
    ids = prompt(rng, 5 * GRID + 3)
    drafts = SpeculativeAlgorithm.NGRAM
    async with make_worker(tiny, telemetry=TELEMETRY, speculative_algorithm=drafts) as worker:
        url = f"http://{worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            await Client(http, "").generate(ids, 4)
            await Client(http, "").generate(ids, 4)
            wanted = {
                "vllm:prompt_tokens_total": 2.0 * len(ids),
                "vllm:generation_tokens_total": 8.0,
                "sglang:cached_tokens_total": 5.0 * GRID,
                "sglang:num_requests_total": 2.0,
            }

            async def shown() -> bool:
                page = await _page(http)
                return {name: page.get(name) for name in wanted} == wanted

            await until_answered(shown)
            await Client(http, "").generate(3 * prompt(rng, GRID), 30)
            info = (await http.get("/server_info")).json()["internal_states"][0]
            length = info["avg_spec_accept_length"]
            assert length >= 1

            # The page shows the counters of the last report, the reply those of this moment.
            async def reported() -> bool:
                return bool(
                    (await _page(http))["sglang:spec_accept_length"] == pytest.approx(length)
                )

            await until_answered(reported)


async def _page(http: httpx.AsyncClient) -> dict[str, float]:
    """Return the sum of each metric's samples."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await http.get("/metrics")).text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
