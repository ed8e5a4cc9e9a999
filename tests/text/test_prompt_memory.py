"""Prompts whose earlier parts are remembered have the ids that they have without."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
import toy_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from baton.bench.sessions.chat_model import chat_tokenizer
from baton.text.errors import EncodingError
from baton.text.prompt_cuts import PromptCuts
from baton.text.prompt_memory import PromptMemory
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer as TextTokenizer

ANY = 1 << 30
SEED = 39
MARKS = ["<s>", "<|end|>", "<|user|>", "<|assistant|>"]
# Tokens that begin as others do, contain them, take white space, or are looked for in other text.
ODD: list[tuple[str, dict[str, Any]]] = [
    ("<|end|>\n", {"normalized": False}),
    ("x<|user|>y", {"normalized": False}),
    ("<|us", {"normalized": False}),
    ("<left>", {"normalized": False, "lstrip": True}),
    ("<right>", {"normalized": False, "rstrip": True}),
    (" <room> ", {"normalized": False}),
    ("<Plain>", {"normalized": True}),
    ("<both>", {"normalized": True, "lstrip": True, "rstrip": True}),
    ("<word>", {"normalized": True, "single_word": True}),
]
WIDE_END = "\uff1c|end|\uff1e"  # a normaliser makes a mark of it
WORDS = [
    *MARKS, *(text for text, _ in ODD), "hello", " world", "  ", "\n", "\n\n", " ", "x", "y",
    "naïve", "日本語", WIDE_END, "<|END|>", "<", "|end|>", "STOP", " the", "é", "😀", "<|", "1234",
]  # fmt: skip


def ids_of(memory: PromptMemory, text: str) -> list[int]:
    """Return the ids of a text that is not too long."""
    ids = memory.encode_upto(text, ANY, b"")
    assert not isinstance(ids, int)
    return list(ids)


def with_marks(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizer.add_tokens([AddedToken(text, **flags) for text, flags in ODD])
    return tokenizer


def byte_level() -> Tokenizer:
    return with_marks(toy_tokenizer.byte_level())


def spaced_byte_level() -> Tokenizer:
    """RoBERTa's kind: a space before each stretch, and tokens around the whole."""
    tokenizer = toy_tokenizer.byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <|end|>", special_tokens=[("<s>", 0), ("<|end|>", 1)]
    )
    return with_marks(tokenizer)


def byte_fallback() -> Tokenizer:
    return with_marks(toy_tokenizer.byte_fallback())


def metaspace(scheme: str) -> Tokenizer:
    """Llama 3's and Mistral's kind: a mark for the space before the first stretch alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = BpeTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator([*toy_tokenizer.CORPUS, *WORDS], trainer)
    return with_marks(tokenizer)


def unigram() -> Tokenizer:
    """T5's kind: sentencepiece, with a normaliser that changes what text is equal."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=90, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*toy_tokenizer.CORPUS, *WORDS], trainer)
    return with_marks(tokenizer)


def whole_words() -> Tokenizer:
    """A model that makes a mark's id of text which is no mark before it is normalised."""
    words = ["<unk>", *MARKS, "hello", " world", "x"]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return with_marks(tokenizer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "spaced_byte_level": spaced_byte_level,
    "byte_fallback": byte_fallback,
    "metaspace_first": lambda: metaspace("first"),
    "metaspace_always": lambda: metaspace("always"),
    "unigram": unigram,
    "word_piece": lambda: with_marks(toy_tokenizer.word_piece()),
    "whole_words": whole_words,
    "trained": chat_tokenizer,
}
BACKENDS = {name: make() for name, make in KINDS.items()}


def text_tokenizer(kind: str) -> TextTokenizer:
    return TextTokenizer(BACKENDS[kind], SpecialTokens())


