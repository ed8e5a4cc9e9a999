"""An engine on a GPU in this process: decode steps timed, and watched for host waits."""

import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from baton.bench.gpu.models import DeviceWeights, StepBytes, with_layers, write_config
from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import divided_model, ready_model
from baton.engine.engine import Engine
from baton.engine.models.family_table import configured_model
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import LoadFormat, SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.available import available_memory
from baton.engine.sizing.plan import MemoryPlan

PROMPT = 128  # tokens of each sequence before its timed steps
_WARM = 8  # steps that are not timed
_PERIOD = 4  # layers: after so many, the models' kinds of layers have all been there
_RANK_BYTES = 16 << 30  # of each GPU: two engines follow each other in one process


def options_of(
    folder: Path,
    device: torch.device,
    max_running: int,
    small: bool = False,
    ranks: int | None = None,
    memory_bytes: int | None = None,
) -> EngineConfig:
    """Return the options of an engine; see `GpuEngine`."""
    return EngineConfig(
        model=folder,
        dtype=torch.float32 if small else torch.bfloat16,
        device=str(device),
        load_format=LoadFormat.DUMMY,
        max_running=max_running,
        max_model_len=256 if small else 4096,
        chunked_prefill_size=256 if small else 4096,
        page_size=16 if small else 64,
        prefix_caching=False,
        memory_bytes=1 << 28 if small else memory_bytes if ranks is None else _RANK_BYTES,
        tp=ranks or 1,
    )


