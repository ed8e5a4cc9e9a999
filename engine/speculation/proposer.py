"""The guess of the tokens that follow a request's newest one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class DeviceProposer(Protocol):
    """A source of draft tokens on the device, which has the newest tokens before the host does."""

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """Guess what follows the sequences of B rows. Reads nothing back; it may change nothing.

        rows: [B] int64, of the request tables. ends: [B] int64, tokens of the sequences, at least
        one. Returns tokens [B, most] int64 of the vocabulary, and how many of each row's are
        guesses, [B] int64.
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
        `source`, maybe another one. NGRAM: the device was asked, and perhaps guessed none.
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
    them runs one step behind too.
    """

    host: Proposer
    device: DeviceProposer | None = None
    texts: tuple[TextSource, ...] = ()
