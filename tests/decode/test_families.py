"""A prompt read by one worker and answered by another: every family, whatever state it has."""

import random
from typing import Any

import pytest
from decode.test_channels import CHANNELS
from engine.engines import greedy
from oracle.reference import Oracle
from oracle.specs import ONE_OF_EACH, SPECS
from torch import Tensor
from transfer.sizes import NOTE_BYTES, bytes_needed
from worker.cluster import Gate, decode_worker, prefill_worker, running, session

from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig
from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.channels.local_hub import LocalHub
from baton.transfer.handoff import HandoffState

STEPS = 24


class Gated:
    """A model as the workers of a test have it."""

    def __init__(self, folder: Any) -> None:
        self._model = load_model(EngineConfig(model=folder))
        self.config = self._model.config
        self.plan = self._model.plan
        self.kernels = self._model.kernels
        self.needs_cpu_seq_lens = self._model.needs_cpu_seq_lens
        self.weight_bytes = 0  # the test sizes the pools
        self.gate = Gate()

    def forward(self, *args: Any) -> Tensor:
        return self._model.forward(*args)


@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_the_tokens_are_the_same_where_the_rank_reads_a_prompt_itself(
    oracle: Oracle, name: str, seeded: random.Random
) -> None:
    """Beside one that is handed over, in the same steps."""
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    prompts = [tuple(seeded.randrange(3, vocab) for _ in range(n)) for n in (53, 70, 3)]
    options: dict[str, Any] = {"page_size": 16, "chunk": 32, "max_model_len": 256, "pages": 5000}
    prefill = prefill_worker(model=Gated(folder), **options)
    decode = decode_worker(model=Gated(folder), **options)
    async with running(prefill, decode), session(decode) as router:
        answers = [
            (await router.start(prompt, greedy(STEPS), [prefill], prefill_here=here))[1]
            for prompt, here in zip(prompts, (True, False, True), strict=True)
        ]
        for prompt, answer in zip(prompts, answers, strict=True):
            await answer.end()
            oracle.assert_all_greedy(folder, [prompt], [answer.token_ids], STEPS)
        assert decode.been_in(HandoffState.ACTIVE) == 1
        await decode.clean()
        await prefill.clean()


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_the_tokens_are_those_of_transformers(
    oracle: Oracle, name: str, channel: str, seeded: random.Random
) -> None:
    folder = oracle.checkpoint(name)
    vocab = SPECS[name].config["vocab_size"]
    prompts = [tuple(seeded.randrange(3, vocab) for _ in range(n)) for n in (3, 53)]
    options: dict[str, Any] = {"page_size": 16, "chunk": 32, "max_model_len": 256, "pages": 5000}
    hub = LocalHub()
    prefill = prefill_worker(model=Gated(folder), channel=channel, hub=hub, **options)
    decode = decode_worker(model=Gated(folder), channel=channel, hub=hub, **options)
    async with running(prefill, decode), session(decode) as router:
        started = [await router.start(p, greedy(STEPS), [prefill]) for p in prompts]
        for prompt, (_, answer) in zip(prompts, started, strict=True):
            await answer.end()
            oracle.assert_all_greedy(folder, [prompt], [answer.token_ids], STEPS)
        await decode.clean()
        await prefill.clean()
        plan = decode.engine.plan
        moved = sum(
            decode.context.metrics.registry.get_sample_value(
                "baton_worker_received_bytes_total",
                {
                    "worker": decode.context.worker_id,
                    "role": decode.context.config.role.value,
                    "kind": kind,
                },
            )
            or 0
            for kind in ("state", "kv")
        )
    assert decode.been_in(HandoffState.ACTIVE) == len(prompts)
    needed = sum(bytes_needed(plan.slot_layout, plan.page_layout, len(p)) for p in prompts)
    header = {"grpc": HEADER_BYTES, "local": 0, "nixl": NOTE_BYTES}[channel]
    # At most a segment of KV and one of state for each layer that ended apart from the others.
    segments = len(prompts) * 2 * (1 + len(decode.engine.plan.model_config.layers))
    assert needed <= moved <= needed + segments * header, "a model's bytes, a header a segment"
