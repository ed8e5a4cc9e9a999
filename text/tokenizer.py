"""The conversion of text to token ids and back, by a Hugging Face folder's fast tokenizer."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from baton.text.byte_table import ByteTable, longest_token
from baton.text.chat_template import ChatTemplate
from baton.text.errors import EncodingError, TokenizerFileError
from baton.text.model_folder import read_text
from baton.text.prompt_cuts import PromptCuts
from baton.text.special_tokens import SpecialTokens, read_special_tokens
from baton.text.template_options import TemplateOptions
from baton.text.turn_ends import turn_ends

_log = logging.getLogger(__name__)


class Tokenizer:
    """Thread-safe after construction: encoding and decoding change nothing but tables of what
    tokens look like.

    `stop_ids` end an answer unless the request ignores them: the eos ids of
    generation_config.json and config.json, the tokenizer's own eos token, and the token with which
    the chat template ends a turn.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens,
        folder: Path | None = None,
        more_stop_ids: Collection[int] = (),
    ) -> None:
        """folder: where its files are, for other processes that need it too. more_stop_ids: beside
        those of the configs.
        """
        # Files saved after training often carry the training run's truncation
        # and padding; a server that obeys them answers another prompt.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.folder = folder
        self.longest_token = longest_token(backend)
        """The most bytes of text that one token can stand for; None: any number."""
        self.prompt_cuts = PromptCuts.of(backend)
        """The places at which prompts can be cut into parts; None: nowhere."""
        self.special = special
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        """One past the largest id; ids in between may be unused."""
        self._text_ids = frozenset(vocab.values())
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.byte_ids = _byte_fallback_ids(backend)
        """Ids of `<0x00>` .. `<0xFF>`, where the decoder joins those into characters."""
        self.is_byte_level = "ByteLevel" in repr(backend.decoder)
        """True if pieces spell bytes in GPT-2's alphabet."""
        self._joins_bytes = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        self._bytes: dict[frozenset[int], ByteTable] = {}  # by the ids without text
        self.bos_id = self._named_id("bos_token")
        self.eos_id = self._named_id("eos_token")
        own = frozenset() if self.eos_id is None else frozenset({self.eos_id})
        self.stop_ids = special.configured_stop_ids.union(own, more_stop_ids)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        options: TemplateOptions | None = None,
        more_stop_ids: Collection[int] = (),
    ) -> "Tokenizer":
        """Read tokenizer.json and the configs beside it, or raise `TokenizerFileError`.

        options: of a chat template whose end of a turn ends answers too, beside the folder's.
        more_stop_ids: further ends.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerFileError(
                f"no tokenizer.json in {folder}; expected the fast tokenizer's file "
                "(save it with `tokenizer.save_pretrained(folder)` of transformers)"
            )
        source = read_text(path)
        try:
            backend = tokenizers.Tokenizer.from_str(source)
        except Exception as err:  # the library raises bare Exception for every bad file
            raise TokenizerFileError(f"{path} is not a tokenizer file: {err}") from err
        added = {each.content: i for i, each in backend.get_added_tokens_decoder().items()}
        special = read_special_tokens(folder)
        eos_text = special.by_name.get("eos_token", "")
        named = special.configured_stop_ids | {added[text] for text in (eos_text,) if text in added}
        ends = _template_ends(folder, None, added, named).union(more_stop_ids)
        if options is not None and options.file is not None:
            ends |= _template_ends(folder, options, added, named)
        tokenizer = cls(backend, special, folder, ends)
        if unnamed := ends - special.configured_stop_ids - {tokenizer.eos_id}:
            _log.info(
                "answers also end at %s: the chat template ends a turn so, though no eos_token_id "
                "or eos_token of %s says it",
                ", ".join(f"{tokenizer.piece(token)!r} ({token})" for token in sorted(unnamed)),
                folder,
            )
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the text's token ids. Raises EncodingError for text that is not Unicode.

        It holds the interpreter lock: for long texts call `encode_upto` on another thread.
        """
        _check_unicode(text)
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_upto(self, text: str, most: int, add_special_tokens: bool = True) -> list[int] | int:
        """Return the text's token ids, or their number if there are more than `most`.

        Other threads run Python while it works. Raises EncodingError.
        """
        _check_unicode(text)
        # Of the library's calls, those for batches alone release the lock.
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if len(found) > most:
            return len(found)
        ids: list[int] = found.ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. Ids that the vocabulary lacks have none."""
        text: str = self._backend.decode(
            self.with_text(ids, skip_special_tokens), skip_special_tokens=False
        )
        return text

    def decode_long(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return what `decode` does. Other threads run Python while it works."""
        shown = self.with_text(ids, skip_special_tokens)
        (text,) = self._backend.decode_batch([shown], skip_special_tokens=False)
        return str(text)

    def with_text(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Return those of `ids` that have text, in order. shown: special tokens that have it
        nevertheless."""
        known, hidden = self._text_ids, self._hidden(skip_special_tokens, shown)
        return [i for i in ids if i in known and i not in hidden]

    def byte_table(
        self, skip_special_tokens: bool, shown: frozenset[int] = frozenset()
    ) -> ByteTable | None:
        """Return the table of the tokens' bytes where text is exactly those bytes; None for other
        decoders. shown: as for `with_text`."""
        return self.spelling(skip_special_tokens, shown) if self._joins_bytes else None

    def spelling(
        self, skip_special_tokens: bool, shown: frozenset[int] = frozenset()
    ) -> ByteTable | None:
        """Return the table of the bytes that byte-level pieces spell; None for other pieces.

        Where the decoder has further steps, text may differ from those bytes.
        """
        if not self.is_byte_level:
            return None
        hidden = self._hidden(skip_special_tokens, shown)
        table = self._bytes.get(hidden)
        if table is None:
            table = self._bytes.setdefault(hidden, ByteTable(self._backend, hidden))
        return table

    def special_marks(self, marks: Iterable[str]) -> dict[str, int]:
        """Return the ids of those texts that are special tokens."""
        found = ((mark, self._backend.token_to_id(mark)) for mark in marks)
        return {mark: token for mark, token in found if token in self.special_ids}

    def _hidden(self, skip_special_tokens: bool, shown: frozenset[int]) -> frozenset[int]:
        if not skip_special_tokens:
            return frozenset()
        return self.special_ids - shown if shown else self.special_ids

    def spans(self, text: str, add_special_tokens: bool = True) -> list[tuple[int, int]]:
        """Return the characters of `text`, as (begin, end), that each of its tokens stands for.

        (0, 0) for a token that the tokenizer adds. Raises EncodingError.
        """
        _check_unicode(text)
        (found,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        spans: list[tuple[int, int]] = found.offsets
        return spans

    def piece(self, token_id: int) -> str | None:
        """Return the id's entry in the vocabulary file, or None for an unused id."""
        piece: str | None = self._backend.id_to_token(token_id)
        return piece

    def _named_id(self, name: str) -> int | None:
        text = self.special.by_name.get(name)
        if text is None:
            return None
        token_id: int | None = self._backend.token_to_id(text)
        return token_id


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise EncodingError(
            f"the text has a lone surrogate at character {err.start}; expected valid Unicode"
        ) from err


def _template_ends(
    folder: Path,
    options: TemplateOptions | None,
    added: Mapping[str, int],
    named: Collection[int],
) -> frozenset[int]:
    try:
        template = ChatTemplate.from_folder(folder, options)
    except TokenizerFileError:
        # An engine needs none. Servers of clients read it themselves, and refuse it.
        return frozenset()
    return turn_ends(template, added, named)


def _byte_fallback_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    if "ByteFallback" not in repr(backend.decoder):
        return frozenset()
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(i for i in ids if i is not None)
