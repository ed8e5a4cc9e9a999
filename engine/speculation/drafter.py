"""The drafts of a row: a proposer's guesses, as far as the request may go on."""

from collections.abc import Sequence

from baton.core.drafts import DraftSource
from baton.core.errors import ConfigError
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.request.request import Request
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.draft_choice import DraftChoice
from baton.engine.speculation.each_rows import EachRows
from baton.engine.speculation.mtp import MtpProposer
from baton.engine.speculation.mtp_tree import MtpTree
from baton.engine.speculation.ngram import DeviceNgram, NgramProposer, NgramTree
from baton.engine.speculation.prediction import PredictionSource
from baton.engine.speculation.proposer import DeviceProposer, Proposers, TextSource, TreeProposer
from baton.engine.speculation.ruled_drafts import RuledDrafts
from baton.engine.speculation.shared_source import SharedSource
from baton.engine.speculation.window_gain import CUT, PLAIN
from baton.engine.step.batch import Batch
from baton.engine.step.drafts import NO_DRAFTS, Drafts
from baton.engine.step.model import Model
from baton.engine.step.step_result import StepResult


class Drafter:
    """Decides how many drafts a row has, and asks the host's proposers for those that the device
    does not guess.
    """

    def __init__(
        self,
        proposers: Proposers,
        window: int,
        vocab_size: int,
        choice: DraftChoice | None = None,
        depth: int = 0,
    ) -> None:
        """window: tokens that a step verifies of a request, its newest one among them.
        choice: which rows have drafts; None: all. depth: of the device's guesses, where they are
        trees; 0: they are chains."""
        self._depth = depth
        self._choice = choice
        self._host = proposers.host
        self._texts = proposers.texts
        self._on_device = proposers.device is not None
        self._device_source = proposers.device_source
        self._most = window - 1
        self._vocab_size = vocab_size

    def awaits_token(self, request: Request) -> bool:
        """Return true if the drafts of the next row depend on tokens that are not known yet."""
        if not request.pending:
            return False
        if not self._guessed(request):
            return True
        wanted = self._choice is None or self._choice.wants(request)
        return wanted and bool(self._ahead(request, 1))

    def drafts(self, request: Request, longest: int) -> Drafts:
        """Return drafts for a request that does not await a token, at most `longest` of them behind
        one another.

        The answer never gets past its length: a row samples one token more than it has drafts.
        """
        left = request.stopper.limit - request.lengths.sampled - 1
        most = min(longest, self._most, left)
        if self._choice is not None:
            most = min(most, self._choice.guesses(request, self._ahead))
        if most <= 0:
            return NO_DRAFTS
        proposed: tuple[int, ...] = ()
        source = DraftSource.NGRAM  # of the host, where it finds something
        if not request.pending:
            source, proposed = self._in_texts(request, most)
        if not proposed and self._guessed(request):
            layered = self._choice is not None and self._choice.by_layer(request)
            guesser = DraftSource.MTP if layered else self._device_source
            if 0 < self._depth <= longest:  # a tree has more nodes than it is deep
                most = min(self._most, left)
            return Drafts(guesses=most, sources=(guesser,) * most, depth=self._depth)
        if not proposed:
            proposed = tuple(self._host.propose(request.serial, request.known_ids, most))[:most]
        valid = (i for i, t in enumerate(proposed) if not 0 <= t < self._vocab_size)
        proposed = proposed[: next(valid, most)]
        return RuledDrafts(request).of(proposed, source, most)

    def forget(self, request: Request) -> None:
        """Note that a request does not run."""
        self._host.forget(request.serial)
        for text in self._texts:
            text.forget(request)
        if self._choice is not None:
            self._choice.forget(request)

    def begin(self, rows: int) -> list[Request]:
        """Begin another step, of at most `rows` rows that decode. Return the requests that have
        drafts from this step on.
        """
        return [] if self._choice is None else self._choice.begin(rows, self._ahead)

    def look(self, request: Request) -> None:
        """Compare the new tokens of a request without drafts with guesses, if it is time. Then
        `plain_until` is further.
        """
        if self._choice is not None:
            self._choice.look(request, self._ahead)

    def plain_until(self, request: Request) -> int:
        """Return the tokens up to which the rows of a request have no drafts."""
        return (
            request.lengths.computed if self._choice is None else self._choice.plain_until(request)
        )

    def ended(self, request: Request) -> None:
        """Note that an answer is over. `forget` comes too."""
        for text in self._texts:
            text.ended(request)

    def verified(
        self, request: Request, sources: tuple[DraftSource, ...], drafts: int, accepted: int
    ) -> None:
        """Note the result of a row that was to have drafts. sources: of each; (): the device."""
        first = sources[0] if sources else self._device_source
        if self._choice is not None:
            self._choice.verified(request, first, drafts, accepted)
        for text in self._texts:
            text.verified(request, first, drafts, accepted)

    def took(self, batch: Batch, result: StepResult) -> None:
        """Note the seconds of a step, if it was of a kind that is chosen between."""
        choice = self._choice
        if choice is None or choice.skips or batch.prompts or result.seconds is None:
            return
        computed = result.window
        if batch.window > PLAIN and computed == PLAIN:
            if result.committed:  # neither plain nor cut: a row of it ended, or took a snapshot
                return
            computed = CUT
        accepted = sum(len(window.drawn) for window in result.windows)
        choice.took(batch.decode_rows, computed, result.seconds, batch.layered, accepted)

    def _in_texts(self, request: Request, most: int) -> tuple[DraftSource, tuple[int, ...]]:
        """Return what follows in the first text that has a request's newest tokens, and whose."""
        for text in self._texts:
            found = text.guesses(request, most)
            if found:
                return text.name, tuple(found)
        return DraftSource.NGRAM, ()

    def _ahead(self, request: Request, most: int) -> Sequence[int]:
        """Return at most `most` tokens that follow in a text beside a request's own, or which its
        grammar forces.
        """
        forced = () if request.rules is None else request.rules.forced()
        return forced[:most] or self._in_texts(request, most)[1]

    def _guessed(self, request: Request) -> bool:
        """Return true if the device guesses: one mask holds behind all drafts."""
        return self._on_device and (request.rules is None or not request.rules.follows)


