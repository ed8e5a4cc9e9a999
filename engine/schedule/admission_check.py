"""The checks that a request must pass to enter the engine."""

import logging
from collections.abc import Sequence

from baton.core.cache_salt import SALT_BYTES, is_salt
from baton.core.errors import RequestError, TooLargeError
from baton.engine.request.request import RequestSpec
from baton.engine.request.stop_checker import StopChecker
from baton.engine.settings.config import ModelConfig
from baton.text.errors import GrammarError
from baton.text.grammar import CompiledGrammar, GrammarCompiler, GrammarState
from baton.text.token_rules import TokenRules, banned_sequences, words_of
from baton.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class AdmissionCheck:
    """Checks a spec against the model and the memory; makes its stop checker."""

    def __init__(
        self,
        model: ModelConfig,
        max_model_len: int,
        tokenizer: Tokenizer | None,
        rules: bool = True,
    ) -> None:
        """tokenizer: for stop strings and grammars. It may have end tokens of its own. rules:
        answers may have rules that depend on their tokens; False: drafts are accepted at random."""
        self._rules = rules
        vocab_size = self._vocab_size = model.vocab_size
        self._max_model_len = max_model_len
        eos_ids = {*model.eos_token_ids, *(() if tokenizer is None else tokenizer.stop_ids)}
        self._eos_ids = frozenset(token for token in eos_ids if 0 <= token < vocab_size)
        if beyond := sorted(eos_ids - self._eos_ids):
            _log.warning(
                "eos_token_id in %s (config.json, generation_config.json or the tokenizer) has %s, "
                "which the model's %d tokens do not include; no answer ends there",
                model.folder,
                ", ".join(map(str, beyond)),
                vocab_size,
            )
        self._tokenizer = tokenizer
        self.grammars = (
            None if tokenizer is None else GrammarCompiler(tokenizer, vocab_size, self._eos_ids)
        )

    def check(self, spec: RequestSpec) -> None:
        """Check a spec. Raises RequestError or TooLargeError that say what is wrong."""
        if not spec.prompt_ids:
            raise RequestError("the prompt is empty; expected at least one token", "prompt_ids")
        self._check_ids(spec.prompt_ids, "prompt_ids")
        self._check_ids(spec.output_ids, "output_ids")
        self._check_ids(spec.prediction_ids, "prediction_ids")
        spec.sampling.check_vocabulary(self._vocab_size)
        spec.sampling.check_prompt(len(spec.prompt_ids))
        if not is_salt(spec.cache_salt):
            raise RequestError(
                f"a cache salt has {SALT_BYTES} bytes; got {len(spec.cache_salt)}", "cache_salt"
            )
        if not is_salt(spec.draft_scope):
            raise RequestError(
                f"a draft scope has {SALT_BYTES} bytes; got {len(spec.draft_scope)}", "draft_scope"
            )
        given, limit = len(spec.output_ids), spec.sampling.max_tokens
        if given > limit:
            raise RequestError(
                f"{given} output tokens were given but max_tokens is {limit}", "output_ids"
            )
        # The last sampled token is never computed, but it needs a place in the context.
        self.check_length(len(spec.prompt_ids) + max(given, min(1, limit)))

    def check_length(self, tokens: int) -> None:
        """Raise TooLargeError where a sequence of `tokens` tokens could not fit even alone."""
        if tokens > self._max_model_len:
            raise TooLargeError(
                f"prompt and output need at least {tokens} tokens, but a sequence may have "
                f"{self._max_model_len} here: shorten the prompt",
                "prompt_ids",
            )

    def stopper(self, spec: RequestSpec) -> StopChecker:
        room = self._max_model_len - len(spec.prompt_ids)
        sampling = spec.sampling
        stop_ids = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= self._eos_ids
        return StopChecker(sampling, room, frozenset(stop_ids), self._tokenizer)

    def rules(
        self, spec: RequestSpec, stopper: StopChecker, compiled: CompiledGrammar | None
    ) -> TokenRules | None:
        """Return what restricts the answer's tokens, after its given output; None: nothing does.

        compiled: its grammar, if that was compiled elsewhere. Raises RequestError.
        """
        sampling = spec.sampling
        if sampling.grammar is not None:
            field = "grammar"
        elif sampling.allowed_token_ids or sampling.bad_words:
            field = "bad_words" if sampling.bad_words else "allowed_token_ids"
        else:
            return None
        if not self._rules and field != "allowed_token_ids":
            raise RequestError(
                f"{field} is refused here: --speculative-synthetic-acceptance makes answers at "
                "random for benchmarks; send the request to a server without it",
                field,
            )
        try:
            rules = TokenRules(
                self._grammar(spec, compiled),
                words_of(self._vocab_size),
                given=spec.output_ids,
                allowed_ids=sampling.allowed_token_ids,
                banned=self._banned(sampling.bad_words),
                end_ids=stopper.stop_ids,
                min_tokens=sampling.min_tokens,
            )
            if not rules.ended:
                rules.allowed()
        except GrammarError as error:
            raise RequestError(str(error), field) from error
        return rules

    def _grammar(self, spec: RequestSpec, compiled: CompiledGrammar | None) -> GrammarState | None:
        wanted = spec.sampling.grammar
        if wanted is None:
            return None
        if self.grammars is None:
            raise _needs_tokenizer("structured output", "grammar")
        return (compiled or self.grammars.compile(wanted)).start(spec.output_ids)

    def _banned(self, words: Sequence[str]) -> frozenset[tuple[int, ...]]:
        if not words:
            return frozenset()
        if self._tokenizer is None:
            raise _needs_tokenizer("bad_words", "bad_words")
        return banned_sequences(self._tokenizer, words)

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            position = next(i for i, t in enumerate(ids) if not 0 <= t < self._vocab_size)
            raise RequestError(
                f"{field}[{position}] is {ids[position]}; expected 0 to {self._vocab_size - 1}",
                field,
            )


def _needs_tokenizer(what: str, field: str) -> RequestError:
    return RequestError(
        f"{what} needs a tokenizer, and this engine has none: add tokenizer.json to the model "
        "folder",
        field,
    )
