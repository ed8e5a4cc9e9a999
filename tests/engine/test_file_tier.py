"""Prefixes in files, over the hash model: whatever is written to a wrong place, damaged or another
model's changes its tokens if it is believed."""

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from engine.engines import PAGE, assert_clean, finish_of, greedy, random_prompt, run, tokens_of
from engine.file_tiers import filed, files_of, forget_memory, paths_in, written
from engine.hash_model import HashModel, expected_tokens, hash_config
from engine.host_tiers import DEADLINE, ask, copies_wait, forget_device, saved, tier_of
from kit.polling import wait_until

from baton.core.cache_salt import SALT_BYTES, SHARED, key_part, key_salt
from baton.core.errors import ConfigError
from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.request.events import Scheduled
from baton.engine.request.request import RequestSpec
from baton.engine.tiers import file_folder, prefix_file
from baton.engine.tiers.file_folder import KeptFileError
from baton.engine.tiers.file_names import FileNames
from baton.engine.tiers.prefix_file import DRAFT

ONE, TWO = b"1" * SALT_BYTES, b"2" * SALT_BYTES


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


def left(folder: Path, prompt: tuple[int, ...], **options: Any) -> None:
    """Let an engine answer a prompt and leave what it has computed to files."""
    engine = filed(folder, **options)
    ask(engine, prompt)
    written(engine).close()
    assert paths_in(folder)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page", [4, 8, 16, 32])
def test_every_source_gives_the_same_tokens(
    seeded: random.Random, tmp_path: Path, page: int, overlap: bool
) -> None:
    """Cold, from the device, from the host, from files after a restart, and from each memory after
    that. The grid is 16, and answers end before its next depth."""
    options: dict[str, Any] = {"page_size": page, "overlap": overlap}
    prompt, depth = random_prompt(seeded, 65, 71), 64
    engine = filed(tmp_path, **options)
    assert ask(engine, prompt) == 0 and ask(engine, prompt) == depth
    forget_device(saved(engine))
    assert ask(engine, prompt) == depth
    assert (engine.counters.host_hit_tokens, engine.counters.file_hit_tokens) == (depth, 0)
    written(engine).close()
    engine = filed(tmp_path, **options)
    assert ask(engine, prompt) == depth
    assert (engine.counters.host_hit_tokens, engine.counters.file_hit_tokens) == (0, depth)
    assert ask(engine, prompt) == depth, "the device's"
    forget_device(saved(engine))
    assert ask(engine, prompt) == depth, "the host's"
    assert (engine.counters.host_hit_tokens, engine.counters.file_hit_tokens) == (depth, depth)
    forget_memory(engine)
    assert ask(engine, prompt) == depth, "the files' once more"
    assert engine.counters.file_hit_tokens == 2 * depth and not engine.counters.file_failures
    engine.close()


def test_a_conversation_goes_on_after_each_restart(seeded: random.Random, tmp_path: Path) -> None:
    """Each turn adds a file with what is new; a prefix is read from all of them."""
    text = random_prompt(seeded, 50, 60)
    for turn in range(4):
        engine = filed(tmp_path)
        (output,) = engine.generate([text], greedy(30))
        assert list(output.token_ids) == expected_tokens(HashModel(), text, 30)
        cached = output.finished.usage.cached_tokens
        assert bool(cached) == bool(turn) and engine.counters.file_hit_tokens == cached
        written(engine).close()
        assert len(paths_in(tmp_path)) == turn + 1
        text = (*text, *output.token_ids, *random_prompt(seeded, 5, 9))
        held = sum(path.stat().st_size for path in paths_in(tmp_path))
        pages = engine.plan.page_layout.page_bytes * len(text) // PAGE
        assert held < 1.5 * (pages + (turn + 1) * engine.plan.slot_layout.slot_bytes)


