"""`baton.v1` messages to the engine's types and back. One function a pair, nothing else."""

from collections.abc import Iterable

from baton.engine.errors import RequestError
from baton.engine.events import Finished, FinishReason, TokenLogprob
from baton.engine.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.text.grammar import Grammar, GrammarKind

_REASONS = {
    FinishReason.STOP: common_pb2.STOP,
    FinishReason.LENGTH: common_pb2.LENGTH,
    FinishReason.ABORT: common_pb2.ABORT,
    FinishReason.ERROR: common_pb2.ERROR,
}


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Raises RequestError that names the field."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        seed=message.seed,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        include_stop=message.include_stop,
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
        max_tokens=message.max_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs_start=(
            message.prompt_logprobs_start if message.HasField("prompt_logprobs_start") else None
        ),
        prompt_logprobs=message.prompt_logprobs,
        logprob_token_ids=tuple(message.logprob_token_ids),
        grammar=_grammar_from_proto(message.grammar) if message.HasField("grammar") else None,
    )


def sampling_to_proto(params: SamplingParams) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
        stop_token_ids=params.stop_token_ids,
        stop=params.stop,
        include_stop=params.include_stop,
        ignore_eos=params.ignore_eos,
        min_tokens=params.min_tokens,
        max_tokens=params.max_tokens,
        logprobs=params.logprobs,
        prompt_logprobs_start=params.prompt_logprobs_start,
        prompt_logprobs=params.prompt_logprobs,
        logprob_token_ids=params.logprob_token_ids,
        grammar=_grammar_to_proto(params.grammar),
    )


def _grammar_from_proto(message: common_pb2.Grammar) -> Grammar:
    if message.kind not in set(GrammarKind):
        expected = ", ".join(GrammarKind)
        raise RequestError(f"no kind of grammar is {message.kind!r}; known: {expected}", "grammar")
    return Grammar(GrammarKind(message.kind), message.text)


def _grammar_to_proto(grammar: Grammar | None) -> common_pb2.Grammar | None:
    return None if grammar is None else common_pb2.Grammar(kind=grammar.kind, text=grammar.text)


def logprob_to_proto(entry: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top_ids=entry.top_ids,
        top_logprobs=entry.top_logprobs,
        asked_logprobs=entry.asked_logprobs,
    )


def scores_to_proto(start: int, entries: Iterable[TokenLogprob]) -> common_pb2.PromptLogprobs:
    return common_pb2.PromptLogprobs(
        start=start, tokens=[logprob_to_proto(entry) for entry in entries]
    )


def finished_to_proto(event: Finished, origin: str) -> common_pb2.Finished:
    """Without timings: they are gathered along the way."""
    finished = common_pb2.Finished(
        reason=_REASONS[event.reason],
        stop_token_id=event.stop_token_id,
        stop_string=event.stop_string or "",
        cut_chars=event.cut_chars,
        usage=common_pb2.Usage(
            prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens,
            cached_tokens=event.cached_tokens,
        ),
    )
    if event.reason is FinishReason.ERROR:
        finished.error.code, finished.error.retryable = common_pb2.INTERNAL, True
    elif event.reason is FinishReason.ABORT:
        finished.error.code = common_pb2.CANCELLED
    if finished.HasField("error"):
        finished.error.origin = origin
        finished.error.message = event.error or "the request was cancelled"
    return finished
