"""Steps of engines of each family, with rows of every kind, in which the host must not wait.

For each kind of row, the places where torch waits for the GPU; in 100 steps, the calls of CUDA's
that wait or allocate; the host's time of a step, and the share of time in which the GPU is idle.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from baton.bench.checkpoints import write_tokenizer
from baton.bench.gpu.device_engine import options_of, return_memory
from baton.bench.gpu.first_day.watched import (
    WatchedStream,
    idle_share,
    percentile,
    profiled,
    waiting_calls,
    watched_waits,
)
from baton.bench.gpu.models import DeviceWeights, write_config
from baton.bench.gpu.parts import Part
from baton.core.errors import ConfigError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import ready_model
from baton.engine.engine import Engine
from baton.engine.layout.device import device_of
from baton.engine.models.family_table import configured_model
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import forward_stream
from baton.text.tokenizer import Tokenizer

_GREEDY = SamplingParams(temperature=0, ignore_eos=True)
_MIXED = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.5,
    frequency_penalty=0.1, seed=1, ignore_eos=True,
)  # fmt: skip
_LONG_TEXT = json.dumps({"type": "string", "minLength": 2000})
_TOKENIZER_WORDS = 320  # no model here has fewer tokens
_MANY_BYTES = 40 << 30  # of weights and pools; each family's few layers take up to 16 GB
_FEW_ROWS = 8  # of the engine whose memory does not suffice for them
_SHORT = 512  # tokens of its longest sequence: the least memory has pages for one
_TO_PREEMPTION = 100  # steps in which rows fill their pages, and want others
_LEAST_ROW_S = 2.0  # least time left to begin a row
_SCARCE_S = 7.0  # that rows of scarce memory may take, which come last


@dataclass(frozen=True)
class RowKind:
    """One kind of row. chunked: its prompts are longer than a step. again: they have the same
    prompt, which the prefix cache then knows."""

    name: str
    sampling: SamplingParams
    chunked: bool = False
    again: bool = False


_KINDS = (
    RowKind("greedy", _GREEDY),
    RowKind("sampled, all options", _MIXED),
    RowKind("logit bias", replace(_GREEDY, logit_bias=((5, 2.0), (7, -3.0)))),
    RowKind(
        "least tokens",
        replace(_MIXED, stop_token_ids=(9, 11), min_tokens=1000, max_tokens=1000),
    ),
    RowKind("stop ids", replace(_GREEDY, stop_token_ids=(9, 11))),
    RowKind("stop texts", replace(_GREEDY, stop=("never said here",))),
    RowKind("log probabilities", replace(_MIXED, logprobs=5, logprob_token_ids=(3, 4))),
    RowKind("prompt scores", replace(_GREEDY, prompt_logprobs_start=0, prompt_logprobs=5)),
    RowKind("allowed ids", replace(_MIXED, allowed_token_ids=tuple(range(3, 300)))),
    RowKind("bad words", replace(_GREEDY, bad_words=("ab", "xyz"))),
    RowKind("regex", replace(_MIXED, grammar=Grammar(GrammarKind.REGEX, "[a-z ]{2000}"))),
    RowKind("JSON schema", replace(_MIXED, grammar=Grammar(GrammarKind.JSON_SCHEMA, _LONG_TEXT))),
    RowKind("prompts in chunks", _GREEDY, chunked=True),
    RowKind("prompts known", _GREEDY, again=True),
)
# Answers that repeat themselves: of one token, whose drafts are right, and of two, at random.
_DRAFTED = (
    RowKind("drafts that are right", replace(_GREEDY, logit_bias=((5, 100.0),))),
    RowKind("drafts that are wrong", replace(_MIXED, allowed_token_ids=(5, 6))),
)
_LAYERED = (*_DRAFTED, *(each for each in _KINDS if each.name in (
    "greedy", "sampled, all options", "log probabilities", "prompts in chunks", "prompts known"
)))  # fmt: skip
"""Kinds of rows for which the model's own layer guesses."""