def test_a_prefix_that_comes_to_the_host_after_the_last_step_is_written(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of copies alone call the tier then."""
    engine, ends = filed(tmp_path), Queue[None]()
    tier_of(engine).on_done(lambda: ends.put(None))
    gate = copies_wait(monkeypatch)
    ask(engine, random_prompt(seeded, 50, 54))
    gate.set()
    while not engine.counters.files_written:
        ends.get(timeout=DEADLINE)
        tier_of(engine).collect()
    assert len(paths_in(tmp_path)) == 1
    engine.close()


@pytest.mark.parametrize("here", ["pages", "pages and state"])
def test_what_memory_has_of_a_prefix_is_not_read(
    seeded: random.Random, tmp_path: Path, here: str
) -> None:
    prompt = random_prompt(seeded, 97, 103)
    left(tmp_path, prompt)
    engine = filed(tmp_path)
    ask(engine, prompt[:49], 1)  # its pages and state are the host's, too
    written(engine)
    if here == "pages":
        pools = tier_of(engine).host.pools
        node, _ = pools.cache.hold_kv(token_key(prompt[:48]))
        pools.cache.evict_snapshots(pools.slots.size)
        pools.cache.unlock_pages(node)
        forget_device(engine)
    read: list[int] = []
    block = prefix_file._read_block

    def noted(descriptor: int, at: int, target: memoryview) -> None:
        read.append(len(target))
        block(descriptor, at, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_file, "_read_block", noted)
        assert ask(engine, prompt) == 96
    assert len(read) == 1 + 48 // PAGE, "the state, and the last pages"
    assert engine.counters.file_hit_tokens == (96 if here == "pages" else 48)
    engine.close()


def test_a_request_is_told_how_much_files_spared_it(seeded: random.Random, tmp_path: Path) -> None:
    prompt = random_prompt(seeded, 50, 54)
    left(tmp_path, prompt)
    engine = filed(tmp_path)
    for name, file in (("file", 48), ("device", 0)):
        engine.submit(RequestSpec(name, prompt, greedy(4)))
        events = run(engine)
        (scheduled,) = [event for event in events if isinstance(event, Scheduled)]
        assert (scheduled.cached_tokens, scheduled.cached_host) == (48, 0)
        usage = finish_of(events, name).usage
        assert (usage.cached_tokens, usage.cached_host_tokens) == (48, 0)
        assert scheduled.cached_file == usage.cached_file_tokens == file
    engine.close()


def test_only_what_is_finished_or_hit_twice_is_written(
    seeded: random.Random, tmp_path: Path
) -> None:
    engine = filed(tmp_path)
    shared = random_prompt(seeded, 48, 48)
    engine.submit(RequestSpec("r", (*shared, 1, 2, 3), greedy(60)))
    for _ in range(20):
        engine.step()
    assert not files_of(engine).writing, "it runs"
    run(engine)
    written(engine)
    assert len(paths_in(tmp_path)) == 1
    for end in range(4):
        engine.generate([(*shared, 50 + end, *random_prompt(seeded, 3, 9))], greedy(1))
        written(engine)
    engine.close()
    engine = filed(tmp_path)
    assert ask(engine, (*shared, 90, 91)) == 48, "where the texts part, hit twice"
    assert engine.counters.file_hit_tokens == 48
    engine.close()


Fault = Callable[[pytest.MonkeyPatch], None]


def _fails_at(step: str) -> Fault:
    """Return what lets a step of writing fail as a full disk does."""

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        if step == "write":
            monkeypatch.setattr(prefix_file, "digest_of", fails)
        else:
            monkeypatch.setattr(f"os.{step}", fails)

    return patch


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_disk_that_is_full_costs_a_hit(seeded: random.Random, tmp_path: Path, step: str) -> None:
    engine = filed(tmp_path)
    prompt = random_prompt(seeded, 50, 54)
    with pytest.MonkeyPatch.context() as patch:
        _fails_at(step)(patch)
        assert ask(engine, prompt) == 0
        written(engine)
    assert engine.counters.file_failures == 1 and not engine.counters.files_written
    assert not paths_in(tmp_path), "no draft is left"
    forget_memory(engine)
    assert ask(engine, prompt) == 0 and engine.counters.file_misses == 2
    assert written(engine).counters.files_written == 1, "the next time there is room"
    engine.close()


def _flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["magic", "digest", "mac", "state", "page", "last"])
def test_a_flipped_bit_costs_a_hit(seeded: random.Random, tmp_path: Path, part: str) -> None:
    prompt = random_prompt(seeded, 50, 54)
    left(tmp_path, prompt)
    (path,) = paths_in(tmp_path)
    header = prefix_file._header_bytes(1 + 48 // PAGE)
    engine = filed(tmp_path)
    slot, size = engine.plan.slot_layout.slot_bytes, path.stat().st_size
    places = {"magic": 0, "digest": 40, "mac": header - 1, "state": header, "page": header + slot}
    _flipped(path, places.get(part, size - 1))
    assert ask(engine, prompt) == 0
    assert engine.counters.file_failures == 1 and not engine.counters.file_hit_tokens
    assert_nothing_is_held(engine)
    written(engine).close()
    engine = filed(tmp_path)
    assert ask(engine, prompt) == 48, "it was written anew"
    engine.close()


def assert_nothing_is_held(engine: Engine) -> None:
    slots, pages = tier_of(engine).counts()
    assert slots[Owner.TICKET] == pages[Owner.TICKET] == 0


@pytest.mark.parametrize("how", ["short", "long", "empty", "gone", "another's", "first page"])
def test_a_wrong_file_costs_a_hit(seeded: random.Random, tmp_path: Path, how: str) -> None:
    prompt, other = (random_prompt(seeded, 50, 54) for _ in range(2))
    left(tmp_path, prompt)
    (path,) = paths_in(tmp_path)
    engine = filed(tmp_path)
    if how == "gone":
        path.unlink()
    elif how == "another's":
        left(tmp_path, other)
        (another,) = set(paths_in(tmp_path)) - {path}
        another.replace(path)
    elif how == "first page":
        engine.close()
        path.rename(path.with_suffix(".9999"))  # more than it has
        engine = filed(tmp_path)
    else:
        data = path.read_bytes()
        path.write_bytes({"short": data[:-1], "long": data + b"x", "empty": b""}[how])
    assert ask(engine, prompt) == 0
    assert not engine.counters.file_hit_tokens
    assert engine.counters.file_failures + engine.counters.file_misses == 1
    assert_nothing_is_held(engine)
    engine.close()


@pytest.mark.parametrize("what", ["key", "page size", "layers", "identity"])
def test_anothers_files_are_not_found(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    prompt = random_prompt(seeded, 65, 71)
    left(tmp_path, prompt)
    options: dict[str, Any] = {}
    model = None
    if what == "key":
        options["state_key_file"] = tmp_path / "other"
    elif what == "page size":
        options["page_size"] = 2 * PAGE
    elif what == "layers":
        model = HashModel(hash_config(layers=2))
    else:
        monkeypatch.setattr(
            "baton.engine.tiers.file_tier.weights_digest", lambda *_: "one byte differs"
        )
    engine = filed(tmp_path, model, **options)
    (output,) = engine.generate([prompt], greedy(3))
    assert list(output.token_ids) == expected_tokens(model or HashModel(), prompt, 3)
    assert not output.finished.usage.cached_tokens
    assert (engine.counters.file_misses, engine.counters.file_failures) == (1, 0)
    engine.close()


def test_a_file_under_a_name_of_another_model_is_not_believed(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if names were equal, signatures would not be."""
    monkeypatch.setattr(FileNames, "along", lambda self, key, salt: ["a" * 32] * (len(key) // 32))
    prompt = random_prompt(seeded, 50, 54)
    left(tmp_path, prompt)
    monkeypatch.setattr("baton.engine.tiers.file_tier.weights_digest", lambda *_: "other")
    engine = filed(tmp_path)
    assert ask(engine, prompt) == 0
    assert engine.counters.file_failures == 1
    engine.close()


_numbers = count()


def ask_as(engine: Engine, salt: bytes, prompt: tuple[int, ...]) -> int:
    """Do as `ask` does with a request of a salt."""
    name = f"r{next(_numbers)}"
    engine.submit(RequestSpec(name, prompt, greedy(3), cache_salt=salt))
    events = run(engine)
    assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, 3)
    return finish_of(events, name).usage.cached_tokens


def test_salts_are_kept_apart_and_names_tell_nothing(seeded: random.Random, tmp_path: Path) -> None:
    prompt = random_prompt(seeded, 50, 54)
    engine = filed(tmp_path)
    assert ask_as(engine, ONE, prompt) == 0
    written(engine).close()
    (path,) = paths_in(tmp_path)
    assert ONE.hex() not in str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    engine = filed(tmp_path)
    assert ask_as(engine, TWO, prompt) == 0
    assert ask_as(engine, ONE, prompt) == 48
    written(engine).close()
    assert len({path.parent for path in paths_in(tmp_path)}) == 2


def test_flushing_the_cache_removes_files(seeded: random.Random, tmp_path: Path) -> None:
    engine = filed(tmp_path)
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    written(engine)
    assert paths_in(tmp_path) and engine.flush_cache() and not paths_in(tmp_path)
    assert ask(engine, prompt) == 0
    engine.close()


OURS = key_salt("ada", SHARED), key_salt("ada", ONE), key_salt("ada", TWO)
THEIRS = key_salt("bob", ONE), ONE, SHARED


@pytest.mark.parametrize(
    ("salts", "removed"), [(key_part("ada"), OURS), (OURS[1], OURS[1:2]), (ONE, (ONE,))]
)
def test_what_is_of_a_key_or_a_salt_is_removed_from_memory_and_files(
    seeded: random.Random, tmp_path: Path, salts: bytes, removed: tuple[bytes, ...]
) -> None:
    prompt, engine = random_prompt(seeded, 50, 54), filed(tmp_path)
    every = [*OURS, *THEIRS]
    for salt in every:
        assert ask_as(engine, salt, prompt) == 0
    written(engine)
    assert len(paths_in(tmp_path)) == len(every)
    assert engine.flush_cache(salts)
    assert_clean(engine)
    assert len(paths_in(tmp_path)) == len(list((tmp_path / "files").iterdir()))
    assert len(paths_in(tmp_path)) == len(every) - len(removed)
    for salt in every:
        assert ask_as(engine, salt, prompt) == (0 if salt in removed else 48)
    engine.close()
    engine = filed(tmp_path)  # which finds what was left there
    assert engine.flush_cache(salts)
    for salt in every:
        assert ask_as(engine, salt, prompt) == (0 if salt in removed else 48)
    assert engine.counters.file_hit_tokens == 48 * (len(every) - len(removed))
    engine.close()


def removed(engine: Engine, salt: bytes) -> bool:
    """Try to remove what is of a salt, as a worker does again and again."""
    tier_of(engine).collect()
    return engine.flush_cache(salt)


def test_what_a_request_uses_is_not_removed_before_it_has_ended(
    seeded: random.Random, tmp_path: Path
) -> None:
    prompt, engine = random_prompt(seeded, 50, 54), filed(tmp_path)
    ask_as(engine, ONE, prompt)
    written(engine)
    engine.submit(RequestSpec("next", prompt, greedy(3), cache_salt=ONE))
    assert not engine.flush_cache(ONE) and paths_in(tmp_path)
    assert engine.flush_cache(TWO), "which nobody uses"
    assert finish_of(run(engine), "next").usage.cached_tokens == 48
    wait_until(lambda: removed(engine, ONE))
    assert not paths_in(tmp_path) and ask_as(engine, ONE, prompt) == 0
    engine.close()


def test_what_is_on_its_way_is_removed_too(seeded: random.Random, tmp_path: Path) -> None:
    """A prefix may be being copied or written right after its request, or wait for that."""
    prompt, engine = random_prompt(seeded, 50, 54), filed(tmp_path)
    for _ in range(8):
        assert ask_as(engine, ONE, prompt) == 0
        wait_until(lambda: removed(engine, ONE))
        written(engine)
        assert not paths_in(tmp_path)
    engine.close()


def test_a_file_that_cannot_be_removed_is_told(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = filed(tmp_path)
    ask(engine, random_prompt(seeded, 50, 54))
    written(engine)

    def refuses(*_: object, **__: object) -> None:
        raise PermissionError("the folder belongs to somebody else")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuses)
        with pytest.raises(KeptFileError, match="belongs to somebody else"):
            engine.flush_cache()
    assert engine.flush_cache() and not paths_in(tmp_path)
    engine.close()


def test_a_look_brings_nothing_back_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a part is removed without a look at the others."""
    ours, theirs = "a" * 32, "c" * 32
    for salt in (ours, theirs):
        (tmp_path / salt).mkdir()
        (tmp_path / salt / f"{'b' * 32}.0").write_bytes(bytes(10))
    folder = file_folder.FileFolder(tmp_path, 1 << 30, 3600.0)
    folder.look()
    listed, scandir = file_folder._listed, os.scandir
    looked_at: list[str] = []

    def noting(path: Any) -> Any:
        looked_at.append(Path(path).name)
        return scandir(path)

    def removing(*words: Any) -> Iterator[Any]:
        yield from listed(*words)
        monkeypatch.setattr(file_folder, "_listed", listed)
        monkeypatch.setattr(os, "scandir", noting)
        folder.clear(ours[:16])

    monkeypatch.setattr(file_folder, "_listed", removing)
    folder.look()
    assert len(folder) == 1 and folder.nbytes == 10
    assert ours in looked_at and theirs not in looked_at


def test_workers_share_a_folder(seeded: random.Random, tmp_path: Path) -> None:
    one, other = filed(tmp_path), filed(tmp_path)
    prompt = random_prompt(seeded, 50, 54)
    ask(one, prompt)
    written(one)
    files_of(other)._next_look = 0.0  # the time has come

    def seen() -> bool:
        tier_of(other).collect()
        return bool(len(files_of(other)._blocks.folder))

    wait_until(seen)
    assert ask(other, prompt) == 48 and other.counters.file_hit_tokens == 48
    written(other)
    one.flush_cache()
    forget_memory(other)
    assert ask(other, prompt) == 0, "gone, as far as it knows by now"
    one.close()
    other.close()


def test_the_oldest_files_make_room(seeded: random.Random, tmp_path: Path) -> None:
    prompts = [random_prompt(seeded, 50, 54) for _ in range(6)]
    left(tmp_path, prompts[0])
    (path,) = paths_in(tmp_path)
    budget = 3 * path.stat().st_size
    for prompt in prompts[1:]:
        left(tmp_path, prompt, file_cache_bytes=budget)
        time.sleep(0.002)  # another time of use
        assert sum(path.stat().st_size for path in paths_in(tmp_path)) <= budget
    engine = filed(tmp_path, file_cache_bytes=budget)
    newest_first = [ask(engine, prompt, 1) for prompt in reversed(prompts)]
    assert newest_first == [48, 48, 48, 0, 0, 0]
    engine.close()


def test_old_files_and_drafts_are_removed(seeded: random.Random, tmp_path: Path) -> None:
    left(tmp_path, random_prompt(seeded, 50, 54))
    (path,) = paths_in(tmp_path)
    draft = path.with_name(f"{DRAFT}0")
    others = path.parents[1] / "log" / "access.log.1", path.with_name("notes.1")
    for each in (draft, *others):
        each.parent.mkdir(exist_ok=True)
        each.touch()
    now = time.time()
    folder = file_folder.FileFolder(tmp_path / "files", 1 << 30, 3600.0, lambda: now)
    folder.look()
    assert len(folder) == 1 and draft.exists(), "somebody may be writing it"
    now += 1800
    folder.look()
    assert len(folder) == 1 and not draft.exists()
    now += 1801
    folder.look()
    assert not len(folder) and not path.exists()
    assert all(each.exists() for each in others), "they are not ours"


def test_a_read_that_is_later_than_computing_is_left(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_prompt(seeded, 50, 54)
    left(tmp_path, prompt)
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: False)
    engine = filed(tmp_path)
    assert ask(engine, prompt) == 0 and not engine.counters.file_failures
    engine.close()


def test_random_conversations_with_tiny_pools_restarts_and_damage(
    seeded: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All memories evict, copies are late at random, engines start anew, and bits flip in files:
    every answer is the definition's."""
    put, jitter = HostBytes.put, random.Random(seeded.random())

    def late(self: HostBytes, start: int, payload: memoryview) -> None:
        time.sleep(jitter.choice((0.0, 0.0, 0.0, 0.001)))  # a late copy
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", late)
    texts = [random_prompt(seeded, 20, 70) for _ in range(8)]
    hits = failures = 0
    for _ in range(6):
        engine = filed(
            tmp_path,
            pages=36,
            chunk=24,
            cached_snapshots=3,
            host_cache_state_bytes=6 * 512,
            host_cache_bytes=60 * 512,
            file_cache_bytes=40_000,
        )
        for number in seeded.sample(range(8), 8):
            prompt, asked = texts[number], seeded.randint(1, 30)
            engine.submit(RequestSpec(f"c{number}", prompt, greedy(asked)))
            if seeded.random() < 0.5:
                continue
            answer(engine, texts, seeded)
        answer(engine, texts, seeded)
        if seeded.random() < 0.5:
            written(engine)
        hits += engine.counters.file_hit_tokens
        failures += engine.counters.file_failures
        engine.close()
        for path in paths_in(tmp_path):
            if seeded.random() < 0.1:
                _flipped(path, seeded.randrange(path.stat().st_size))
    print(hits, failures)
    assert hits


def answer(engine: Engine, texts: list[tuple[int, ...]], rng: random.Random) -> None:
    """Let the engine answer all that waits, and go on with those conversations."""
    events = run(engine)
    for number, prompt in enumerate(texts):
        if any(event.request_id == f"c{number}" for event in events):
            told = tokens_of(events, f"c{number}")
            assert told == expected_tokens(HashModel(), prompt, len(told))
            if len(prompt) < 200:
                texts[number] = (*prompt, *told, *random_prompt(rng, 1, 12))
    assert_clean(engine)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"file_cache_bytes": 0}, "file_cache is given, and file_cache_gb is not"),
        ({"state_key_file": None}, "and state_key_file is not"),
        ({"host_cache_bytes": 0, "host_cache_state_bytes": 0}, "and host_cache_gb is not"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        filed(tmp_path, **options)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(ConfigError, match=r"file_cache .* cannot be used"):
        filed(tmp_path)
