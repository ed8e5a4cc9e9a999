"""A request: what the caller asked for, and the engine's own record of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from baton.core.cache_salt import SHARED
from baton.core.drafts import DraftTally
from baton.core.errors import InvariantError
from baton.core.sampling_params import SamplingParams
from baton.core.state_ref import StateRef
from baton.core.turns import turn_of
from baton.engine.cache.prefix_node import Node
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import TOKEN_BYTES, token_key
from baton.engine.memory.table_changes import History
from baton.engine.request.stop_checker import StopChecker
from baton.text.token_rules import TokenRules


@dataclass(frozen=True)
class RequestSpec:
    """The caller's request, unchanged to the end."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    # Output that exists already (a retry, a migration, a hand-off): never sampled again.
    output_ids: tuple[int, ...] = ()
    # Prefill role: compute the prompt, sample the first token unless it is given, then hold the
    # state until `Engine.release`.
    hold: bool = False
    priority: int = 0  # the larger goes first, see `turn_of`
    # The part of the prefix cache that it may use and fill; see `core.cache_salt`.
    cache_salt: bytes = field(default=SHARED, repr=False)
    # Depths at which other prompts are known to go another way: worth a snapshot on the grid.
    junctions: tuple[int, ...] = ()
    # Drafts of requests of one scope, as long as a salt, may be guessed from each other's texts.
    # Empty: from none.
    draft_scope: bytes = field(default=b"", repr=False)
    # What the client expects the answer to be: guesses for drafts. It changes no token.
    prediction_ids: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Parked:
    """The source side of a hand-off: where the state of the computed tokens lies."""

    state: StateRef
    # Tokens that the prefix cache could resume from when this was made.
    cached_state: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Reservation:
    """The destination side of a hand-off: a slot and pages that a peer may write. Owner: ticket.

    The first pages may be the prefix cache's: they hold the KV below `state.kv_from`, which a peer
    need not send and must not write.
    """

    request_id: str
    state: StateRef  # its pages are the cache's first; `kv_from` is the transfer hit
    node: Node | None = None  # where the cache's pages end, locked; for the engine's thread alone
    owned: tuple[int, ...] = ()  # the pages that are its own, the last of `pages`
    cache_salt: bytes = field(default=SHARED, repr=False)  # of the cache's pages; its adopter's


@dataclass(eq=False)
class Promotion:
    """A prefix in another memory that could spare a request that waits its computing.

    below, depth: tokens that it could resume from without it, and with it. over: the request need
    not wait for it any more. unfiled: tokens that it could resume from without files. searched:
    they were looked at. crowded: there was no room for it or for the request, so look again
    before an admission. copied: it has come to the device's cache. again: times that it may come
    once more, where others push it out of that cache.
    """

    below: int
    depth: int
    over: bool = False
    crowded: bool = False
    copied: bool = False
    again: int = 2
    unfiled: int = 0
    searched: bool = False

    def comes_again(self, found: int) -> bool:
        """Return true if a request should wait for it once more, of which the device's cache still
        has `found` tokens."""
        return self.copied and self.again > 0 and found < self.depth

    def spared(self, computed: int) -> tuple[int, int]:
        """Return the tokens that the host's memory, and that files have spared a request that
        resumes from `computed`."""
        end = min(computed, self.depth)
        file = max(0, end - max(self.below, self.unfiled))
        return max(0, end - self.below) - file, file


class RequestState(StrEnum):
    WAITING = "waiting"  # owns nothing
    RUNNING = "running"  # owns a slot and pages; takes part in steps
    HELD = "held"  # owns a slot and pages, which no step touches
    FINISHED = "finished"  # owns nothing


ALLOWED_MOVES = {
    RequestState.WAITING: {RequestState.RUNNING, RequestState.FINISHED},
    # Back to WAITING: preempted.
    RequestState.RUNNING: {RequestState.WAITING, RequestState.HELD, RequestState.FINISHED},
    RequestState.HELD: {RequestState.FINISHED},
    RequestState.FINISHED: set(),
}


