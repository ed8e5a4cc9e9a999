"""A prefill and a decode worker on a GPU's double answer from start to shutdown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
import torch
from engine.engines import greedy
from gpu_double import Traffic, gpu_double
from mtp_models import MtpCheckpoints
from on_gpu import GPU
from oracle.specs import SPECS
from reached_lines import ReachedLines
from torch import Tensor
from worker.cluster import Gate, decode_worker, metrics_of, prefill_worker, running, session

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.errors import ConfigError
from baton.engine.assembly import loader
from baton.engine.engine import Engine
from baton.engine.layout.batch_sizes import draft_sizes
from baton.engine.layout.device import use_device
from baton.engine.models.decoder import Decoder
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.torch_kernels import TORCH, TorchKernels
from baton.kernels.triton import triton_kernels

OPTIONS = EngineConfig(
    Path("."),
    dtype=torch.float32,
    page_size=16,
    max_running=4,
    max_model_len=256,
    chunked_prefill_size=32,
    memory_bytes=1 << 28,
    host_cache_bytes=1 << 24,
    host_cache_state_bytes=1 << 24,
)
ROOT = Path(__file__).parents[2]
PROMPT = tuple(3 + 7 * place % 300 for place in range(75))


class ReplayableTorch(TorchKernels):
    """Torch's kernels in place of Triton's, whose decode reads no length on the host."""

    replayable: ClassVar[bool] = True

    @staticmethod
    def paged_attn_decode(  # type: ignore[override]
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        block_tables: Tensor,
        table_rows: Tensor,
        kv_lens: Tensor,
        kv_lens_host: Sequence[int],
        scale: float,
        *,
        first_key: int = 0,
        nodes: Tensor | None = None,
    ) -> Tensor:
        longest = [block_tables.shape[1] * k_pool.shape[1]]
        pools = q, k_pool, v_pool, block_tables, table_rows
        return TORCH.paged_attn_decode(*pools, kv_lens, longest, scale, first_key=first_key)


class Ungated:
    """A loaded engine's model has no gate; a test worker opens it at its end."""

    gate = Gate()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    monkeypatch.setattr(triton_kernels, "TritonKernels", ReplayableTorch)
    with gpu_double(monkeypatch) as traffic:
        yield traffic


SEVERAL_GPUS = "ranks on several GPUs: tests/engine/test_gpu_ranks.py, on such a machine"
UNDER_NIXL = "NIXL cannot register the double's memory as a GPU's; tests/transfer have NIXL's tests"
SEGMENTS = 4  # of a prompt in three chunks: KV of each, and the state
NOT_REACHED = {
    "engine/collectives/nccl_comm.py: connect": SEVERAL_GPUS,
    "engine/collectives/rank_device.py: check_gpus": SEVERAL_GPUS,
    "engine/collectives/rank_device.py: rank_device": SEVERAL_GPUS,
    "engine/sizing/engine_options.py: check_ranks": SEVERAL_GPUS,
    "engine/sizing/memory_use.py: naming_what_is_full": "a full card: the test at the end here",
    "kernels/host_plan.py: on": SEVERAL_GPUS,
    "kernels/triton/shapes.py: processors": "no kernel of Triton's is launched on the double",
    "transfer/channels/nixl/probe.py: tell_rate": UNDER_NIXL,
    "transfer/channels/nixl/ucx.py: leaves_gpus_out": UNDER_NIXL,
    "transfer/channels/nixl/ucx.py: network_alone": UNDER_NIXL,
    "worker/engine_profile.py: __init__": "torch's profiler asks the driver for a GPU's activity",
    "worker/host_process.py: unprovable": UNDER_NIXL,
}
"""Functions of workers with a statement that names CUDA and that the double does not reach: why."""


async def answered(
    folder: Path, algorithm: SpeculativeAlgorithm, gpu: Traffic, *, mtp: bool = False
) -> list[int]:
    """Start a prefill and a decode worker on the double, ask one request, and stop them."""
    options = replace(OPTIONS, model=folder, device="cuda", mtp=mtp)
    answering = replace(options, tickets=4, speculative_algorithm=algorithm)
    prefill = prefill_worker(loaded=Engine.load(options), model=Ungated())
    decode = decode_worker(loaded=Engine.load(answering), model=Ungated())
    async with running(prefill, decode), session(decode) as client:
        gpu.clear()
        _, answer = await client.start(PROMPT, greedy(12), [prefill])
        await answer.end()
        await decode.clean()
        await prefill.clean()
        for worker in (prefill, decode):
            assert "baton_worker_memory_used_bytes" in await metrics_of(worker)
    return answer.token_ids