class _Watched:
    """An engine of random weights, its stream watched, and the requests that it was given."""

    def __init__(
        self,
        config: dict[str, Any],
        part: Part,
        rows: int,
        *,
        scarce: bool = False,
        drafts: SpeculativeAlgorithm = SpeculativeAlgorithm.OFF,
    ) -> None:
        """scarce: with as little memory as the options allow."""
        self.device = part.device
        self.dry = part.dry
        self.stream = WatchedStream(forward_stream(device_of(str(part.device)), overlap=True))
        self.chunk = 64 if part.dry else 512
        self.usual = 20 if part.dry else 128
        self.warm, self.steps = (3, 6) if part.dry else (30, 100)
        with TemporaryDirectory() as parent:
            folder = write_config(Path(parent) / "model", config, small=part.dry)
            write_tokenizer(folder, _TOKENIZER_WORDS)
            options = self._options(folder, rows, scarce, drafts)
            model_config = configured_model(options)
            model = ready_model(model_config, DeviceWeights(part.device, options.dtype), options)
            if scarce:
                options = replace(options, memory_bytes=_least_bytes(options, model))
            tokenizer = Tokenizer.from_folder(folder)
            self.engine = Engine(options, model, tokenizer, self.stream)
        self._vocab_size = model_config.vocab_size
        self._rng = random.Random(0)
        self._names: list[str] = []
        self._serial = 0

    def _options(
        self, folder: Path, rows: int, scarce: bool, drafts: SpeculativeAlgorithm
    ) -> EngineConfig:
        usual = options_of(folder, self.device, rows, small=self.dry)
        return replace(
            usual,
            chunked_prefill_size=self.chunk,
            memory_bytes=usual.memory_bytes or _MANY_BYTES,
            prefix_caching=not scarce,
            max_model_len=_SHORT if scarce and not self.dry else usual.max_model_len,
            mamba_track_interval=64,
            speculative_algorithm=drafts,
            mtp=drafts is SpeculativeAlgorithm.MTP,
        )

    @contextmanager
    def serving(self, rows: int, *kinds: RowKind) -> Iterator[Callable[[], None]]:
        """Submit so many requests, which take turns at the kinds; cancel them at the end. Yield
        what submits one more of each kind."""

        def more() -> None:
            for kind in kinds:
                self._submit(kind)

        try:
            for row in range(rows):
                self._submit(kinds[row % len(kinds)])
            for _ in range(2 * rows + 20):  # those that memory does not suffice for go on waiting
                if not self.engine.status().waiting:
                    break
                self.engine.step()
            yield more
        finally:
            self._clear()

    def run(self, steps: int, more: Callable[[], None] | None = None) -> None:
        """Run steps. more: called half-way."""
        for step in range(steps):
            if more is not None and step == steps // 2:
                more()
            self.engine.step()

    def host_seconds(self, steps: int) -> tuple[list[float], list[float]]:
        """Return the seconds of the host in each step, without its waits for results, and with."""
        own, whole = [], []
        for _ in range(steps):
            waited_s, began = self.stream.waited_s, time.perf_counter()
            self.engine.step()
            seconds = time.perf_counter() - began
            whole.append(seconds)
            own.append(seconds - (self.stream.waited_s - waited_s))
        return own, whole

    def close(self) -> None:
        """Finish, and close the stream."""
        self.engine.close()

    def _submit(self, kind: RowKind) -> None:
        self._serial += 1
        name = f"waits-{self._serial}"
        length = 2 * self.chunk + self.usual if kind.chunked else self.usual
        words = random.Random(1) if kind.again else self._rng
        prompt = tuple(words.randrange(3, self._vocab_size) for _ in range(length))
        room = self.engine.plan.max_model_len - length
        tokens = min(room, 1000)
        sampling = replace(
            kind.sampling, max_tokens=tokens, min_tokens=min(kind.sampling.min_tokens, tokens)
        )
        self.engine.submit(RequestSpec(name, prompt, sampling))
        self._names.append(name)

    def _clear(self) -> None:
        """End all requests, those of steps that fail too."""
        for name in self._names:
            self.engine.cancel(name, "measured")
        self._names.clear()
        for _ in range(100):
            if not self.engine.has_work:
                return
            try:
                self.engine.step()
            except RuntimeError as error:  # torch's; the step has then ended
                self.engine.fail_step(error)


def _least_bytes(options: EngineConfig, model: Model) -> int:
    """Return the least memory, to a few KiB, with which an engine of these options starts."""
    low, high = 0, (options.memory_bytes or _MANY_BYTES) >> 12
    while high - low > 1:
        middle = (low + high) // 2
        try:
            MemoryPlan(replace(options, memory_bytes=middle << 12), model.config,
                       model.weight_bytes, 0)  # fmt: skip
        except ConfigError:
            low = middle
        else:
            high = middle
    return high << 12


def waits(config: dict[str, Any], part: Part) -> None:
    """Look at one family."""
    name = str(config["model_type"])
    rows = (1, 3) if part.dry else (1, 16, 64)
    part.row(name, partial(_usual, config, part, name, rows))
    return_memory(part.device)
    part.row(f"{name}: scarce memory", partial(_scarce, config, part, name), 2 * _LEAST_ROW_S)


def waits_mtp(config: dict[str, Any], part: Part) -> None:
    """Look at one family's steps with drafts by the model's own layer."""
    name = f"{config['model_type']} MTP"
    rows = (1, 3) if part.dry else (1, 16, 64)
    began = time.perf_counter()
    watched = _Watched(config, part, rows[-1], drafts=SpeculativeAlgorithm.MTP)
    part.add(f"{name}: start", f"{time.perf_counter() - began:.1f} s")
    for kind in _LAYERED:
        part.row(f"{name}: {kind.name}", partial(_guard, watched, kind, name, part), _LEAST_ROW_S)
    for count in rows:
        part.row(f"{name}: {count} rows", partial(_time, watched, count, name, part), _LEAST_ROW_S)
    what = f"{name}: calls, all kinds"
    part.row(what, partial(_tell_calls, watched, list(_LAYERED), what, part), _LEAST_ROW_S)
    counters = watched.engine.counters
    accepted, drafted = counters.draft_tokens_accepted, counters.draft_tokens
    part.add(f"{name}: drafts accepted", f"{accepted} of {drafted}",
             failed=not 0 < accepted < drafted)  # fmt: skip
    watched.close()


