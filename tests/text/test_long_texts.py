"""Long texts are tokenised without the interpreter lock, and not at all where none can fit."""

import random
import threading
from pathlib import Path

import pytest
import toy_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from baton.text.byte_table import longest_token
from baton.text.tokenizer import Tokenizer

ANY = 1 << 30
PIECES = [*toy_tokenizer.byte_level().get_vocab(), "é", "日本語 ", " a b", "\n", "Ā€"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_tokenizer.save_folder(tmp_path_factory.mktemp("toy"))


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