def return_memory(device: torch.device) -> None:
    """Give the device what engines before have left: torch holds it, and it does not count as
    free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def fitted(config: dict[str, Any], options: EngineConfig, free: int) -> dict[str, Any]:
    """Return the config of as many of the model's layers as `free` bytes of a device hold: all, or
    a multiple of four, and four at least."""
    layers = int(config["num_hidden_layers"])
    for count in (layers, *range((layers - 1) // _PERIOD * _PERIOD, _PERIOD, -_PERIOD)):
        if _fits(part := with_layers(config, count), options, free):
            return part
    return with_layers(config, _PERIOD)


def _fits(config: dict[str, Any], options: EngineConfig, free: int) -> bool:
    with TemporaryDirectory() as folder:
        path = write_config(Path(folder) / "model", config, small=False)
        model = divided_model(configured_model(replace(options, model=path)), options.tp)
    try:
        MemoryPlan(options, model.config, model.weight_bytes, free)
    except ConfigError:
        return False
    return True


class GpuEngine:
    """An engine of random weights. On a CPU it has a small model of the same architecture."""

    def __init__(
        self,
        config: dict[str, Any],
        device: torch.device,
        max_running: int,
        *,
        ranks: int | None = None,
        small: bool = False,
        memory_bytes: int | None = None,
        longest: int | None = None,
        drafts: SpeculativeAlgorithm = SpeculativeAlgorithm.OFF,
    ) -> None:
        """ranks: of the replica; weights then are the same for any number of them, which takes
        longer to make. small: a small model in float32 on a GPU too. memory_bytes: of a GPU;
        None: its usual share. longest: sequence, in tokens; None: the usual one. drafts: what gives
        each step's, of random weights almost all wrong.
        """
        self._device = device
        small = small or device.type == "cpu"
        return_memory(device)
        if ranks is None and not small:
            free = available_memory(device)
            config = fitted(config, options_of(Path(), device, max_running), free)
        self.layers = int(config["num_hidden_layers"])
        with TemporaryDirectory() as folder:
            path = write_config(Path(folder) / "model", config, small)
            options = options_of(path, device, max_running, small, ranks, memory_bytes)
            options = replace(
                options,
                max_model_len=longest or options.max_model_len,
                speculative_algorithm=drafts,
                mtp=drafts is SpeculativeAlgorithm.MTP,
            )
            model = configured_model(options)
            if ranks is None:
                source = DeviceWeights(device, options.dtype)
                self._engine = Engine(options, ready_model(model, source, options), None)
            else:
                self._engine = Engine.load(options)
        self.model = model
        self.bytes = StepBytes.of(model)
        self._prompt = 20 if small else PROMPT
        self._rng = random.Random(0)
        self._serial = 0

    @property
    def accepted(self) -> float:
        """The share of drafts that were right."""
        counters = self._engine.counters
        return counters.draft_tokens_accepted / max(1, counters.draft_tokens)

    def decode_seconds(self, rows: int, steps: int, context: int | None = None) -> float:
        """Return the seconds of one step of `rows` greedy sequences. context: tokens of each before
        the steps, where it is not the usual number."""
        tokens = self._engine.config.draft_tokens * (_WARM + steps + 8)
        with self.decoding(rows, tokens, SamplingParams(temperature=0), prompt=context):
            for _ in range(_WARM):
                self._engine.step()
            self._wait()
            began = time.perf_counter()
            for _ in range(steps):
                self._engine.step()
            self._wait()
            return (time.perf_counter() - began) / steps

    def answers(self, requests: int, tokens: int) -> list[tuple[int, ...]]:
        """Return the greedy answers to the first prompts, which are the same in every engine."""
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        prompts = [self._tokens(self._prompt + 3 * number) for number in range(requests)]
        return [tuple(each.token_ids) for each in self._engine.generate(prompts, sampling)]

    def close(self) -> None:
        """End the processes of other ranks."""
        self._engine.close()

    def turn_seconds(self, context: int, tokens: int) -> float:
        """Return the seconds of the last chunk of a prompt: `tokens` behind `context`, whose chunks
        come before. It is what a turn of a conversation waits for whose prefix is cached.

        Measures the second of two, since the first one builds what is cached.
        """
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        for _ in range(2):
            self._submit(sampling, context + tokens)
            for _ in range(context // self._engine.plan.chunked_prefill_size):
                self._engine.step()
            self._wait()
            began = time.perf_counter()
            while self._engine.has_work:
                self._engine.step()
        return time.perf_counter() - began

    def mixed_seconds(self, rows: int, tokens: int, steps: int) -> float:
        """Return the seconds of one step of `rows` greedy sequences beside a prompt of `tokens`."""
        took = []
        with self.decoding(rows, steps + 8, SamplingParams(temperature=0)):
            for _ in range(steps):
                self._submit(SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), tokens)
                self._wait()
                began = time.perf_counter()
                self._engine.step()
                self._wait()
                took.append(time.perf_counter() - began)
        return median(took)

    def prefill_seconds(self, tokens: int) -> float:
        """Return the seconds to the first token of a prompt of `tokens`.

        Measures the second of two prompts, since the first one builds what is cached.
        """
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        for _ in range(2):
            prompt = self._tokens(tokens)
            self._wait()
            began = time.perf_counter()
            self._engine.generate([prompt], sampling)
        return time.perf_counter() - began

    def guarded_steps(self, rows: int, steps: int) -> int:
        """Run decode steps of every kind of sampling, and one with a prompt beside them.

        A wait for the device raises. Returns the number of steps.
        """
        greedy = SamplingParams(temperature=0)
        sampled = SamplingParams(
            temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, presence_penalty=0.5, logprobs=2
        )
        with self.decoding(rows, 2 * (_WARM + steps), greedy, sampled):
            self._joined_by_a_prompt(_WARM)
            with _no_waits(self._device):
                self._joined_by_a_prompt(steps)
        return steps

    def submit_any(self, arrivals: random.Random, longest: int) -> None:
        """Submit a request of a random length, which ends by itself, with or without sampling."""
        sampling = SamplingParams(
            temperature=arrivals.choice([0, 0.8]),
            top_p=0.9,
            max_tokens=arrivals.randint(4, 40),
            ignore_eos=True,
        )
        self._serial += 1
        prompt = self._tokens(arrivals.randint(5, longest))
        self._engine.submit(RequestSpec(f"bench-{self._serial}", prompt, sampling))

    def step(self) -> None:
        """Run one step of whatever there is to do."""
        self._engine.step()

    def _joined_by_a_prompt(self, steps: int) -> None:
        """Run steps; half-way a prompt joins and ends at its first token."""
        for step in range(steps):
            if step == steps // 2:
                self._submit(SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
            self._engine.step()

    @contextmanager
    def decoding(
        self, rows: int, tokens: int, *sampling: SamplingParams, prompt: int | None = None
    ) -> Iterator[None]:
        """Run sequences whose prompts are computed inside the context, and cancel them after it.

        They take turns at the entries of `sampling`. prompt: tokens of each; None: the usual number
        """
        names = []
        for row in range(rows):
            own = sampling[row % len(sampling)]
            own = replace(own, max_tokens=tokens, ignore_eos=True, seed=row)
            names.append(self._submit(own, prompt))
        while self._engine.status().waiting:
            self._engine.step()
        self._engine.step()
        yield
        for name in names:
            self._engine.cancel(name, "measured")
        while self._engine.has_work:
            self._engine.step()

    def _submit(self, sampling: SamplingParams, prompt: int | None = None) -> str:
        """Submit a request with a prompt of its own and return its id."""
        self._serial += 1
        name = f"bench-{self._serial}"
        tokens = self._tokens(self._prompt if prompt is None else prompt)
        self._engine.submit(RequestSpec(name, tokens, sampling))
        return name

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(3, self.model.vocab_size) for _ in range(count))

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@contextmanager
def _no_waits(device: torch.device) -> Iterator[None]:
    """Make torch raise where the host waits for the GPU.

    Waiting for an event is allowed: a step's results are collected so, one step late.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
