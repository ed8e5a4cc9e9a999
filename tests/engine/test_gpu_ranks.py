"""Ranks on GPUs, as far as can be seen without one; and with two, their tokens."""

import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine.engines import assert_clean, greedy
from oracle.reference import Oracle
from torch.distributed import is_nccl_available

from baton.core.errors import ConfigError
from baton.engine.assembly.follower import run_steps
from baton.engine.assembly.loader import divided_model, load_model
from baton.engine.collectives import rank_capacity
from baton.engine.collectives.comm import Shard
from baton.engine.collectives.device_pools import DevicePools, opened_pools
from baton.engine.collectives.nccl_comm import NcclComm, within
from baton.engine.collectives.rank_capacity import check_capacity
from baton.engine.collectives.rank_device import check_gpus, device_name, rank_device
from baton.engine.collectives.rank_messages import RankPools
from baton.engine.engine import Engine
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.engine_options import check_ranks

GPUS = torch.cuda.device_count()
SIZES = RankPools(3, 4, 8, table_rows=2, table_width=5, kept_tokens=0, step_bytes=1 << 20)


@pytest.fixture(scope="module")
def folder(oracle: Oracle) -> Path:
    return oracle.checkpoint("granite_moe_nope")


def options(folder: Path, device: str = "cuda") -> EngineConfig:
    return EngineConfig(
        model=folder,
        page_size=16,
        max_running=8,
        chunked_prefill_size=64,
        mamba_track_interval=16,
        memory_bytes=1 << 28,
        device=device,
        tp=2,
    )


def test_one_named_gpu_is_refused_for_several_ranks(folder: Path) -> None:
    with pytest.raises(ConfigError, match="device is cuda:1, one device, and the replica has 2"):
        check_ranks(options(folder, "cuda:1"))


@pytest.mark.skipif(GPUS > 1, reason="there are two GPUs")
def test_fewer_gpus_than_ranks_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tp 2 needs as many GPUs on one host, and [01] are"):
        load_model(options(folder))


@pytest.mark.skipif(is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="built without it: install a torch that was built for"):
        NcclComm(tmp_path, Shard(0, 2), 1.0, torch.device("cuda", 0))


def test_a_rank_that_does_not_connect_ends_the_wait() -> None:
    never = threading.Event()
    with pytest.raises(RuntimeError, match=r"not connected rank 1 to the other 3 within 0\.1 s"):
        within(0.1, never.wait, Shard(1, 4))
    never.set()


def test_an_error_of_the_connection_is_raised_as_it_is() -> None:
    def connect() -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    within(60.0, lambda: None, Shard(0, 2))
    with pytest.raises(RuntimeError, match="unhandled system error"):
        within(60.0, connect, Shard(0, 2))


def test_each_rank_has_a_device_of_its_own(folder: Path) -> None:
    devices = [str(rank_device(options(folder), rank)) for rank in range(2)]
    assert devices == ["cuda:0", "cuda:1"]
    assert str(rank_device(options(folder, "cpu"), 1)) == "cpu"
    assert str(rank_device(replace(options(folder, "cuda:3"), tp=1), 0)) == "cuda:3"


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("4,5", ["cuda:0 (GPU 4)", "cuda:1 (GPU 5)"]),
        ("GPU-8a6b, GPU-77c1", ["cuda:0 (GPU-8a6b)", "cuda:1 (GPU-77c1)"]),
        ("", ["cuda:0 (GPU-uuid-0)", "cuda:1 (GPU-uuid-1)"]),
    ],
)
def test_a_device_has_the_name_that_its_operator_knows(
    monkeypatch: pytest.MonkeyPatch, folder: Path, visible: str, names: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"uuid-{number}")
    )
    config = options(folder)
    assert [device_name(rank_device(config, rank)) for rank in range(2)] == names
    assert device_name(torch.device("cuda")) == names[0]
    assert device_name(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_that_processes_cannot_share_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for good in ("", "max_split_size_mb:64", "expandable_segments:False"):
        monkeypatch.setenv(name, good)
        check_gpus(options(folder))
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments:True")
    for ranks in (2, 1):
        with pytest.raises(ConfigError, match=f"{name} has expandable_segments:True, and workers"):
            load_model(replace(options(folder), tp=ranks))


def test_a_rank_whose_gpu_lacks_room_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Before any pool is made; `Followers` names the rank beside what it says."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    model = divided_model(read_config(folder, torch.float32, torch.float32), 2)
    slots = SlotLayout(model.config.recurrent, torch.float32, torch.float32)
    pages = PageLayout(model.config.attention, 8, torch.float32)
    needed = 3 * slots.slot_bytes + 4 * pages.page_bytes + 2 * 5 * 4 + (1 << 20)
    free = {torch.device("cuda", 1): needed}
    monkeypatch.setattr(rank_capacity, "available_memory", free.__getitem__)
    device = torch.device("cuda", 1)
    check_capacity(model.config, SIZES, device)
    free[device] -= 1
    said: Any = SimpleNamespace(send=lambda report: pytest.fail("it has no room"))
    unused: Any = None
    with pytest.raises(
        ConfigError, match=r"cuda:1 \(GPU 5\) has 1\..* MiB free, .* need 1\..* MiB"
    ):
        run_steps(said, model, unused, unused, SIZES, device)


def test_pools_that_another_process_opens_are_the_same_memory(folder: Path) -> None:
    """The handles are torch's, as on GPUs; the memory is the host's here."""
    whole = read_config(folder, torch.float32, torch.float32)
    part = divided_model(whole, 2).config
    slots = SlotLayout(part.recurrent, part.conv_dtype, part.ssm_dtype)
    pages = PageLayout(part.attention, 8, part.dtype)
    own = RankStorage(torch.zeros(3, slots.slot_bytes), torch.zeros(4, pages.page_bytes))
    pools = DevicePools(whole, SIZES, own, 2)
    ours, theirs = multiprocessing.Pipe()
    pools.send(1, ours, 0)
    states, kv = opened_pools(part, SIZES, theirs, torch.device("cpu"))
    made = pools.storages.ranks[1]
    made.states.fill_(7)
    kv.storage.fill_(9)
    assert (states.storage == 7).all() and (made.pages == 9).all()


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 2, reason="two GPUs are needed")
def test_two_gpus_give_the_tokens_of_transformers(oracle: Oracle, folder: Path) -> None:
    prompts = [tuple(range(3, 3 + length)) for length in (2, 16, 53)]
    engine = Engine.load(options(folder))
    try:
        for _ in range(2):  # the second time from what is cached
            outputs = engine.generate(prompts, greedy(24))
            oracle.assert_all_greedy(folder, prompts, [o.token_ids for o in outputs], 24)
        assert_clean(engine)
    finally:
        engine.close()
