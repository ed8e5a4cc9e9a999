"""The replies of `/generate` in SGLang's form."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from baton.api.answers import AnswerDelta
from baton.api.backend import GenerateRequest
from baton.api.replies import cached_json, synthetic_json, timings_json
from baton.api.sglang.schema import LogprobsWanted
from baton.core.drafts import DraftUsage
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import End, Finished, FinishReason, Usage
from baton.core.logprobs import TokenLogprob
from baton.text.token_table import TokenTable

Entry = list[Any]  # [log probability or null, token id, text or null]


class SglangAnswer:
    """One answer of `/generate`: takes deltas, and returns the reply so far or its newest part."""

    def __init__(
        self,
        reply_id: str,
        prompt_tokens: int,
        want: LogprobsWanted,
        table: TokenTable | None,
    ) -> None:
        """table: the texts of tokens for log probabilities; None: they have ids only."""
        self._reply_id = reply_id
        self._prompt_tokens = prompt_tokens
        self._want = want
        self._table = table
        self._text = ""
        self._ids: list[int] = []
        self._given = 0  # tokens that segments have returned
        self._input: list[Entry] = []
        self._output: list[Entry] = []
        self._input_top: list[list[Entry] | None] = []
        self._output_top: list[list[Entry] | None] = []
        self._input_asked: list[list[Entry] | None] = []
        self._output_asked: list[list[Entry] | None] = []
        self._finished: Finished | None = None

    def add(self, delta: AnswerDelta) -> None:
        self._text += delta.text
        self._ids += delta.token_ids
        if delta.prompt_logprobs is not None:
            tokens = delta.prompt_logprobs.tokens
            self._score(tokens, self._input, self._input_top, self._input_asked)
        self._score(delta.logprobs, self._output, self._output_top, self._output_asked)
        if delta.finished is not None:
            self._finished = delta.finished

    def json(self) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._reply_id,
            "finish_reason": None,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._given + len(self._ids),
            "cached_tokens": None,  # known only at the end
            "weight_version": "default",
        }
        if self._want.wanted:
            meta |= self._logprobs()
        if self._finished is not None:
            meta |= _ending(self._finished)
        return {"text": self._text, "output_ids": self._ids, "meta_info": meta}

    def segment(self) -> dict[str, Any]:
        """Return what `json` does, with only the text, ids and scores since the last segment."""
        found = self.json()
        self._given += len(self._ids)
        self._text, self._ids = "", []
        self._input, self._output = [], []
        self._input_top, self._output_top = [], []
        self._input_asked, self._output_asked = [], []
        return found

    def _logprobs(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "input_token_logprobs": self._input,
            "output_token_logprobs": self._output,
        }
        if self._want.top:
            found["input_top_logprobs"] = self._input_top
            found["output_top_logprobs"] = self._output_top
        if self._want.token_ids:
            found["input_token_ids_logprobs"] = self._input_asked
            found["output_token_ids_logprobs"] = self._output_asked
        return found

    def _score(
        self,
        tokens: Iterable[TokenLogprob],
        entries: list[Entry],
        tops: list[list[Entry] | None],
        asked: list[list[Entry] | None],
    ) -> None:
        for token in tokens:
            entries.append(self._entry(token.logprob, token.token_id))
            top = zip(token.top_logprobs, token.top_ids, strict=True)
            best = [self._entry(logprob, token_id) for logprob, token_id in top]
            known = token.logprob is not None
            tops.append(best if known else None)
            pairs = zip(token.asked_logprobs, self._want.token_ids, strict=known)
            others = [self._entry(logprob, token_id) for logprob, token_id in pairs]
            asked.append(others if known else None)

    def _entry(self, logprob: float | None, token_id: int) -> Entry:
        text = None if self._table is None else self._table.text(token_id)
        return [logprob, token_id, text]


def _ending(finished: Finished) -> dict[str, Any]:
    explained = finished.explanation
    return {
        "finish_reason": _reason(finished),
        "completion_tokens": finished.usage.completion_tokens,
        "cached_tokens": finished.usage.cached_tokens,
        "cached_tokens_details": cached_json([finished.usage]),
        "e2e_latency": finished.timings.e2e_us / 1e6,
        "timings": timings_json(finished),
        **_drafts(finished.usage.drafts),
        **synthetic_json(finished),
        **({} if explained is None else {"explanation": explained}),
    }


def _drafts(drafts: DraftUsage) -> dict[str, Any]:
    """Return the figures of draft tokens by SGLang's names, and those of each proposer; none where
    no draft was verified.
    """
    steps, proposed, accepted = drafts.verify_steps, drafts.proposed, drafts.accepted
    if not steps:
        return {}
    return {
        "spec_verify_ct": steps,
        "spec_draft_token_num": proposed,
        "spec_accept_token_num": accepted,
        "spec_accept_rate": accepted / proposed,
        "spec_accept_length": 1 + accepted / steps,
        "spec_by_proposer": {
            count.proposer: {"proposed": count.proposed, "accepted": count.accepted}
            for count in drafts.by_proposer
        },
    }


def _reason(finished: Finished) -> dict[str, Any]:
    end = finished.end
    match end.reason:
        case FinishReason.STOP:
            return {"type": "stop", "matched": end.stop_string or end.stop_token_id}
        case FinishReason.LENGTH:
            return {"type": "length", "length": finished.usage.completion_tokens}
    message = finished.error.message if finished.error is not None else "the request was aborted"
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


async def until_aborted(
    answer: AsyncGenerator[AnswerDelta, None], request: GenerateRequest, index: int
) -> AsyncGenerator[AnswerDelta, None]:
    """Yield the deltas of `answer`. An abort ends it as a finish, so that other answers
    continue.
    """
    given = 0
    try:  # `aclosing` would be four calls more
        async for delta in answer:
            given += len(delta.token_ids)
            yield delta
    except ApiError as err:
        if err.code is not ErrorCode.CANCELLED:
            raise
        usage = Usage(len(request.prompt_ids), given)
        finished = Finished(End(FinishReason.ABORT), usage=usage, error=err)
        yield AnswerDelta(index, "", given, finished=finished)
    finally:
        await answer.aclose()
