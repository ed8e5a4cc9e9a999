"""Long texts are tokenised in a process of their own, one at a time."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from baton.text import long_text_process
from baton.text.errors import EncodingError, LongTextError
from baton.text.long_text_process import LongTextProcess
from baton.text.token_bytes import longest_token
from baton.text.tokenizer import Tokenizer

ANY = 1 << 30
PIECES = [*toy_tokenizer.byte_level().get_vocab(), "é", "日本語 ", " a b", "\n", "Ā€"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tokenizer.save_folder(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def process(folder: Path) -> Iterator[LongTextProcess]:
    made = LongTextProcess(folder)
    yield made
    made.close()


async def test_it_says_what_the_tokenizer_says(process: LongTextProcess, folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    for text in ("hello world", "naïve café €5 日本語 😀 end" * 2000, "", "\x00\n"):
        for special in (True, False):
            ids = tuple(tokenizer.encode(text, special))
            assert await process.encode(text, ANY, special) == ids
            assert await process.encode(text, len(ids), special) == ids
            if ids:
                assert await process.encode(text, len(ids) - 1, special) == len(ids)
    with pytest.raises(EncodingError, match="surrogate"):
        await process.encode("a\ud800", ANY, True)


async def test_texts_take_turns_and_one_that_is_given_up_is_never_begun(
    process: LongTextProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    ask = process._ask

    def watched(text: str, most: int, special: bool) -> tuple[int, ...] | int:
        asked.append(len(text))
        begun.set()
        assert go_on.wait(60)
        return ask(text, most, special)

    monkeypatch.setattr(process, "_ask", watched)
    tasks = [asyncio.create_task(process.encode("a" * size, 1, False)) for size in (100_000, 7, 9)]
    await asyncio.to_thread(begun.wait, 60)
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    go_on.set()
    assert await tasks[2] == 9 and await tasks[0] == 100_000
    assert asked == [100_000, 9]


async def test_a_text_that_is_given_up_half_way_ends_the_process_and_the_next_has_another(
    process: LongTextProcess,
) -> None:
    await process.encode("warm", ANY, False)
    before = process._child
    task = asyncio.create_task(process.encode("word " * 400_000, ANY, False))
    while process._asked is None:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await process.encode("ab", 1, False) == 2
    assert before is not None and before.wait(60) != 0
    assert process._child is not before


async def test_a_process_that_was_lost_is_replaced(process: LongTextProcess) -> None:
    await process.encode("warm", ANY, False)
    assert process._child is not None
    process._child.kill()
    with pytest.raises(LongTextError, match="was lost"):
        await process.encode("hello", ANY, False)
    assert await process.encode("ab", 1, False) == 2


async def test_what_takes_too_long_or_too_much_room_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = LongTextProcess(folder, deadline_s=0.0)
    with pytest.raises(LongTextError, match="took longer than 0 s"):
        await slow.encode("x", ANY, False)
    monkeypatch.setattr(long_text_process, "MAX_WAITING_CHARS", 10)
    with pytest.raises(LongTextError, match="too many long prompts"):
        await slow.encode("x" * 11, ANY, False)
    slow.close()


def test_the_lock_is_free_while_a_text_is_tokenised(folder: Path) -> None:
    """Count what this thread does while another tokenises: all but nothing where the lock is
    held."""
    tokenizer = Tokenizer.from_folder(folder)
    text = "".join(random.Random(1).choices("abcdefgh ", k=400_000))

    def counted(begin: threading.Event, end: threading.Event) -> int:
        count = 0
        begin.wait(60)
        while not end.is_set():
            count += 1
        return count

    found = {}
    for name in ("encode", "encode_upto"):
        begin, end = threading.Event(), threading.Event()

        def work(name: str = name, begin: threading.Event = begin,
                 end: threading.Event = end) -> None:  # fmt: skip
            begin.set()
            if name == "encode":
                tokenizer.encode(text)
            else:
                tokenizer.encode_upto(text, 1)
            end.set()

        thread = threading.Thread(target=work)
        thread.start()
        found[name] = counted(begin, end)
        thread.join()
    assert found["encode_upto"] > 2 * found["encode"], found


def test_a_token_has_a_longest_text_only_where_nothing_is_dropped() -> None:
    assert longest_token(toy_tokenizer.byte_level()) == max(
        len(piece) for piece in toy_tokenizer.byte_level().get_vocab()
    )
    for other in (toy_tokenizer.byte_fallback(), toy_tokenizer.word_piece()):
        assert longest_token(other) is None
    normalised = toy_tokenizer.byte_level()
    normalised.normalizer = normalizers.NFC()
    stripped = toy_tokenizer.byte_level()
    stripped.add_tokens([AddedToken("<x>", lstrip=True)])
    removing = toy_tokenizer.byte_level()
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )
    for other in (normalised, stripped, removing):
        assert longest_token(other) is None
    split = toy_tokenizer.byte_level()
    split.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    assert longest_token(split) is not None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=20))
def test_no_text_has_fewer_tokens_than_its_bytes_allow(pieces: list[str]) -> None:
    backend = toy_tokenizer.byte_level()
    longest = longest_token(backend)
    assert longest is not None
    text = "".join(pieces)
    ids = backend.encode(text, add_special_tokens=False).ids
    assert len(text.encode()) <= longest * len(ids)
