"""An engine whose replica has several ranks, each a process: its tokens are those of transformers,
and it ends with the reason when a rank is lost, hangs or fails."""

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import assert_clean, greedy, run, tokens_of
from kit.polling import wait_until
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.core.errors import ConfigError, RankError
from baton.engine.assembly import followers, leading_model
from baton.engine.assembly.loader import load_model
from baton.engine.collectives.rank_messages import BooksWanted, RankPools
from baton.engine.collectives.step_message import StepMessage, StepWriter
from baton.engine.engine import Engine
from baton.engine.loop import EngineLoop
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.step.forward_batch import ForwardBatch

NAME = "granite_moe_nope"
STEPS = 48
DEADLINE_S = 60.0
LENGTHS = (2, 16, 53, 101)


def options(folder: Path, memory_bytes: int = 1 << 28, **more: object) -> EngineConfig:
    return EngineConfig(
        model=folder,
        page_size=16,
        max_running=8,
        chunked_prefill_size=64,
        mamba_track_interval=16,
        memory_bytes=memory_bytes,
        cached_snapshots=6,
        snapshots_per_prefill=4,
        tp=2,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def folder(oracle: Oracle) -> Path:
    return oracle.checkpoint(NAME)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = Engine.load(options(folder))
    yield engine
    engine.close()


@pytest.fixture
def lost(folder: Path) -> Iterator[Engine]:
    """An engine that may lose its other rank."""
    engine = Engine.load(options(folder))
    yield engine
    engine.close()


def prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, SPECS[NAME].config["vocab_size"]) for _ in range(length))


def follower_of(engine: Engine) -> int:
    assert engine.followers is not None
    (process,) = engine.followers.processes
    return process


def test_a_ragged_batch_gets_the_tokens_of_transformers(
    oracle: Oracle, engine: Engine, folder: Path, seeded: random.Random
) -> None:
    prompts = [prompt(seeded, length) for length in LENGTHS]
    outputs = engine.generate(prompts, greedy(STEPS))
    oracle.assert_all_greedy(folder, prompts, [o.token_ids for o in outputs], STEPS)
    assert_clean(engine)


def test_so_do_turns_that_resume_from_what_is_cached_and_branch(
    oracle: Oracle, engine: Engine, folder: Path, seeded: random.Random
) -> None:
    turn = prompt(seeded, 70)
    (first,) = engine.generate([turn], greedy(STEPS))
    hits = engine.counters.state_hit_tokens
    branches = [(*turn, *first.token_ids, *prompt(seeded, n)) for n in (3, 9, 20)]
    outputs = engine.generate(branches, greedy(STEPS))
    assert engine.counters.state_hit_tokens - hits >= 3 * 64
    turns, answers = [turn, *branches], [first, *outputs]
    oracle.assert_all_greedy(folder, turns, [o.token_ids for o in answers], STEPS)
    assert_clean(engine)


def test_so_do_requests_that_are_preempted(
    oracle: Oracle, engine: Engine, folder: Path, seeded: random.Random
) -> None:
    plan = engine.plan
    budget = plan.weight_bytes + plan.step_bytes + plan.tables.nbytes
    budget += plan.slots * plan.slot_layout.slot_bytes + 14 * plan.page_layout.page_bytes
    small = Engine.load(options(folder, memory_bytes=budget))
    prompts = [prompt(seeded, length) for length in LENGTHS]
    for number, each in enumerate(prompts):
        small.submit(RequestSpec(str(number), each, greedy(STEPS)))
    waiting = [small.status().waiting]
    events = run(small, lambda _: waiting.append(small.status().waiting))
    small.close()
    assert any(a < b for a, b in pairwise(waiting)), "the pool was to be too small"
    got = [tokens_of(events, str(number)) for number in range(len(prompts))]
    oracle.assert_all_greedy(folder, prompts, got, STEPS)


