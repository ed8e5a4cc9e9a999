"""Tests that the engine reports layer by layer what a held request's last chunk has written, while
the step goes on."""

import random
from collections.abc import Sequence

import pytest
from engine.engines import greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import HashModel, LayeredHashModel, expected_tokens
from oracle.reference import Oracle
from oracle.specs import ONE_OF_EACH
from torch import Tensor

from baton.core.state_ref import StateRef
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.request.events import PrefillHeld
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig
from baton.engine.step.batch import Row
from baton.engine.step.layer_progress import LayerBytes, LayerProgress, LayersComputed
from baton.transfer.memory.regions import EngineMemory
from baton.transfer.memory.segments import Segment, cut_kv, cut_state


class Watched:
    """An engine whose memory is read, as a channel would, whenever layers are told of."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.memory = EngineMemory(engine.states, engine.pages)
        self.told: list[LayersComputed] = []
        self.seen: list[tuple[list[Segment], list[bytes], StateRef]] = []
        engine.listen(self._on_layers)

    def _on_layers(self, computed: Sequence[LayersComputed]) -> None:
        for layers in computed:
            parked_state = layers.parked_state
            holder = parked_state.state
            slots, pages = self.memory.slots, self.memory.pages
            segments = [*cut_state(slots, end=slots.bytes_before(layers.recurrent))]
            segments += cut_kv(pages, 0, layers.start)
            of = (0, layers.attention)
            segments += cut_kv(pages, layers.start, parked_state.state.tokens, layers=of)
            self.told.append(layers)
            self.seen.append((segments, self._bytes(segments, holder), holder))

    def _bytes(self, segments: list[Segment], holder: StateRef) -> list[bytes]:
        return [b"".join(self.memory.read(segment, holder)) for segment in segments]

    def assert_final(self) -> None:
        """Assert that what was read when it was reported equals what lies there now."""
        for segments, before, holder in self.seen:
            assert self._bytes(segments, holder) == before


class Model:
    """A real one, in pools that the test sizes."""

    weight_bytes = 0
    needs_cpu_seq_lens = True

    def __init__(self, folder: object) -> None:
        self._model = load_model(EngineConfig(model=folder))  # type: ignore[arg-type]
        self.config = self._model.config
        self.kernels = self._model.kernels
        self.plan = self._model.plan

    def forward(self, *args: object) -> Tensor:
        return self._model.forward(*args)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_layer_of_every_family_says_when_it_has_written(
    oracle: Oracle, name: str, seeded: random.Random
) -> None:
    model = Model(oracle.checkpoint(name))
    options = {"page_size": 16, "chunk": 32, "max_model_len": 256, "pages": 5000}
    watched = Watched(make_engine(model, layer_group_bytes=1, **options))  # type: ignore[arg-type]
    prompt = random_prompt(seeded, 40, 60)
    watched.engine.submit(RequestSpec("a", prompt, greedy(4), hold=True))
    assert run(watched.engine)[-1] == PrefillHeld("a")
    recurrent, attention = len(model.config.recurrent), len(model.config.attention)
    before_last = [(t.recurrent, t.attention) for t in watched.told if not t.last]
    assert before_last == sorted(before_last)
    assert len(set(before_last)) == len(before_last) == recurrent + attention, (
        "a layer said nothing"
    )
    assert before_last[-1] == (recurrent, attention)
    assert [t.last for t in watched.told] == [False] * len(before_last) + [True]
    assert {(t.start, t.parked_state.state.tokens) for t in watched.told} == {(32, len(prompt))}
    watched.assert_final()


def test_only_a_last_chunk_that_a_hand_off_waits_for_is_told_of(seeded: random.Random) -> None:
    watched = Watched(make_engine(LayeredHashModel(), layer_group_bytes=1, max_running=8))
    engine = watched.engine
    prompts = {f"r{i}": random_prompt(seeded, 20, 60) for i in range(6)}
    for name, prompt in prompts.items():
        engine.submit(RequestSpec(name, prompt, greedy(5), hold=name < "r3"))
    events = run(engine)
    assert {t.request_id for t in watched.told} == {"r0", "r1", "r2"}
    for name in ("r0", "r1", "r2"):
        mine = [t for t in watched.told if t.request_id == name]
        assert [t.last for t in mine] == [False] * 6 + [True], "three layers of each kind"
        assert {t.parked_state.state.tokens for t in mine} == {len(prompts[name])}
        watched.assert_final()
    for name, prompt in prompts.items():
        count = 1 if name < "r3" else 5
        assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, count)


def test_layers_are_told_of_in_groups(seeded: random.Random) -> None:
    model = LayeredHashModel(layers=9)
    watched = Watched(make_engine(model, layer_group_bytes=700))
    prompt = random_prompt(seeded, 12, 12)  # a layer has 32 bytes of state and 12 x 16 of KV
    watched.engine.submit(RequestSpec("a", prompt, greedy(5), hold=True))
    run(watched.engine)
    told = [(t.recurrent, t.attention) for t in watched.told]
    assert told == [(3, 4), (7, 7), (9, 9)]


def test_of_several_ranks_layers_are_told_of_when_all_have_written_them() -> None:
    """This rank has written a layer before the others have: they have when they add up."""
    row = Row(1, 1, 0, 4, 0, 1, 1, True, None, None, parks="a", parked_pages=(1,))
    told: list[LayersComputed] = []
    layers = LayerBytes((8, 8), (4,))
    progress = LayerProgress([row], layers, lambda call: call(), told.extend, 1, several_ranks=True)
    progress.state_written(0)
    progress.kv_written(0)  # a mixer beside it, in the same block
    assert not told
    progress.block_ended()
    progress.block_ended()  # of a feed-forward, which writes nothing
    progress.state_written(1)
    assert [(t.recurrent, t.attention) for t in told] == [(1, 1)]
    progress.block_ended()
    progress.all_written()
    assert [(t.recurrent, t.attention, t.last) for t in told[1:]] == [(2, 1, False), (2, 1, True)]


def test_an_engine_that_nobody_listens_to_tells_nothing(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.engine.forward.runner.LayerProgress", None)
    engine = make_engine(LayeredHashModel())
    engine.submit(RequestSpec("a", random_prompt(seeded), greedy(5), hold=True))
    assert run(engine)[-1] == PrefillHeld("a")
