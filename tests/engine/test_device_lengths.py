"""Lengths that the device keeps: right in every step, and noticed where they are not."""

import random

import pytest
import torch
from engine.engines import finish_of, greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import HashModel, expected_tokens
from torch import Tensor

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.request import RequestSpec
from baton.engine.step.plain_rows import NO_GROUP
from baton.kernels.torch_kernels import TorchKernels


def check_lengths(engine: Engine) -> None:
    """Compare the tables with what the host knows, once all steps are over."""
    assert not engine._steps.busy
    tables = engine._pools.tables
    for request in engine._requests:
        if request.table_row:
            row = request.table_row
            assert int(tables.lengths[row]) == len(request.spec.prompt_ids) + len(request.output)
            assert int(tables.prompts[row]) == len(request.spec.prompt_ids)


def preempted(engine: Engine, rng: random.Random) -> tuple[list[RequestSpec], list[list[int]]]:
    """Answer requests of which some give up their memory half-way: the specs and their tokens."""
    specs = [
        RequestSpec(f"r{number}", random_prompt(rng, 2, 30), greedy(rng.randint(20, 40)))
        for number in range(10)
    ]
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    assert engine.counters.preemptions
    assert all(finish_of(events, spec.request_id).error is None for spec in specs)
    return specs, [tokens_of(events, spec.request_id) for spec in specs]


def check_answers(engine: Engine, rng: random.Random) -> None:
    """Compare the answers of requests of which some give up their memory half-way with their
    model's."""
    specs, found = preempted(engine, rng)
    model = HashModel()
    assert found == [expected_tokens(model, s.prompt_ids, s.sampling.max_tokens) for s in specs]


@pytest.mark.parametrize("overlap", [True, False])
def test_lengths_are_right_after_preemptions(seeded: random.Random, overlap: bool) -> None:
    check_answers(make_engine(pages=12, max_running=6, chunk=32, overlap=overlap), seeded)


def test_without_overlap_the_tables_have_the_hosts_lengths_after_each_step(
    seeded: random.Random,
) -> None:
    engine = make_engine(pages=12, max_running=6, chunk=32, overlap=False)
    for number in range(10):
        engine.submit(RequestSpec(f"r{number}", random_prompt(seeded, 2, 30), greedy(30)))
    steps = 0
    while engine.has_work:
        engine.step()
        check_lengths(engine)
        steps += 1
    assert engine.counters.preemptions and steps > 60


def test_a_length_that_does_not_grow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RequestTables,
        "advance",
        lambda self, rows, ends: torch.index_select(self.lengths, 0, rows, out=ends),
    )
    engine = make_engine()
    engine.submit(RequestSpec("a", (5,) * 3, greedy(9)))
    with pytest.raises(AssertionError):
        run(engine)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_length_off_by_one_after_preemption_is_noticed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    begin = RequestTables.begin_lengths

    def off_by_one(self: RequestTables, rows: Tensor, lengths: Tensor, prompts: Tensor) -> None:
        begin(self, rows, lengths + by * (lengths > prompts), prompts)

    monkeypatch.setattr(RequestTables, "begin_lengths", off_by_one)
    with pytest.raises(AssertionError):
        check_answers(make_engine(pages=12, max_running=6, chunk=32), seeded)


def test_a_step_of_the_last_steps_rows_sends_new_pages_alone(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = HostPack.ship
    shipped: list[set[str]] = []

    def noted(self: HostPack, device: torch.device) -> DevicePack:
        shipped.append(set(self._fields))
        return ship(self, device)

    monkeypatch.setattr(HostPack, "ship", noted)
    engine = make_engine(prefix_caching=False, max_running=3, chunk=256)
    for number in range(3):
        engine.submit(RequestSpec(f"r{number}", random_prompt(seeded, 3, 20), greedy(40)))
    last, same, grown = NO_GROUP, 0, 0
    while engine.has_work:
        engine.plan_step()
        batch = engine._steps.planned
        shipped.clear()
        engine.run_step()
        if batch is None:
            continue
        if batch.plain.group is last and not batch.rows:
            same += 1
            grown += bool(batch.entries)
            assert len(shipped) == bool(batch.entries)
            assert all("entry_places" in fields for fields in shipped)
        else:
            assert any("table_rows" in fields for fields in shipped)
        last = NO_GROUP if batch.rows else batch.plain.group
    assert same > 30 and grown >= 4  # three rows may grow in the same steps


def test_a_draws_noise_is_that_of_its_place_among_the_output(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is not counted, and a preempted request goes on where it was."""
    sample = TorchKernels.sample_tokens
    drawn: dict[int, list[int]] = {}

    def noted(
        logits: Tensor,
        rows: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        filters: tuple[Tensor, ...] | None,
    ) -> Tensor:
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
            drawn.setdefault(seed, []).append(position)
        return sample(logits, rows, temperature, seeds, positions, filters)

    monkeypatch.setattr(TorchKernels, "sample_tokens", staticmethod(noted))
    engine = make_engine(pages=12, max_running=6, chunk=32)
    for number in range(10):
        sampling = SamplingParams(temperature=0.8, seed=number, max_tokens=30, ignore_eos=True)
        engine.submit(RequestSpec(f"r{number}", random_prompt(seeded, 2, 30), sampling))
    run(engine)
    assert engine.counters.preemptions
    assert drawn == {number: list(range(30)) for number in range(10)}
