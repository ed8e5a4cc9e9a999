"""This room's types to and from `baton.v1` messages. One function a pair, nothing else."""

from dataclasses import asdict

from baton.api.backend import (
    Finished,
    FinishReason,
    PromptLogprobs,
    Timings,
    TokenLogprob,
    Usage,
)
from baton.api.errors import ApiError, invalid
from baton.api.sampling import SamplingParams
from baton.proto import common_pb2, inference_pb2
from baton.text.grammar import Grammar, GrammarKind

GREEDY_BELOW = 1e-5
"""A temperature below this means greedy: dividing logits by it overflows float32."""

_REASONS = {
    FinishReason.STOP: common_pb2.STOP,
    FinishReason.LENGTH: common_pb2.LENGTH,
    FinishReason.ABORT: common_pb2.ABORT,
    FinishReason.ERROR: common_pb2.ERROR,
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


def sampling_to_proto(params: SamplingParams, seed: int) -> common_pb2.SamplingParams:
    """`seed` is the one that was given, or drawn where none was."""
    return common_pb2.SamplingParams(
        temperature=params.temperature if params.temperature >= GREEDY_BELOW else 0.0,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=seed,
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


def sampling_from_options(options: inference_pb2.SampleOptions) -> SamplingParams:
    """A client's options, with the defaults of proto/inference.proto for what it left out."""
    given = {field.name: value for field, value in options.ListFields()}
    for name in ("stop", "stop_token_ids", "logprob_token_ids"):
        if name in given:
            given[name] = tuple(given[name])
    if "grammar" in given:
        given["grammar"] = _grammar_from_proto(options.grammar)
    return SamplingParams(**given)


def _grammar_to_proto(grammar: Grammar | None) -> common_pb2.Grammar | None:
    return None if grammar is None else common_pb2.Grammar(kind=grammar.kind, text=grammar.text)


def _grammar_from_proto(message: common_pb2.Grammar) -> Grammar:
    kinds = ", ".join(GrammarKind)
    if message.kind not in set(GrammarKind):
        raise invalid(
            "grammar",
            f"no kind of grammar is {message.kind!r}; expected one of {kinds}",
            expected=kinds,
            actual=message.kind,
        )
    return Grammar(GrammarKind(message.kind), message.text)


def logprob_to_proto(entry: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        top_ids=entry.top_ids,
        top_logprobs=entry.top_logprobs,
        asked_logprobs=entry.asked_logprobs,
    )


def logprob_from_proto(entry: common_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        entry.token_id,
        entry.logprob if entry.HasField("logprob") else None,
        tuple(entry.top_ids),
        tuple(entry.top_logprobs),
        tuple(entry.asked_logprobs),
    )


def prompt_logprobs_to_proto(chunk: PromptLogprobs) -> common_pb2.PromptLogprobs:
    return common_pb2.PromptLogprobs(
        start=chunk.start, tokens=[logprob_to_proto(entry) for entry in chunk.tokens]
    )


def prompt_logprobs_from_proto(chunk: common_pb2.PromptLogprobs) -> PromptLogprobs:
    return PromptLogprobs(chunk.start, tuple(logprob_from_proto(entry) for entry in chunk.tokens))


def finished_to_proto(finished: Finished) -> common_pb2.Finished:
    return common_pb2.Finished(
        reason=_REASONS[finished.reason],
        stop_token_id=finished.stop_token_id,
        stop_string=finished.stop_string,
        cut_chars=finished.cut_chars,
        usage=common_pb2.Usage(**asdict(finished.usage)),
        timings=common_pb2.Timings(**asdict(finished.timings)),
        error=finished.error.to_proto() if finished.error else None,
    )


def finished_from_proto(message: common_pb2.Finished) -> Finished:
    """A reason that a newer peer made up is ERROR here."""
    usage, timings = message.usage, message.timings
    return Finished(
        reason=_REASONS_BACK.get(message.reason, FinishReason.ERROR),
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        stop_string=message.stop_string,
        cut_chars=message.cut_chars,
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        timings=Timings(**{name: getattr(timings, name) for name in _TIMING_FIELDS}),
        error=ApiError.from_proto(message.error) if message.HasField("error") else None,
    )


_TIMING_FIELDS = tuple(Timings.__dataclass_fields__)