def test_no_ticket_takes_memory_that_a_rank_behind_the_leader_may_still_write(
    folder: Path, seeded: random.Random
) -> None:
    """The slot of a request that has ended is free, but not for peers while its step runs."""
    behind = Engine.load(options(folder, tickets=6))
    slots, follower = behind.states.ids, follower_of(behind)
    os.kill(follower, signal.SIGSTOP)
    try:
        behind.submit(RequestSpec("a", prompt(seeded, 40), greedy(STEPS), hold=True))
        behind.plan_step()
        behind.run_step()  # launches it
        kept = behind.parked_state("a")
        behind.cancel("a", "the client left")
        assert slots.available_to_channels == slots.available - 1
        granted = [behind.reserve(f"t{number}", 20) for number in range(6)]
        for each in granted:
            assert each is not None and each.state.slot != kept.state.slot
            assert not set(each.state.pages) & set(kept.state.pages)
    finally:
        os.kill(follower, signal.SIGCONT)
    run(behind)
    assert slots.available_to_channels == slots.available
    for each in granted:
        assert each is not None
        behind.reservations.abandon(each)
    assert_clean(behind)
    behind.close()


def test_a_rank_that_is_killed_ends_the_step_with_its_reason(
    lost: Engine, seeded: random.Random
) -> None:
    lost.submit(RequestSpec("a", prompt(seeded, 40), greedy(STEPS)))
    lost.step()
    os.kill(follower_of(lost), signal.SIGKILL)
    with pytest.raises(RankError, match=r"rank 1 is lost: process .* was killed by signal 9"):
        until_it_raises(lost)


def test_so_does_one_that_hangs_after_its_deadline(folder: Path, seeded: random.Random) -> None:
    hanging = Engine.load(options(folder, rank_timeout_s=5.0))
    hanging.submit(RequestSpec("a", prompt(seeded, 40), greedy(STEPS)))
    os.kill(follower_of(hanging), signal.SIGSTOP)
    with pytest.raises(RankError, match="waits for the others at most 5 s: TimeoutError"):
        until_it_raises(hanging)
    hanging.close()


def until_it_raises(engine: Engine) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        engine.step()


def test_the_loop_of_an_idle_engine_ends_when_a_rank_fails(lost: Engine) -> None:
    failures: queue.Queue[Exception] = queue.Queue()
    loop = EngineLoop(lost, lambda _: None, failures.put)
    loop.start()
    assert lost.followers is not None
    lost.followers.send("not a step")
    error = failures.get(timeout=DEADLINE_S)
    assert isinstance(error, RankError)
    assert str(error).startswith("rank 1 has failed: the leader sent str, not a step")
    loop.stop(DEADLINE_S)


def test_a_rank_that_reports_twice_ends_the_replica(lost: Engine) -> None:
    assert lost.followers is not None and not lost.audit()
    lost.followers.send(BooksWanted())  # the audit has asked once
    followers = lost.followers
    wait_until(lambda: followers.lost is not None, lambda: "nobody has noticed")
    (finding,) = lost.audit()
    assert finding.startswith("rank 1 has reported twice: Books(")


def test_pools_are_made_once_all_ranks_have_room_for_them(lost: Engine) -> None:
    """A rank that fails when it is asked, as one without room does, ends the start with its
    reason."""
    assert lost.followers is not None
    sizes = RankPools(1, 1, 16, table_rows=1, table_width=1, kept_tokens=0, step_bytes=0)
    with pytest.raises(RankError, match="rank 1 has failed: the leader sent RankPools"):
        lost.followers.begin(sizes, lambda: pytest.fail("the rank has not said that it has room"))