async def test_one_request_from_start_to_shutdown(tmp_path: Path, gpu: Traffic) -> None:
    spec = SPECS["granite_moe_rope"]
    folder = write_checkpoint(tmp_path / "model", {**spec.config, "model_type": spec.model_type})
    cpu = Engine.load(replace(OPTIONS, model=folder, kernels=KernelChoice.TORCH))
    (expected,) = cpu.generate([PROMPT], greedy(12))
    cpu.close()
    lines = ReachedLines.that_name("cuda", ROOT, ["engine", "kernels", "transfer", "worker"])
    for algorithm in (SpeculativeAlgorithm.OFF, SpeculativeAlgorithm.NGRAM):
        with lines.traced():
            tokens = await answered(folder, algorithm, gpu)
        assert tokens == list(expected.token_ids)
        assert gpu.replays >= 2, "a decode step was not replayed"
        assert not gpu.pageable, "a copy goes through memory that is not pinned"
        # Each segment that is sent or taken, and each of its checksums, waits once.
        assert set(gpu.reads) == {"MainThread: synchronize"} and len(gpu.reads) <= 2 * SEGMENTS
    assert {"MainThread", "engine", "marks_0", "transfers", "aside_0", "save_0"} <= gpu.threads
    assert lines.left == NOT_REACHED.keys()


async def test_drafts_of_the_models_own_layer_are_captured_and_read_nothing(
    mtp_checkpoints: MtpCheckpoints, gpu: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = mtp_checkpoints.folder("qwen3_next_moe")
    cpu = Engine.load(replace(OPTIONS, model=folder, kernels=KernelChoice.TORCH))
    (expected,) = cpu.generate([PROMPT], greedy(12))
    cpu.close()
    depths: list[int] = []
    draft = Decoder.draft

    def noted(self: Decoder, batch: DraftBatch, *pools: Any) -> DraftResult:
        depths.append(batch.token_ids.shape[0])
        return draft(self, batch, *pools)

    monkeypatch.setattr(Decoder, "draft", noted)
    tokens = await answered(folder, SpeculativeAlgorithm.MTP, gpu, mtp=True)
    assert tokens == list(expected.token_ids)
    sizes = draft_sizes(OPTIONS.most_running)
    captured = depths[: 3 * len(sizes)]  # which runs each before, inside and by a replay
    assert captured == [size for size in reversed(sizes) for _ in range(3)]
    assert len(depths) > len(captured) and gpu.replays >= len(depths) - len(captured)
    assert not gpu.pageable, "a copy goes through memory that is not pinned"
    assert set(gpu.reads) == {"MainThread: synchronize"}


async def test_a_thread_that_sets_no_device_has_none(gpu: Traffic) -> None:
    """Such a thread would use the first GPU of the machine, whoever owns it."""
    with pytest.raises((AssertionError, RuntimeError), match="CUDA"):
        torch.zeros(1, device=GPU)
    use_device(GPU)
    ones = torch.ones(2, device=GPU)
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        ones.numpy()
    with pytest.raises(RuntimeError, match="to be on the same device"):
        ones + torch.ones(2)
    assert ones.sum().item() == 2
    assert ones.cpu().sum() == 2
    ones.copy_(torch.ones(2))
    ones.copy_(torch.ones(2).pin_memory(), non_blocking=True)
    assert gpu.reads == ["MainThread: item", "MainThread: cpu"]
    assert gpu.pageable == ["MainThread: copy_"]


@pytest.mark.parametrize("where", ["weights", "first step"])
def test_a_card_that_is_full_at_the_start_is_told_with_what_helps(
    tmp_path: Path, gpu: Traffic, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*args: object, **more: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

    folder = write_checkpoint(tmp_path / "model", GRANITE_SMALL)
    whose, name = (loader, "ready_model") if where == "weights" else (Decoder, "forward")
    monkeypatch.setattr(whose, name, full)
    with pytest.raises(ConfigError, match="full before the engine had started") as told:
        Engine.load(replace(OPTIONS, model=folder, device="cuda", memory_fraction=0.45))
    for part in ("8 GiB", "nvidia-smi", "--memory-fraction (now 0.45)", "Tried to allocate 20"):
        assert part in str(told.value)
