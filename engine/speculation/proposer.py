"""The guess of the tokens that follow a request's newest one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from baton.core.drafts import DraftSource
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.request import Request


class Proposer(Protocol):
    """A source of draft tokens on the host. Verification keeps those that plain decoding would have
    drawn, so a wrong guess costs time and never changes an answer.
    """

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        """Return at most `most` tokens that may follow `token_ids`; none where it has no guess.

        serial: the request's; never used twice. token_ids: its prompt and output.
        """
        ...

    def forget(self, serial: int) -> None:
        """Drop what is known of a request that has ended. Idempotent."""
        ...


@dataclass(frozen=True)
class DecodingStep:
    """The step whose rows are guessed for, as a proposer needs it that runs the model. B rows.

    wanted: [B] int64, guesses that there is use and room for
    read_slots: [B] int64, the slots of the states behind all tokens but the newest
    kv_lens_host: [B], no less than the tokens that a row and its guesses get to; empty where no
        kernel asks for them
    draw: draws the token behind so many guesses, 0 or more, by the rules that it is verified by,
        from logits [B, vocab] float32, which it changes: [B] int64
    rank: likewise the tokens that it draws first, second and so on, as many as its last argument
        says: [B, most] int64, and log probabilities [B, most] float32, see `ranked`
    layered: [B] bool, the rows whose guesses are to be the model's own layer's
    most_layered: guesses of such a row, at most; 0: there is none
    """

    wanted: Tensor
    read_slots: Tensor
    kv_lens_host: tuple[int, ...]
    draw: Callable[[Tensor, int], Tensor]
    rank: Callable[[Tensor, int, int], tuple[Tensor, Tensor]]
    layered: Tensor
    most_layered: int


@runtime_checkable
class TreeProposer(Protocol):
    """A source of several continuations on the device."""

    def propose_tree(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Guess what follows the sequences of B rows. Reads and writes as a `DeviceProposer`.

        rows, ends, most, step: as of `DeviceProposer.propose`. Returns tokens [B, most] int64; the
        bits of the nodes that each of them follows, and its own, [B, most] int64, see
        `Kernels.guess_tree`; and how many of each row's are guesses, [B] int64.
        """
        ...


class DeviceProposer(Protocol):
    """A source of draft tokens on the device, which has the newest tokens before the host does."""

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """Guess what follows the sequences of B rows. Reads nothing back; of what steps see it may
        write alone what they write again.

        rows: [B] int64, of the request tables. ends: [B] int64, tokens of the sequences, at least
        one. most: of any row's `wanted`, at least. Returns tokens [B, most] int64 of the
        vocabulary, and how many of each row's are guesses, [B] int64.
        """
        ...


class TextSource(Protocol):
    """Texts on the host, beside a request's own tokens, that an answer may repeat."""

    name: DraftSource

    def guesses(self, request: Request, most: int) -> Sequence[int]:
        """Return at most `most` tokens that may follow the known ones; none where no text has them.

        It is asked in each step, so it may cost some microseconds.
        """
        ...

    def verified(self, request: Request, source: DraftSource, drafts: int, accepted: int) -> None:
        """Note that a step has accepted so many of its `drafts`, the first of which was guessed by
        `source`, maybe another one. NGRAM, MTP: the device was asked, and perhaps guessed none.
        """
        ...

    def ended(self, request: Request) -> None:
        """Note that an answer is over, with its tokens."""
        ...

    def forget(self, request: Request) -> None:
        """Drop what is known of a request that does not run. Idempotent."""
        ...


@dataclass(frozen=True)
class Proposers:
    """The sources of drafts of one engine.

    device: asked for every row but those whose masks depend on their tokens. None: nobody guesses
    on the device. host: asked for all others; their rows run one step behind, because it has to see
    their newest tokens. texts: asked first, in this order. A row whose known tokens are in one of
    them runs one step behind too. device_source: the name of `device`. layer: the model's own,
    asked in its place for the rows that are chosen for it. tree: asked in place of `device`, where
    steps verify trees.
    """

    host: Proposer
    device: DeviceProposer | None = None
    texts: tuple[TextSource, ...] = ()
    device_source: DraftSource = DraftSource.NGRAM
    layer: DeviceProposer | None = None
    tree: TreeProposer | None = None
