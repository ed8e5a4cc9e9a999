"""The reasons of one request's placement, and what its workers had of the prompt, as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from baton.core.role import Role
from baton.proto.common_pb2 import PromptSource
from baton.router.cluster_view.eviction_log import LostState
from baton.router.placement.decision import Decision
from baton.router.placement.prefill_here import sum_of
from baton.router.placement.view import ClusterView, PlacementRequest, RoleView
from baton.router.sessions.request_history import PlacedAttempt, RequestHistory

MOST_LOSSES = 32
"""Lost states of one explanation: the longest prefix that each worker lost last."""
JsonObject = dict[str, Any]


def explanation(history: RequestHistory, lost: Iterable[LostState], router_id: str) -> JsonObject:
    """Return the answer to `GET /explain/{id}`; docs/placement.md says what each field is.

    lost: states of the prompt's prefixes that workers have lost, oldest first.
    """
    attempts = history.attempts
    status = "ended" if history.outcome else "running" if _runs(attempts) else "waiting"
    return {
        "request_id": history.request_id,
        "client_id": history.client_id,
        "call_id": history.call_id,
        "router": router_id,
        "status": status,
        "outcome": history.outcome or None,
        "prompt_tokens": len(history.prompt),
        "output_tokens": history.output_tokens,
        "timings": None if history.timings is None else asdict(history.timings),
        "computed": None if history.source is None else _computed(history),
        "lost_states": [_lost(each, attempts[0]) for each in _telling(lost, attempts)],
        "attempts": [_attempt(each, history.arrived_s) for each in attempts],
    }


def _runs(attempts: Sequence[PlacedAttempt]) -> bool:
    return bool(attempts) and attempts[-1].ended_s is None


def _computed(history: RequestHistory) -> JsonObject:
    """Describe the prompt of the last attempt: what its workers had, and what they computed."""
    source: PromptSource | None = history.source
    assert source is not None
    tokens = history.attempts[-1].assignment.decision.request.prompt_tokens
    here = source.reader == history.attempts[-1].assignment.rank.worker_id
    found: JsonObject = {
        "attempt": history.attempts[-1].number,
        "by": source.reader,
        "cached_state_tokens": source.state_tokens,
        "cached_kv_tokens": source.kv_tokens,
        "host_tokens": source.host_tokens,
        "file_tokens": source.file_tokens,
        "computed_tokens": tokens - source.state_tokens,
        "rank_kv_tokens": None if here else source.rank_kv_tokens,
        "sent_kv_tokens": 0 if here else tokens - source.rank_kv_tokens,
        "fetch": None,
        "failed": list(source.failed),
    }
    if source.HasField("fetch"):
        fetch = source.fetch
        found["fetch"] = {
            "from": fetch.source,
            "tokens": fetch.tokens,
            "outcome": fetch.outcome,
            "ms": round(fetch.took_us / 1e3, 3),
        }
    return found


def _telling(lost: Iterable[LostState], attempts: Sequence[PlacedAttempt]) -> list[LostState]:
    """Return the losses that shortened the match: of each worker the longest prefix beyond what it
    still had at the first placement, and what the reader lost after it.
    """
    if not attempts:
        return []
    first = attempts[0]
    had = first.assignment.decision.reported
    reader = first.assignment.reader.worker_id
    until = float("inf") if first.ended_s is None else first.ended_s
    found: dict[str, LostState] = {}
    for each in lost:
        before = each.lost_s <= first.placed_s and each.tokens > had.get(each.worker, 0)
        meanwhile = first.placed_s < each.lost_s <= until and each.worker == reader
        if before or meanwhile:
            known = found.get(each.worker)
            if known is None or each.tokens >= known.tokens:
                found[each.worker] = each
    longest = sorted(found.values(), key=lambda each: (-each.tokens, -each.lost_s))
    return longest[:MOST_LOSSES]


def _lost(lost: LostState, first: PlacedAttempt) -> JsonObject:
    return {
        "worker": lost.worker,
        "tokens": lost.tokens,
        "how": lost.how.value,
        "before_placement_s": round(first.placed_s - lost.lost_s, 3),
    }


def _attempt(attempt: PlacedAttempt, arrived_s: float) -> JsonObject:
    assignment = attempt.assignment
    decision = assignment.decision
    state_at = assignment.state_at
    prefills = [worker.worker_id for worker in assignment.prefills]
    rank = assignment.rank.worker_id
    ended = attempt.ended_s
    return {
        "attempt": attempt.number,
        "placed_ms": _ms(attempt.placed_s - arrived_s),
        "ended_ms": None if ended is None else _ms(ended - arrived_s),
        "end": attempt.end,
        "why": attempt.why or None,
        "policy": decision.policy.name,
        "prefill": _choice(decision, Role.PREFILL, prefills[0], rank) | {"fallbacks": prefills[1:]},
        "decode": _choice(decision, Role.DECODE, rank, prefills[0]),
        "prefill_here": _here(decision, assignment.here),
        "state_at": None
        if state_at is None
        else {"worker": state_at.worker.worker_id, "tokens": state_at.tokens},
        "junctions": list(assignment.junctions),
    }


def _choice(decision: Decision, role: Role, chosen: str, other: str) -> JsonObject:
    """Describe the choice among the workers of a role. other: the chosen one of the other role."""
    seen, request = decision.seen(), decision.request
    view = seen.of(role)
    row = view.worker_ids.index(chosen)
    costs = decision.policy.costs(seen, role, request)
    listed = _named(view.candidates, chosen, view)
    late = _link_extra_ms(seen, role, request, other)
    reason = decision.policy.reason(seen, role, request, row) if listed else _FALLBACK
    if decision.moved and role is Role.DECODE:
        reason = _MOVED
    return {
        "worker": chosen,
        "reason": reason,
        "state_tokens": view.cached_tokens.get(row, 0),
        "candidates": [
            _candidate(decision, view, each, costs) | {"link_extra_ms": late[each]}
            for each in range(len(view.worker_ids))
        ],
    }


def _link_extra_ms(
    seen: ClusterView, role: Role, request: PlacementRequest, other: str
) -> Sequence[float | None]:
    """Return the time that the hand-off between each worker of a role and `other` takes longer than
    over the best link; None where links do not differ.
    """
    rows = range(len(seen.of(role).worker_ids))
    if seen.links is None:
        return [None for _ in rows]
    if role is Role.PREFILL:
        rank = seen.decode.worker_ids.index(other)
        return [_ms(seen.late_s(row, rank, request)) for row in rows]
    prefill = seen.prefill.worker_ids.index(other)
    return [_ms(seen.late_s(prefill, row, request)) for row in rows]


_FALLBACK = "there was no other"
_MOVED = "it computes the prompt, which the policy's rank would not"


def _named(candidates: Sequence[int], chosen: str, view: RoleView) -> bool:
    return any(view.worker_ids[row] == chosen for row in candidates)


def _candidate(
    decision: Decision, view: RoleView, row: int, costs: Mapping[str, Sequence[float]]
) -> JsonObject:
    """Describe one worker as it was. Its `excluded` says why it could not be chosen."""
    worker = view.worker_ids[row]
    known = view.cached_tokens.get(row, 0)
    excluded = decision.excluded(view.role, row)
    found: JsonObject = {
        "worker": worker,
        "excluded": None if excluded is None else excluded.value,
        "fullness": round(view.fullness[row], 3),
        "state_tokens": known,
        "state_to_come": known > decision.reported.get(worker, 0),
    }
    if view.role is Role.PREFILL:
        speed = view.prompt_token_us[row]
        left = view.queued_tokens[row] + decision.request.prompt_tokens - known
        found["queued_tokens"] = view.queued_tokens[row]
        found["prompt_token_us"] = round(speed, 2)
        found["compute_ms"] = round(left * speed / 1e3, 3) if speed else None
    parts = {name: round(column[row], 3) for name, column in costs.items()}
    found["cost"] = round(sum(parts.values()), 3) if parts else None
    found["parts"] = parts
    return found


def _here(decision: Decision, here: bool) -> JsonObject:
    """Describe the choice between the rank and the prefill worker as the one that computes."""
    there, rule = decision.there, decision.prefill_here
    seconds = sum_of(there, decision.here)
    found: JsonObject = {
        "chosen": here,
        "why": rule.verdict(there, decision.here).value,
        "option": rule.name,
        "threshold_tokens": rule.threshold(there, decision.here),
        "behind": round(there.behind, 2),
        "answers": decision.here.answers,
    }
    parts = {
        "prefill_ms": seconds.there_s,
        "rank_ms": seconds.here_s,
        "behind_ms": seconds.behind_s,
        "answers_ms": seconds.answers_s,
        "margin_ms": seconds.noise_s,
        "saved_ms": seconds.saved_s,
    }
    return found | {name: _ms(part) if seconds.known else None for name, part in parts.items()}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
