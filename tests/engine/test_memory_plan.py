"""Tests of the division of a memory budget, by numbers alone."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.control_groups import ControlGroups
from hypothesis import assume, given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.engine.layout.layout import AttentionShape, LatentShape, RecurrentShape
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.sizing import available
from baton.engine.sizing.device_overhead import DeviceOverhead
from baton.engine.sizing.memory_use import MemoryUse, compared
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.plan_text import described
from baton.engine.sizing.step_memory import StepMemory

MIB, GIB = 1 << 20, 1 << 30
# Sizes like Nemotron-Nano-9B's: 27 Mamba-2 layers beside 4 of attention.
MODEL = ModelConfig(
    family="test",
    folder=Path("."),
    vocab_size=131072,
    hidden_size=4480,
    max_model_len=131072,
    layers=(),
    recurrent=(RecurrentShape(conv=(12288, 3), ssm=(128, 80, 128)),) * 27,
    attention=(AttentionShape(kv_heads=8, head_dim=128),) * 4,
    mamba_chunk_size=256,
    eos_token_ids=(),
    dtype=torch.bfloat16,
    conv_dtype=torch.bfloat16,
    ssm_dtype=torch.float32,
    raw={},
)
ATTENTION_ALONE = replace(MODEL, recurrent=(), mamba_chunk_size=1)
RECURRENT_ALONE = replace(MODEL, attention=())
CONVOLUTIONS = replace(
    MODEL, recurrent=(RecurrentShape(conv=(4480, 2), ssm=None),) * 10, mamba_chunk_size=1
)
CONFIG = EngineConfig(model=Path("."), chunked_prefill_size=2048)


def plan(
    config: EngineConfig, weights: int = 0, available: int = 0, model: ModelConfig = MODEL
) -> MemoryPlan:
    return MemoryPlan(config, model, weights, available)


def total(made: MemoryPlan) -> int:
    pools = made.slots * made.slot_layout.slot_bytes + made.pages * made.page_layout.page_bytes
    return made.weight_bytes + made.step_bytes + made.tables.nbytes + pools


@given(
    budget=st.integers(1, 200_000).map(lambda mib: mib * MIB),
    weights=st.integers(0, 20_000).map(lambda mib: mib * MIB),
    running=st.integers(1, 300),
    tickets=st.integers(0, 20),
    page=st.sampled_from([1, 16, 64, 512]),
    model=st.sampled_from([MODEL, ATTENTION_ALONE, RECURRENT_ALONE, CONVOLUTIONS]),
)
def test_a_plan_fits_its_budget_or_names_the_largest_that_does(
    budget: int, weights: int, running: int, tickets: int, page: int, model: ModelConfig
) -> None:
    config = replace(
        CONFIG, memory_bytes=budget, max_running=running, tickets=tickets, page_size=page
    )
    try:
        made = plan(config, weights, model=model)
    except ConfigError as error:
        named = re.search(r"largest max_running that fits is (\d+)", str(error))
        assume(named)
        assert named is not None
        largest = int(named[1])
        plan(replace(config, max_running=largest), weights, model=model)
        with pytest.raises(ConfigError):
            plan(replace(config, max_running=largest + 1), weights, model=model)
        return
    assert total(made) <= budget
    beside = made.quarantine_slots + made.track_slots + made.snapshot_slots
    assert made.slots == 1 + running + tickets + beside
    assert made.quarantine_slots == -(-tickets // 2)
    tracked = made.track_slots - bool(model.recurrent) * made.snapshots_per_prefill
    assert bool(model.recurrent) <= tracked <= running if model.recurrent else tracked == 0
    assert made.max_model_len <= (made.pages - 1) * page


def test_what_a_model_lacks_takes_no_memory() -> None:
    config = replace(CONFIG, memory_bytes=20_000 * MIB, page_size=64)
    attention, recurrent = plan(config, model=ATTENTION_ALONE), plan(config, model=RECURRENT_ALONE)
    assert attention.slot_layout.slot_bytes == 0 and attention.snapshot_slots == 0
    assert attention.pages * attention.page_layout.page_bytes > 10_000 * MIB
    assert recurrent.page_layout.page_bytes == 0
    assert recurrent.max_model_len == MODEL.max_model_len, "pages without bytes never run out"
    assert recurrent.snapshot_slots > 0


@pytest.mark.parametrize("ratio", [0.5, 0.9, 2.0])
def test_slots_and_pages_divide_memory_in_the_ratio_that_was_asked_for(ratio: float) -> None:
    made = plan(
        replace(CONFIG, memory_bytes=80_000 * MIB, max_running=8, mamba_full_memory_ratio=ratio)
    )
    assert total(made) <= made.budget_bytes
    slots = made.slots * made.slot_layout.slot_bytes
    pages = made.pages * made.page_layout.page_bytes
    assert slots / pages == pytest.approx(ratio, rel=0.02)
    assert made.mamba_full_memory_ratio == slots / pages


def test_a_ratio_leaves_running_requests_what_they_need() -> None:
    """Few slots can be asked for, or few pages: requests keep theirs, and the plan still fits."""
    config = replace(CONFIG, memory_bytes=20_000 * MIB, max_running=16, max_model_len=65536)
    fewest = plan(replace(config, mamba_full_memory_ratio=1e-6))
    assert fewest.snapshot_slots == 0 and fewest.live_slots == 16
    most = plan(replace(config, mamba_full_memory_ratio=1e6))
    assert most.snapshot_slots > 0 and most.max_model_len == 65536
    assert total(most) <= most.budget_bytes


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_divides_nothing_is_refused(ratio: float) -> None:
    config = replace(CONFIG, memory_bytes=80_000 * MIB)
    with pytest.raises(ConfigError, match="mamba_full_memory_ratio"):
        plan(replace(config, mamba_full_memory_ratio=ratio))


def test_a_ratio_and_a_number_of_snapshots_exclude_each_other() -> None:
    config = replace(CONFIG, memory_bytes=80_000 * MIB, mamba_full_memory_ratio=1.0)
    with pytest.raises(ConfigError, match="cached_snapshots and mamba_full_memory_ratio"):
        plan(replace(config, cached_snapshots=4))


def test_the_budget_is_the_fraction_of_what_is_free_divided_by_the_workers_of_a_host() -> None:
    config = replace(CONFIG, memory_fraction=0.5, workers_on_host=4, max_running=1)
    assert plan(config, 0, 1 << 40).budget_bytes == 1 << 37
    alone = replace(config, device="cuda")
    assert plan(alone, 0, 1 << 40).budget_bytes == 1 << 39


def test_a_context_that_was_asked_for_must_fit() -> None:
    short = replace(CONFIG, memory_bytes=20_000 * MIB, max_running=2, max_model_len=4096)
    assert plan(short).max_model_len == 4096
    with pytest.raises(ConfigError, match="not even one request fits"):
        plan(replace(short, max_model_len=131072, memory_bytes=3_700 * MIB))
    unasked = replace(short, max_model_len=None, memory_bytes=3_700 * MIB)
    assert 64 <= plan(unasked).max_model_len < 131072


def test_a_step_has_as_many_prompt_tokens_as_keep_the_device_busy() -> None:
    room = replace(CONFIG, memory_bytes=200_000 * MIB)
    assert plan(replace(room, chunked_prefill_size=96)).chunked_prefill_size == 96
    room = replace(room, chunked_prefill_size=None)
    assert plan(room).chunked_prefill_size == 512
    assert plan(replace(room, device="cuda")).chunked_prefill_size == 2048


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("page_size", 0),
        ("max_running", 0),
        ("chunked_prefill_size", -5),
        ("tickets", -1),
        ("held_fraction", 1.5),
        ("memory_fraction", -0.1),
        ("max_model_len", 1),
        ("max_model_len", 131073),
    ],
)
def test_options_that_cannot_work_are_named(option: str, value: float) -> None:
    changed: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=option):
        plan(replace(CONFIG, **changed), 0, 1 << 40)


def test_what_is_free_is_asked_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(available, "MEMINFO", meminfo)
    groups = ControlGroups(tmp_path, monkeypatch, group="/a")
    with pytest.raises(ConfigError, match="set memory_bytes"):
        available.available_memory(torch.device("cpu"))
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:   12 kB\n")
    assert available.available_memory(torch.device("cpu")) == 12 * 1024
    groups.write("a", memory_max="max", memory_current=1000)
    assert available.available_memory(torch.device("cpu")) == 12 * 1024
    groups.write("a", memory_max=3000)
    assert available.available_memory(torch.device("cpu")) == 2000


def test_a_budget_beyond_the_whole_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(available, "MEMINFO", meminfo)
    groups = ControlGroups(tmp_path, monkeypatch, group="/a")
    available.check_budget(1 << 60, "anybody")  # nobody knows how much there is
    meminfo.write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: 12 kB\n")
    available.check_budget(8 << 30, "anybody")
    with pytest.raises(ConfigError, match="me may take 9 GiB, but this machine has 8 GiB of memo"):
        available.check_budget((9 << 30) + 1, "me")
    groups.write("a", memory_max="max", memory_current=0)
    available.check_budget(8 << 30, "anybody")
    groups.write("a", memory_max=4 << 30)
    with pytest.raises(ConfigError, match="has 4 GiB of memory in all"):
        available.check_budget(8 << 30, "me")


def test_the_plan_says_what_it_is_in_one_order() -> None:
    words = described(plan(CONFIG, 17 << 30, 1 << 38))
    assert "16 live" in words["state slots"] and words["weights"] == "17 GiB"
    assert all(isinstance(value, str) for value in words.values())
    pools = ["request tables", "state slots", "pages", "tokens in pages", "longest sequence"]
    assert list(words) == ["budget", "weights", "activations", "logits", *pools]
    gpu = replace(CONFIG, device="cuda")
    latent = replace(
        MODEL, attention=(LatentShape(576),) * 4, query_heads=32, expanded_latent=32 * 256
    )
    words = described(plan(gpu, 17 << 30, 1 << 38, latent))
    parts = [
        "activations",
        "logits",
        "parts of attention",
        "expanded latents",
        "graphs",
        "GPU libraries",
    ]
    assert list(words) == ["budget", "weights", *parts, *pools]


def test_few_rows_are_tracked_at_once() -> None:
    def tracked(running: int, interval: int) -> int:
        config = replace(
            CONFIG, max_running=running, mamba_track_interval=interval, snapshots_per_prefill=1,
            memory_bytes=10_000_000 * MIB,
        )  # fmt: skip
        return plan(config).track_slots - 1

    assert [tracked(running, 256) for running in (1, 16, 256, 1024)] == [1, 2, 9, 23]
    assert [tracked(running, 1024) for running in (1, 16, 256, 1024)] == [1, 1, 4, 9]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_needs_more_for_every_row_and_logit(device: str) -> None:
    def step(running: int, context: int = 4096, vocab: int = 1000) -> StepMemory:
        model = replace(MODEL, query_heads=40, vocab_size=vocab)
        return StepMemory(model, device, running, 2048, context)

    small, large = step(8), step(256)
    assert large.total > small.total and large.logits > small.logits
    assert step(8, vocab=2000).logits == 2 * small.logits
    on_gpu = device == "cuda"
    # 40 heads, 16 parts of 256 tokens, means of 128 values beside a maximum and a sum; twice.
    assert large.attention == on_gpu * 2 * 4 * 256 * 40 * 16 * 130
    assert step(256, context=1 << 20).attention == 2 * large.attention  # at most 32 parts
    assert (step(256, vocab=2000).graphs > large.graphs > small.graphs) == on_gpu
    assert large.latents == large.gathered_token_bytes == 0


def test_latents_take_memory_while_prompts_expand_them() -> None:
    latent = replace(MODEL, attention=(LatentShape(576),), query_heads=32, expanded_latent=32 * 256)
    step = StepMemory(latent, "cuda", 256, 2048, 1 << 17)
    assert step.latents == 2 << 27 and step.gathered_token_bytes == 2 * 576
    short = StepMemory(latent, "cuda", 1, 2048, 100)
    assert short.latents == 2 * 100 * 32 * 256
    config = replace(CONFIG, device="cuda", page_size=64, memory_bytes=20_000 * MIB)
    made = plan(config, model=latent)
    gathered = made.pages * 64 * 2 * 576
    assert total(made) + gathered <= 20_000 * MIB


def test_a_gpu_captures_windows_for_drafts() -> None:
    drafting = [
        replace(CONFIG, device="cuda", speculative_algorithm=algorithm)
        for algorithm in (SpeculativeAlgorithm.NGRAM, SpeculativeAlgorithm.AUTO)
    ]
    sizes = 17 << 30, 1 << 38
    each = replace(CONFIG, device="cuda"), *drafting
    captured = [plan(config, *sizes).step.graphs for config in each]
    assert captured[0] < captured[1] <= 3 * captured[0]  # windows of 2 and 4 tokens
    assert captured[1] == captured[2]


def test_buffers_of_transfers_are_taken_from_the_pools() -> None:
    config = replace(CONFIG, memory_bytes=20_000 * MIB)
    without, buffers = plan(config), plan(replace(config, staging_bytes=512 * MIB))
    assert without.pool_bytes - buffers.pool_bytes == 512 * MIB
    assert total(buffers) + 512 * MIB <= buffers.budget_bytes
    assert described(buffers)["transfer buffers"] == "up to 512 MiB"


def on_gpu(**more: Any) -> EngineConfig:
    return replace(CONFIG, device="cuda", **more)


def test_a_gpus_budget_is_nine_tenths_of_the_card_as_far_as_it_is_free() -> None:
    card = 80 * GIB
    alone = MemoryPlan(on_gpu(), MODEL, 0, card - GIB, card)
    assert alone.budget_bytes == int(0.9 * card)
    shared = MemoryPlan(on_gpu(memory_fraction=0.45), MODEL, 0, 40 * GIB, card)
    assert shared.budget_bytes == int(0.45 * card), "as much beside another worker as before it"
    crowded = MemoryPlan(on_gpu(), MODEL, 0, 30 * GIB, card)
    assert crowded.budget_bytes == 29 * GIB
    assert plan(CONFIG, 0, card).budget_bytes == int(0.8 * card)


def test_libraries_take_a_part_of_a_card_and_none_of_an_asked_for_budget() -> None:
    card = 80 * GIB
    whole = MemoryPlan(on_gpu(), MODEL, 0, card, card)
    assert whole.overhead_bytes > 600 * MIB
    assert whole.tensor_bytes + whole.overhead_bytes <= whole.budget_bytes
    given = MemoryPlan(on_gpu(memory_bytes=whole.budget_bytes), MODEL, 0, card, card)
    assert given.pool_bytes - whole.pool_bytes == whole.overhead_bytes
    assert plan(CONFIG, 0, card).overhead_bytes == 0


def test_libraries_take_more_for_more_ranks_sizes_and_windows() -> None:
    least = DeviceOverhead(running=16, layers=40, window=1, ranks=1)
    assert replace(least, running=256).executables > least.executables > 0
    assert replace(least, window=4).executables > least.executables
    window = replace(least, window=4)
    assert replace(window, drafts=True).executables > window.executables
    assert replace(least, drafts=True).executables == least.executables
    assert replace(least, layers=80).executables == 2 * least.executables
    assert replace(least, captures=False).executables == 0
    assert replace(least, ranks=2).total - least.total > 900 * MIB
    assert least.total == least.beside + least.workspaces
    assert replace(least, window=4).workspaces > least.workspaces
    assert replace(least, captures=False).workspaces < least.workspaces


def test_fewer_requests_run_at_once_where_memory_does_not_serve_the_default() -> None:
    card = 40 * GIB
    weights = 17 * GIB
    made = MemoryPlan(on_gpu(), MODEL, weights, card, card)
    assert 1 < made.max_running < 128
    pages = made.page_layout.pages_for(2048)
    assert made.pages > 0.9 * made.max_running * pages
    more = on_gpu(max_running=made.max_running * 5 // 4)
    beyond = MemoryPlan(more, MODEL, weights, card, card)
    assert beyond.pages < 0.8 * beyond.max_running * pages
    assert MemoryPlan(on_gpu(), MODEL, 0, 10 * card, 10 * card).max_running == 128
    assert plan(CONFIG, 0, 10 * card).max_running == 16
    with pytest.raises(
        ConfigError, match=r"max_running 128 needs .*help: --max-running \d+, a lar"
    ):
        MemoryPlan(on_gpu(max_running=128), MODEL, weights, card, card)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (on_gpu(), "--memory-fraction (now 0.9), --chunked-prefill-size (now 2048), --tp 2"),
        (on_gpu(memory_bytes=19 * GIB), "--memory-gb, --chunked-prefill-size (now 2048), --tp 2"),
        (replace(CONFIG, memory_bytes=19 * GIB), "--memory-gb, --chunked-prefill-size (now 2048)"),
        (on_gpu(tp=2, memory_fraction=0.8), "--memory-fraction (now 0.8), --chunked-pre"),
    ],
)
def test_a_refusal_names_the_options_that_would_help(config: EngineConfig, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        MemoryPlan(config, MODEL, 19 * GIB, 22 * GIB, 22 * GIB)
    helps = str(refused.value).partition("would help: ")[2]
    for option in named.split(", "):
        assert option in helps
    assert ("--tp" in helps) is config.on_gpu


def test_a_refusal_names_others_that_use_the_card() -> None:
    card = 80 * GIB
    with pytest.raises(ConfigError) as refused:
        MemoryPlan(on_gpu(), MODEL, 19 * GIB, 18 * GIB, card)
    helps = str(refused.value).partition("would help: ")[2]
    assert "other processes use 62 GiB of the 80 GiB of cuda" in helps and "nvidia-smi" in helps
    assert "a larger --memory-fraction" not in helps, "as much as is free is taken already"
    with pytest.raises(ConfigError, match="a larger --memory-fraction") as alone:
        MemoryPlan(on_gpu(), MODEL, 71 * GIB, card - GIB // 2, card)
    assert "other processes" not in str(alone.value)


def test_what_others_use_of_a_shared_card_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for fraction, level in ((0.45, logging.INFO), (0.9, logging.WARNING)):
        made = MemoryPlan(on_gpu(memory_fraction=fraction), MODEL, 0, 80 * GIB, 80 * GIB)
        compared(made, MemoryUse(made.tensor_bytes, made.tensor_bytes, 79 * GIB))
        assert caplog.records[-1].levelno == level


def test_what_is_used_is_compared_with_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = MemoryPlan(on_gpu(), MODEL, 0, 80 * GIB, 80 * GIB)
    as_planned = MemoryUse(made.tensor_bytes, made.tensor_bytes, made.tensor_bytes + 700 * MIB)
    told = compared(made, as_planned)
    assert told["used beside torch"].startswith("700 MiB of ")
    assert told["used by tensors"].startswith("up to ")
    workspaces = made.overhead(made.max_running).workspaces
    compared(made, replace(as_planned, peak=made.tensor_bytes + workspaces))
    more = replace(as_planned, peak=made.tensor_bytes + workspaces + 1)
    compared(made, more)
    compared(made, replace(as_planned, on_card=made.tensor_bytes + 9 * GIB))
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.INFO, logging.WARNING, logging.WARNING]


def test_without_captures_no_memory_is_kept_for_them() -> None:
    card = 80 * GIB
    captured, eager = (
        MemoryPlan(on_gpu(graphs=graphs), replace(MODEL, layers=((),) * 56), 0, card, card)
        for graphs in (True, False)
    )
    assert captured.step.graphs > 0 == eager.step.graphs
    assert captured.overhead_bytes > eager.overhead_bytes
