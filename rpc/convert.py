"""The conversion of values of `core` to `baton.v1` messages and back.

Sampling parameters, usage and timings have the names of their messages' fields, so a new scalar
needs no line here. tests/rpc/test_convert.py compares the names.
"""

from dataclasses import fields
from operator import attrgetter
from typing import Protocol, TypedDict

from baton.core.drafts import NO_DRAFTS, DraftCount, DraftUsage
from baton.core.errors import RequestError
from baton.core.finish import End, Finished, FinishReason, Timings, Usage
from baton.core.grammar import Grammar, GrammarKind
from baton.core.handoff_ids import HandoffId, TicketId
from baton.core.logprobs import PromptLogprobs, TokenLogprob
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.rpc.errors import error_from_proto, error_to_proto

_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))
_USAGE_COUNTS = tuple(field.name for field in fields(Usage) if field.name != "drafts")
_usage_counts = attrgetter(*_USAGE_COUNTS)
_timings_fields = attrgetter(*(field.name for field in fields(Timings)))
_TO_REASON = {
    FinishReason.STOP: common_pb2.STOP,
    FinishReason.LENGTH: common_pb2.LENGTH,
    FinishReason.ABORT: common_pb2.ABORT,
    FinishReason.ERROR: common_pb2.ERROR,
}
_FROM_REASON = {number: reason for reason, number in _TO_REASON.items()}


class HandoffFields(TypedDict):
    """The name of a hand-off, as messages spell it."""

    request_id: str
    attempt: int


class TicketFields(TypedDict):
    """The name of a ticket, as messages spell it. Zeros: none was granted yet."""

    ticket_id: int
    generation: int


class OfHandoff(Protocol):
    """A message about one hand-off."""

    request_id: str
    attempt: int


class OfTicket(Protocol):
    """A message about one ticket."""

    ticket_id: int
    generation: int


def sampling_to_proto(params: SamplingParams) -> common_pb2.SamplingParams:
    """Return the message with every parameter set that is not None."""
    given = {name: params.__dict__[name] for name in _SAMPLING_FIELDS}
    grammar = given.pop("grammar")
    biases = dict(given.pop("logit_bias"))
    return common_pb2.SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        grammar=None if grammar is None else grammar_to_proto(grammar),
        logit_bias=biases,
    )


def sampling_from_proto(message: common_pb2.SamplingParams) -> SamplingParams:
    """Return checked parameters; unset fields have SamplingParams' defaults.

    Raises RequestError that names the field.
    """
    given = {field.name: value for field, value in message.ListFields()}
    if "grammar" in given:
        given["grammar"] = grammar_from_proto(message.grammar)
    return SamplingParams(**given)


def grammar_to_proto(grammar: Grammar) -> common_pb2.Grammar:
    return common_pb2.Grammar(kind=grammar.kind, text=grammar.text)


def grammar_from_proto(message: common_pb2.Grammar) -> Grammar:
    """Return the grammar. Raises RequestError for a kind that is not known here."""
    if message.kind not in set(GrammarKind):
        kinds = ", ".join(GrammarKind)
        raise RequestError(
            f"no kind of grammar is {message.kind!r}; expected one of {kinds}",
            "grammar",
            kinds,
            message.kind,
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


def reason_to_proto(reason: FinishReason) -> common_pb2.FinishReason:
    return _TO_REASON[reason]


def reason_from_proto(reason: common_pb2.FinishReason) -> FinishReason:
    """Return the reason; ERROR for one that only a newer peer knows."""
    return _FROM_REASON.get(reason, FinishReason.ERROR)


def usage_to_proto(usage: Usage) -> common_pb2.Usage:
    drafts = drafts_to_proto(usage.drafts) if usage.drafts.verify_steps else None
    return common_pb2.Usage(**vars(usage) | {"drafts": drafts})


def usage_from_proto(message: common_pb2.Usage) -> Usage:
    drafts = drafts_from_proto(message.drafts) if message.HasField("drafts") else NO_DRAFTS
    return Usage(**dict(zip(_USAGE_COUNTS, _usage_counts(message), strict=True)), drafts=drafts)


def drafts_to_proto(drafts: DraftUsage) -> common_pb2.DraftUsage:
    counts = (common_pb2.DraftCount(**vars(count)) for count in drafts.by_proposer)
    return common_pb2.DraftUsage(verify_steps=drafts.verify_steps, by_proposer=counts)


def drafts_from_proto(message: common_pb2.DraftUsage) -> DraftUsage:
    counts = (
        DraftCount(count.proposer, count.proposed, count.accepted) for count in message.by_proposer
    )
    return DraftUsage(message.verify_steps, tuple(counts))


def timings_to_proto(timings: Timings) -> common_pb2.Timings:
    return common_pb2.Timings(**vars(timings))


def timings_from_proto(message: common_pb2.Timings) -> Timings:
    return Timings(*_timings_fields(message))


def finished_to_proto(finished: Finished) -> common_pb2.Finished:
    return common_pb2.Finished(
        **vars(finished.end) | {"reason": reason_to_proto(finished.end.reason)},
        usage=usage_to_proto(finished.usage),
        timings=timings_to_proto(finished.timings),
        error=error_to_proto(finished.error) if finished.error else None,
        synthetic_acceptance=finished.synthetic_acceptance,
    )


def finished_from_proto(message: common_pb2.Finished) -> Finished:
    return Finished(
        End(
            reason_from_proto(message.reason),
            message.stop_token_id if message.HasField("stop_token_id") else None,
            message.stop_string,
            message.cut_chars,
        ),
        usage=usage_from_proto(message.usage),
        timings=timings_from_proto(message.timings),
        error=error_from_proto(message.error) if message.HasField("error") else None,
        synthetic_acceptance=message.synthetic_acceptance,
    )


def handoff_to_proto(name: HandoffId) -> HandoffFields:
    return {"request_id": name.request_id, "attempt": name.attempt}


def handoff_from_proto(message: OfHandoff) -> HandoffId:
    return HandoffId(message.request_id, message.attempt)


def ticket_to_proto(ticket: TicketId | None) -> TicketFields:
    if ticket is None:
        return {"ticket_id": 0, "generation": 0}
    return {"ticket_id": ticket.number, "generation": ticket.generation}


def ticket_from_proto(message: OfTicket) -> TicketId:
    """Return the ticket of a message that has one."""
    return TicketId(message.ticket_id, message.generation)