def drafting(
    config: EngineConfig,
    model: Model,
    states: StatePool,
    pages: PagePool,
    proposers: Proposers | None = None,
) -> tuple[Drafter | None, DeviceProposer | TreeProposer | None]:
    """Return what the options call for: who drafts, and who guesses on the device. None where steps
    verify nothing.

    states, pages: of the model's steps. proposers: in place of those of the options.
    """
    if config.window == 1:
        return None, None
    proposers = proposers or _proposers(config, model, states, pages)
    auto = config.speculative_algorithm is SpeculativeAlgorithm.AUTO
    device, layer = proposers.device, proposers.layer
    choice = None
    if auto:
        depths = 0 if layer is None else config.draft_tokens - 1
        # Where the host may look, a step without guesses is cut; see `used_window`.
        choice = DraftChoice(config.window, model.kernels.native is not None, depths)
    depth = config.draft_depth if config.trees else 0
    drafter = Drafter(proposers, config.draft_tokens, model.config.vocab_size, choice, depth)
    if config.trees and not model.kernels.trees:
        raise ConfigError(
            f"speculative_eagle_topk is {config.speculative_eagle_topk}, and "
            f"{type(model.kernels).__name__} do not read the links of a tree: use "
            "speculative_eagle_topk 1, or kernels auto on a CPU"
        )
    if config.trees and proposers.tree is not None:
        return drafter, proposers.tree
    return drafter, device if device is None or layer is None else EachRows(device, layer)


def _proposers(config: EngineConfig, model: Model, states: StatePool, pages: PagePool) -> Proposers:
    texts: list[TextSource] = [PredictionSource()]
    if config.speculative_ngram_capacity:
        texts.append(SharedSource(config.speculative_ngram_capacity))
    layer = MtpProposer(model, states, pages) if model.config.mtp else None
    if config.speculative_synthetic_acceptance is not None:
        texts = []  # theirs are not drawn by the request's own rules
    if layer is not None and config.speculative_algorithm is SpeculativeAlgorithm.MTP:
        trees = None
        if config.trees:
            topk, depth = config.speculative_eagle_topk, config.draft_depth
            trees = MtpTree(model, states, pages, topk, depth)
        return Proposers(NgramProposer(), layer, tuple(texts), DraftSource.MTP, tree=trees)
    if config.speculative_algorithm is SpeculativeAlgorithm.NGRAM:
        layer = None
    tree = None
    if config.trees:
        tree = NgramTree(model.kernels, config.speculative_eagle_topk, config.draft_depth)
    device = DeviceNgram(model.kernels)
    return Proposers(NgramProposer(), device, tuple(texts), layer=layer, tree=tree)