def _usual(config: dict[str, Any], part: Part, name: str, rows: tuple[int, ...]) -> None:
    began = time.perf_counter()
    watched = _Watched(config, part, rows[-1])
    part.add(f"{name}: start", f"{time.perf_counter() - began:.1f} s")
    kinds = [kind for kind in _KINDS if _can_run(kind, name, part)]
    for kind in kinds:
        part.row(f"{name}: {kind.name}", partial(_guard, watched, kind, name, part), _LEAST_ROW_S)
    for count in rows:
        part.row(f"{name}: {count} rows", partial(_time, watched, count, name, part), _LEAST_ROW_S)
    what = f"{name}: calls, all kinds"
    part.row(what, partial(_tell_calls, watched, kinds, what, part), _LEAST_ROW_S)
    watched.close()


def _can_run(kind: RowKind, name: str, part: Part) -> bool:
    if kind.sampling.grammar is None or find_spec("llguidance") is not None:
        return True
    part.add(f"{name}: {kind.name}", "not run", beside="llguidance is not installed")
    return False


def _scarce(config: dict[str, Any], part: Part, name: str) -> None:
    began = time.perf_counter()
    watched = _Watched(config, part, _FEW_ROWS, scarce=True, drafts=SpeculativeAlgorithm.NGRAM)
    part.add(f"{name}: start with drafts", f"{time.perf_counter() - began:.1f} s")
    counters = watched.engine.counters
    for kind in _DRAFTED:
        part.row(f"{name}: {kind.name}", partial(_guard, watched, kind, name, part), _LEAST_ROW_S)
    what = f"{name}: calls, drafts"
    part.row(what, partial(_tell_calls, watched, list(_DRAFTED), what, part), _LEAST_ROW_S)
    drafted = counters.draft_rows
    part.add(f"{name}: rows with drafts", f"{drafted}", failed=not drafted)
    before = counters.preemptions
    kind = RowKind("preempted", _GREEDY)
    part.row(f"{name}: {kind.name}",
             partial(_guard, watched, kind, name, part, _FEW_ROWS, _TO_PREEMPTION),
             _LEAST_ROW_S)  # fmt: skip
    preempted = counters.preemptions - before
    part.add(f"{name}: preemptions", f"{preempted}", failed=not preempted)
    watched.close()


def _guard(
    watched: _Watched, kind: RowKind, name: str, part: Part, rows: int = 2, steps: int = 12
) -> None:
    """Tell where steps with this kind of row wait, one with a prompt beside them."""
    with watched.serving(rows, kind) as more:
        watched.run(steps, more)
        with watched_waits(part.device) as found:
            watched.run(steps, more)
    places = ", ".join(f"{where} ({count})" for where, count in found.places.most_common())
    waited = found.places.total()
    told = f"{waited} WAITS" if waited else f"{steps} steps"
    part.add(f"{name}: {kind.name}", told, beside=places, failed=bool(waited))


def _time(watched: _Watched, rows: int, name: str, part: Part) -> None:
    """Tell the host's time of a step of greedy rows, and what the profiler sees of more steps."""
    with watched.serving(rows, _KINDS[0]):
        watched.run(watched.warm)
        own, whole = watched.host_seconds(watched.steps)
        half, most = percentile(own, 0.5), percentile(own, 0.99)
        part.add(
            f"{name}: {rows} rows, host's time a step",
            f"{1e6 * half:.0f} us",
            beside=f"p99 {1e6 * most:.0f} us; with its waits {1e6 * percentile(whole, 0.5):.0f} us",
        )
        activities = profiled(part.device, partial(watched.run, watched.steps))
    idle = idle_share(activities)
    part.add(
        f"{name}: {rows} rows, GPU idle",
        "no kernels" if idle is None else f"{idle:.0%}",
        beside=f"while profiled; {sum(each.on_device for each in activities)} kernels and copies",
        failed=idle is None and not part.dry,
    )
    _add_calls(f"{name}: calls, {rows} rows", waiting_calls(activities), part)


def _tell_calls(watched: _Watched, kinds: list[RowKind], what: str, part: Part) -> None:
    """Tell the calls that wait in steps of all kinds of rows; if any do, those of each kind."""
    with watched.serving(len(kinds), *kinds) as more:
        watched.run(watched.warm, more)
        activities = profiled(part.device, partial(watched.run, watched.steps, more))
    found = waiting_calls(activities)
    _add_calls(what, found, part)
    for kind in kinds if found and len(kinds) > 1 else []:
        if part.left_s < _SCARCE_S:
            return
        part.row(f"{what}, {kind.name}",
                 partial(_tell_calls, watched, [kind], f"{what}, {kind.name}", part),
                 _LEAST_ROW_S)  # fmt: skip


def _add_calls(what: str, found: Counter[str], part: Part) -> None:
    beside = ", ".join(f"{call} ({count})" for call, count in found.most_common())
    part.add(what, f"{found.total()} WAIT" if found else "none waits", beside=beside,
             failed=bool(found))  # fmt: skip