conversations = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map("".join), max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    turns=conversations,
    others=conversations,
    least_chars=st.integers(1, 12),
    most_bytes=st.sampled_from([0, 700, 3000, ANY]),
)
def test_ids_are_those_of_a_whole_tokenisation(
    kind: str, turns: list[str], others: list[str], least_chars: int, most_bytes: int
) -> None:
    tokenizer = text_tokenizer(kind)
    assert tokenizer.prompt_cuts is not None
    memory = PromptMemory(tokenizer, most_bytes, least_chars)
    said = ""
    for number, turn in enumerate([*turns, *others, *turns]):
        said = turn if number == len(turns) else said + turn
        for text in (said, said + "<|assistant|>", said[len(said) // 3 :]):
            fresh = tokenizer.encode(text, add_special_tokens=False)
            assert ids_of(memory, text) == fresh, text
            memory.check()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_right_whatever_stands_beside_a_cut(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    memory = PromptMemory(tokenizer, ANY, 1)
    for one, other in product(WORDS, WORDS):
        memory.encode_upto(f"hello{one}", ANY, b"")
        for text in (f"hello{one}{other}", f"hello{one}{other}{one} world"):
            fresh = tokenizer.encode(text, add_special_tokens=False)
            assert ids_of(memory, text) == fresh, text


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_tokenises_what_is_new(kind: str) -> None:
    rng = random.Random(SEED)
    tokenizer = text_tokenizer(kind)
    memory = PromptMemory(tokenizer)
    mark = next(iter(tokenizer.prompt_cuts.ids)) if tokenizer.prompt_cuts is not None else ""
    said, seen = "", Mock(wraps=tokenizer.encode_upto)
    tokenizer.encode_upto = seen  # type: ignore[method-assign]
    for _ in range(6):
        new = mark + "".join(rng.choices(["hello", " world", " the", "STOP"], k=200))
        said += new
        ids = ids_of(memory, said + mark)
        assert ids == tokenizer.encode(said + mark, add_special_tokens=False)
        (given, *_), _ = seen.call_args
        assert given in (new + mark, new)  # the mark at the end may be known
        assert ids_of(memory, said + mark) == ids
        seen.assert_called_once()
        seen.reset_mock()


def test_parts_are_found_in_their_own_scope_alone() -> None:
    tokenizer = text_tokenizer("trained")
    memory = PromptMemory(tokenizer)
    text = "<|im_start|>" + "read the file " * 30 + "<|im_end|>"
    seen = Mock(wraps=tokenizer.encode_upto)
    tokenizer.encode_upto = seen  # type: ignore[method-assign]
    for calls, scope in ((1, b""), (1, b""), (2, b"one"), (3, b"other"), (3, b"one")):
        memory.encode_upto(text, ANY, scope)
        assert seen.call_count == calls, scope


def test_the_least_recently_used_parts_are_forgotten() -> None:
    tokenizer = text_tokenizer("trained")
    memory = PromptMemory(tokenizer, 40_000)
    seen = Mock(wraps=tokenizer.encode_upto)
    tokenizer.encode_upto = seen  # type: ignore[method-assign]

    def tokenised(name: str) -> bool:
        before = seen.call_count
        memory.encode_upto("<|im_start|>" + f"{name} " * 100 + "<|im_end|>", ANY, b"")
        memory.check()
        return bool(seen.call_count > before)

    assert tokenised("kept") and tokenised("left")
    for number in range(300):
        assert tokenised(str(number)) and not tokenised("kept")
    assert tokenised("left")
    assert 30_000 < memory.used_bytes <= 40_000


def test_a_text_of_special_tokens_alone_has_few_parts() -> None:
    memory = PromptMemory(text_tokenizer("trained"))
    text = "<|im_end|>" * 10_000
    assert len(memory.encode_upto(text, ANY, b"") or ()) == 10_000  # type: ignore[arg-type]
    assert len(memory._parts) == 2  # all but the last are equal
    memory.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_is_too_long_has_the_same_number_of_tokens(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    memory = PromptMemory(tokenizer, ANY, 4)
    text = "hello<|end|> world<|user|>STOP" * 9
    size = len(tokenizer.encode(text, add_special_tokens=False))
    for _ in range(2):  # unknown, then known
        for most in (0, 1, size // 2, size - 1):
            assert memory.encode_upto(text, most, b"") == size
        assert len(memory.encode_upto(text, size, b"") or ()) == size  # type: ignore[arg-type]
    more = f"{text}<|user|>hello"  # whose beginning alone is known
    size = len(tokenizer.encode(more, add_special_tokens=False))
    for most in (0, size - 2, size - 1):
        assert memory.encode_upto(more, most, b"") == size
    with pytest.raises(EncodingError, match="lone surrogate"):
        memory.encode_upto(text + "\ud800", ANY, b"")


def test_texts_are_not_cut_where_their_tokens_depend_on_their_neighbours() -> None:
    def added(**flags: Any) -> PromptCuts | None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.add_tokens([AddedToken("<m>", **flags)])
        return PromptCuts.of(tokenizer)

    found = added(normalized=False)
    assert found is not None and list(found.ids) == ["<m>"]
    assert added(normalized=True) is None
    for flag in ("lstrip", "rstrip", "single_word"):
        assert added(normalized=False, **{flag: True}) is None, flag
    dropping = Tokenizer(models.BPE(dropout=0.1))
    dropping.add_tokens([AddedToken("<m>", normalized=False)])
    assert PromptCuts.of(dropping) is None


def test_the_longest_of_thousands_of_tokens_is_found() -> None:
    tokenizer = Tokenizer(models.BPE())
    words = [f"<unused{number}>" for number in range(3000)] + ["<a", "<ab", "<abc>", "a", "[x]"]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    cuts = PromptCuts.of(tokenizer)
    assert cuts is not None
    rng = random.Random(SEED)
    text = "".join(rng.choices([*words, "<", "b", "c>", "unused12", " "], k=4000))
    found = tokenizer.encode(text, add_special_tokens=False)
    ids = set(cuts.ids.values())
    assert [cut.token_id for cut in cuts.find(text)] == [i for i in found.ids if i in ids]
    assert [cut.place for cut in cuts.find(text)] == [
        begin for i, (begin, _) in zip(found.ids, found.offsets, strict=True) if i in ids
    ]