@dataclass(slots=True)
class RequestLengths:
    """The lengths of a request, in tokens. computed <= target <= total = prompt + output."""

    computed: int = 0  # whose state the last planned step leaves behind
    sampled: int = 0  # of the output, with those that planned steps sample
    settled: int = 0  # whose KV and state are known to be there: their step is over


class LengthColumns(Protocol):
    """The columns that know the lengths of the requests in them."""

    def read_lengths(self, request: "Request", into: RequestLengths) -> None:
        """Write the lengths of `request`, which is here, into the copy that it has of them."""
        ...


class Request:
    """One request inside the engine. Only the scheduler's side of the engine changes it.

    It has more than 20 fields because a step's plan and its result change them one by one.

    Large because the scheduler, the forward and the prefix cache each keep facts about a request,
    and a step of 256 rows reads all of them in one pass.
    """

    __slots__ = (
        "_known",
        "_lengths",
        "_prompt_key",
        "admissions",
        "announced",
        "branch",
        "cached_file",
        "cached_host",
        "cached_kv",
        "cached_tokens",
        "drafted",
        "drafts_in_flight",
        "node",
        "output",
        "owned",
        "pages",
        "plain_columns",
        "plain_place",
        "promotion",
        "request_id",
        "resumes_from",
        "rules",
        "scored",
        "serial",
        "slot",
        "spec",
        "state",
        "state_slot",
        "stopper",
        "table_row",
        "turn",
    )

    def __init__(
        self,
        spec: RequestSpec,
        serial: int,
        stopper: StopChecker,
        rules: TokenRules | None = None,
    ) -> None:
        """rules: as far as the output that is given with the spec."""
        self.spec = spec
        self.request_id = spec.request_id
        self.rules = rules
        self.serial = serial  # order of arrival; never used twice
        self.turn = turn_of(serial, spec.priority)  # its place in every order
        self.stopper = stopper
        self.state = RequestState.WAITING
        self.output = list(spec.output_ids)
        self._lengths = RequestLengths(sampled=len(self.output))
        self.slot = 0  # its own; 0: none
        # Where the state of `computed` tokens lies: in its own slot, or in a snapshot's, which its
        # next row reads. 0 before the first row.
        self.state_slot = 0
        self.table_row = 0  # its row of the request tables; 0: none
        self.pages: list[int] = []  # in token order; changes are noted in `TableChanges`
        self.owned: set[int] = set()  # its own of `pages`; the rest are the prefix cache's
        self.node: Node | None = None  # where the cache's pages of it end; locked
        # The cached snapshot that a row reads, after a hit or a tracked row; locked until that row
        # is over.
        self.resumes_from: Node | None = None
        self.branch: int | None = None  # a depth where others went another way, worth a snapshot
        self.cached_tokens = 0  # compute hit of its first admission, or what a peer reported
        self.cached_host = 0  # of those, the ones that the host's tier has spared
        self.cached_file = 0  # of the cached ones, those that came from files
        self.cached_kv = 0  # tokens whose KV was cached then, with or without their state
        # Of its next admission; None: nobody has looked, as where there is no other memory.
        self.promotion: Promotion | None = None
        self.admissions = 0
        # Drafts of steps in flight: what is computed and sampled may be so many more, and counts
        # none.
        self.drafts_in_flight = 0
        self.drafted = DraftTally()
        self.scored = 0  # prompt positions below this were scored; set by the planner
        self.announced = False  # Scheduled went out
        # `PlainTable`, which alone knows its lengths then, and its place there; None, -1: it is
        # not there.
        self.plain_columns: LengthColumns | None = None
        self.plain_place = -1
        self._known: list[int] | None = None  # made where they are asked for in each step
        self._prompt_key: bytes | None = None  # made once: it costs more than a look-up with it

    @property
    def owner(self) -> Owner:
        """The owner of its slot and pages: a hand-off may be reading those of a hold request."""
        return Owner.TRANSFER if self.spec.hold else Owner.LIVE

    @property
    def lengths(self) -> RequestLengths:
        """Its lengths of now. What is changed in them counts only while it is not in the plain
        table.
        """
        if self.plain_columns is not None:
            self.plain_columns.read_lengths(self, self._lengths)
        return self._lengths

    def leave_columns(self) -> None:
        """Know its lengths by itself again."""
        self._lengths = self.lengths
        self.plain_columns, self.plain_place = None, -1

    @property
    def settled_state(self) -> StateRef:
        """The state of its settled tokens."""
        return StateRef(self.slot, tuple(self.pages), self.lengths.settled)

    @property
    def pending(self) -> int:
        """Tokens that planned steps sample, not known on the host yet."""
        return self.lengths.sampled - len(self.output)

    @property
    def total(self) -> int:
        return len(self.spec.prompt_ids) + self.lengths.sampled

    @property
    def target(self) -> int:
        """Tokens to compute before the next token is sampled or the request is held."""
        spec = self.spec
        if spec.hold:
            return len(spec.prompt_ids) + max(0, len(self.output) - 1)
        return len(spec.prompt_ids) + self.lengths.sampled  # total, a call less

    @property
    def decodes(self) -> bool:
        """True if its next step computes its newest token alone, and samples the one after it. A
        held request is computed up to the token before its newest.
        """
        spec, lengths = self.spec, self.lengths
        prompt = len(spec.prompt_ids)
        started = lengths.computed >= prompt
        return started and prompt + lengths.sampled - lengths.computed == 1 and not spec.hold

    @property
    def exhausted(self) -> bool:
        """True if it ends, by its length, with a step that is planned already."""
        return self.lengths.sampled >= self.stopper.limit

    @property
    def most_computed(self) -> int:
        """Tokens that are ever computed, at most: the last token of an answer never is."""
        return len(self.spec.prompt_ids) + self.stopper.limit - 1

    @property
    def awaits_token(self) -> bool:
        """True if its next mask depends on a token that is not known yet, so nothing can be
        planned.
        """
        return self.rules is not None and self.rules.follows and self.pending > 0

    @property
    def known_ids(self) -> Sequence[int]:
        """Prompt and output, as far as they are known. Not to be changed."""
        known = self._known
        prompt = self.spec.prompt_ids
        if known is None:
            known = self._known = list(prompt)
        known += self.output[len(known) - len(prompt) :]
        return known

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Return tokens [start, end) of prompt and output, as far as they are known."""
        prompt = self.spec.prompt_ids
        inside = len(prompt)
        if end <= inside:
            return prompt[start:end]
        output = self.output[max(0, start - inside) : end - inside]
        return (*prompt[start:], *output)

    def key(self, start: int, end: int) -> bytes:
        """Return tokens [start, end), as far as they are known, as the prefix cache's key."""
        if self._prompt_key is None:
            self._prompt_key = token_key(self.spec.prompt_ids)
        inside = len(self.spec.prompt_ids)
        prompt = self._prompt_key[start * TOKEN_BYTES : end * TOKEN_BYTES]
        if end <= inside:
            return prompt
        return prompt + token_key(self.output[max(0, start - inside) : end - inside])

    @property
    def history(self) -> History:
        """The tokens that it is admitted with: none is pending then."""
        sampling = self.spec.sampling
        short = len(self.output) < sampling.min_tokens
        return History(
            self.key(0, self.total),
            len(self.spec.prompt_ids),
            sampling.penalised,
            sampling.repetition_penalty != 1.0,
            tuple(self.stopper.stop_ids) if short else (),
        )

    def move(self, state: RequestState) -> None:
        if state not in ALLOWED_MOVES[self.state]:
            raise InvariantError(
                f"request {self.request_id} cannot go from {self.state} to {state}; "
                f"allowed: {sorted(ALLOWED_MOVES[self.state])}"
            )
        self.state = state
