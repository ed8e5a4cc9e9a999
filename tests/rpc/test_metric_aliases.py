"""The values of the metrics under other servers' names, from known numbers."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from baton.core.metric_dialect import MetricDialect
from baton.rpc.metric_aliases.alias import Alias
from baton.rpc.metric_aliases.alias_collector import ALIASES, AliasCollector
from baton.rpc.metric_aliases.figures import CurrentLoad, Figures, Latency, ServedWork, Totals
from baton.rpc.metric_aliases.of_registry import only

BOTH = (MetricDialect.VLLM, MetricDialect.SGLANG)
ROWS = [(dialect, alias) for dialect, aliases in ALIASES.items() for alias in aliases]
every_row = pytest.mark.parametrize(("dialect", "alias"), ROWS, ids=[a.name for _, a in ROWS])
TTFT = Histogram("baton_ttft_seconds", "Of this test.", registry=None, buckets=(0.1, 1.0))
TTFT.observe(0.05)
TTFT.observe(0.5)
FIGURES = Figures(
    CurrentLoad(running=3, waiting=4, page_size=16, pages=100, pages_held=25, slots=10,
                slots_held=4, memory_held=0.4, host_pages=60, host_pages_used=7),
    ServedWork(prompt_tokens=500, cached_tokens=125, cached_host_tokens=25,
               cached_file_tokens=15, output_tokens=60,
               outcomes={"stop": 2, "length": 5, "abort": 1, "cancelled": 1, "internal": 3},
               latencies={Latency.TTFT: only(TTFT)}),
    Totals(preemptions=6, drafts_proposed=40, accepted_lengths=(2, 3, 5), uncached_tokens=375,
           adopted_tokens=200),
)  # fmt: skip
EXPECTED = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 4,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:gpu_cache_usage_perc": 0.25,
    "vllm:cpu_cache_usage_perc": 7 / 60,
    "vllm:cache_config_info{block_size=16,num_gpu_blocks=100}": 1,
    "vllm:lora_requests_info{max_lora=0,running_lora_adapters=,waiting_lora_adapters=}": 0,
    "vllm:prompt_tokens_total": 500,
    "vllm:generation_tokens_total": 60,
    "vllm:prefix_cache_queries_total": 500,
    "vllm:prefix_cache_hits_total": 125,
    "vllm:external_prefix_cache_queries_total": 375,
    "vllm:external_prefix_cache_hits_total": 200,
    "vllm:num_preemptions_total": 6,
    "vllm:spec_decode_num_drafts_total": 10,
    "vllm:spec_decode_num_draft_tokens_total": 40,
    "vllm:spec_decode_num_accepted_tokens_total": 13,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=0}": 8,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=1}": 5,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=2}": 0,
    "vllm:request_success_total{finished_reason=stop}": 2,
    "vllm:request_success_total{finished_reason=length}": 5,
    "vllm:request_success_total{finished_reason=abort}": 2,
    "vllm:request_success_total{finished_reason=error}": 3,
    "vllm:time_to_first_token_seconds_bucket{le=0.1}": 1,
    "vllm:time_to_first_token_seconds_bucket{le=+Inf}": 2,
    "vllm:time_to_first_token_seconds_count": 2,
    "vllm:time_to_first_token_seconds_sum": 0.55,
    "sglang:num_running_reqs": 3,
    "sglang:num_queue_reqs": 4,
    "sglang:token_usage": 0.4,
    "sglang:full_token_usage": 0.25,
    "sglang:mamba_usage": 0.4,
    "sglang:num_used_tokens": 400,
    "sglang:max_total_num_tokens": 1600,
    "sglang:page_size": 16,
    "sglang:num_pages": 100,
    "sglang:cache_config_info{num_pages=100,page_size=16}": 1,
    "sglang:hicache_host_used_tokens": 112,
    "sglang:hicache_host_total_tokens": 960,
    "sglang:cache_hit_rate": 0.25,
    "sglang:prompt_tokens_total": 500,
    "sglang:generation_tokens_total": 60,
    "sglang:cached_tokens_total{cache_source=device}": 85,
    "sglang:cached_tokens_total{cache_source=host}": 25,
    "sglang:cached_tokens_total{cache_source=file}": 15,
    "sglang:num_requests_total": 12,
    "sglang:num_retracted_reqs_total": 6,
    "sglang:spec_accept_length": 2.3,
    "sglang:spec_accept_rate": 13 / 40,
    "sglang:time_to_first_token_seconds_count": 2,
}


def scraped(figures: Figures, *dialects: MetricDialect) -> dict[str, float]:
    """Return what a scrape reads, as `name{label=value}`, without the labels of every sample."""
    registry = CollectorRegistry()
    AliasCollector(dialects, "toy", lambda: figures, registry)
    return dict(_named(generate_latest(registry).decode()))


def _named(page: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "toy"
            sample.labels.pop("engine", None)
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            yield sample.name + (f"{{{labels}}}" if labels else ""), sample.value


def test_every_name_has_the_value_of_the_process() -> None:
    found = scraped(FIGURES, *BOTH)
    assert {name: found.get(name) for name in EXPECTED} == pytest.approx(EXPECTED)


@every_row
def test_a_row_is_shown_where_the_process_has_its_numbers(
    dialect: MetricDialect, alias: Alias
) -> None:
    found = {name.split("{")[0] for name in scraped(FIGURES, dialect)}
    shown = f"{alias.name}_count" if alias.kind == "histogram" else alias.name
    assert (shown in found) == (alias.latency in {None, Latency.TTFT})


@every_row
def test_a_row_has_the_name_and_the_labels_that_it_says(
    dialect: MetricDialect, alias: Alias
) -> None:
    assert re.fullmatch(f"{dialect}:[a-z0-9_]+", alias.name)
    assert alias.name.endswith("_total") == (alias.kind == "counter")
    assert re.fullmatch(r"[A-Z].*\.", alias.meaning) and "|" not in alias.meaning
    labels = {name for each, _ in alias.samples(FIGURES) for name in each}
    assert labels == set(alias.labels)


@every_row
def test_a_process_that_has_done_nothing_has_no_nan(dialect: MetricDialect, alias: Alias) -> None:
    samples = alias.metric(Figures(CurrentLoad(), ServedWork(), Totals()), {}).samples
    assert all(sample.value in (0.0, 1.0) for sample in samples)


def test_only_the_chosen_dialects_are_shown() -> None:
    assert not scraped(FIGURES)
    for dialect in BOTH:
        found = scraped(FIGURES, dialect)
        assert found and all(name.startswith(f"{dialect}:") for name in found)


def test_totals_of_two_engines_add_up_whatever_their_longest_run_is() -> None:
    one, other = Totals(1, 2, (3, 4), 5, 6), Totals(10, 20, (30,), 50, 60)
    assert one + other == other + one == Totals(11, 22, (33, 4), 55, 66)


def test_totals_are_the_same_after_the_wire() -> None:
    assert Totals.from_proto(FIGURES.totals.to_proto()) == FIGURES.totals