def test_so_does_one_that_meets_the_leader_twice_for_one_step(
    lost: Engine, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next parts would be added to those of other layers, without any error."""
    ranks = lost.followers
    assert ranks is not None
    send = ranks.send
    monkeypatch.setattr(ranks, "send", lambda message: [send(message), send(message)])
    lost.submit(RequestSpec("a", prompt(seeded, 40), greedy(STEPS)))
    with pytest.raises(RankError, match=r"it has met the others \d+ times before a step, and the"):
        until_it_raises(lost)


def test_the_audit_compares_what_each_rank_has_written(
    lost: Engine, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = StepWriter.message
    wrong: list[str] = []

    def mixed_up(self: StepWriter, batch: ForwardBatch, met: int) -> StepMessage:
        for name in wrong:
            zeros: dict[str, Any] = {name: torch.zeros_like(getattr(batch, name))}
            batch = replace(batch, **zeros)
        return message(self, batch, met)

    monkeypatch.setattr(StepWriter, "message", mixed_up)
    lost.generate([prompt(seeded, 100)], greedy(STEPS))
    assert not lost.audit()
    expected = []
    for name, what in (
        ("write_slots", "has written other slots than"),
        ("token_pages", "has written other pages than"),
        ("table_rows", "has other block tables than"),
    ):
        wrong.append(name)
        lost.generate([prompt(seeded, 40)], greedy(4))
        expected.append(f"rank 1 {what} rank 0")
        assert lost.audit() == expected


LEADER = """
import sys, time
from pathlib import Path
from baton.engine.settings.config import EngineConfig
from baton.engine.engine import Engine
engine = Engine.load(EngineConfig(Path(sys.argv[1]), memory_bytes=1 << 28, page_size=16, tp=2))
print(*engine.followers.processes, flush=True)
time.sleep(600)
"""


def test_an_engine_that_cannot_be_made_ends_its_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(followers.Follower):
        def __init__(self, rank: int, timeout_s: float, memory: int) -> None:
            super().__init__(rank, timeout_s, memory)
            started.append(self.process)

    monkeypatch.setattr(followers, "Follower", Noted)
    with pytest.raises(ConfigError, match="memory"):
        Engine.load(options(folder, memory_bytes=1 << 20))
    (rank,) = started
    assert rank.poll() is not None, "the rank lives on"


def test_a_rank_ends_when_its_leader_is_killed(folder: Path) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert leader.stdout is not None
        follower = int(leader.stdout.readline())
        assert running(follower)
    finally:
        leader.kill()
        leader.wait()
        if leader.stdout is not None:
            leader.stdout.close()
    wait_until(lambda: not running(follower), lambda: "the rank lives on")


def test_a_rank_whose_end_would_wait_ends_with_its_leader() -> None:
    """NCCL's teardown may wait for a leader that was killed in the middle of a collective."""
    ours, theirs = socket.socketpair()
    ending = "import atexit, sys, time; atexit.register(time.sleep, 600)\n"
    code = f"{ending}from baton.engine.assembly.follower import main\nmain()"
    with ours, theirs:
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        rank = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.close()
        try:
            assert rank.wait(DEADLINE_S) == 0
        finally:
            rank.kill()
            rank.wait()


def running(process: int) -> bool:
    """The process is there, and not a zombie that nobody waits for."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_what_lies_on_devices_is_broadcast(
    folder: Path, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks on GPUs work so, whose tensors the host does not know; these are broadcast over gloo.
    Drafts are among them, whose commits are broadcast too."""
    prompts = [prompt(seeded, length) for length in LENGTHS]
    plain = Engine.load(replace(options(folder), tp=1))
    expected = [output.token_ids for output in plain.generate(prompts, greedy(STEPS))]
    plain.close()
    told: list[StepMessage] = []
    message = StepWriter.message

    def noted(self: StepWriter, batch: ForwardBatch, met: int) -> StepMessage:
        told.append(message(self, batch, met))
        return told[-1]

    monkeypatch.setattr(StepWriter, "message", noted)
    monkeypatch.setattr(leading_model, "unread", lambda device: True)
    engine = Engine.load(options(folder, speculative_algorithm=SpeculativeAlgorithm.NGRAM))
    try:
        for _ in range(2):  # the second time from what is cached
            outputs = engine.generate(prompts, greedy(STEPS))
            assert [output.token_ids for output in outputs] == expected
        assert_clean(engine)
    finally:
        engine.close()
    assert {each.numbers for each in told} == {None}, "nothing was read on the host"
    assert any(each.window is not None for each in told), "no step had drafts"


def test_an_engine_refuses_what_its_ranks_cannot_do_before_it_starts_them(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "Follower", lambda *_: pytest.fail("a rank was started"))
    with pytest.raises(ConfigError, match="bamba_odd runs on 1 rank"):
        Engine.load(options(oracle.checkpoint("bamba_odd")))
    with pytest.raises(ConfigError, match="device is cuda:1, one device"):
        load_model(options(oracle.checkpoint(NAME), device="cuda:1"))
