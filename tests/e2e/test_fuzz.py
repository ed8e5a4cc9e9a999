"""Inputs that schemathesis makes from the OpenAPI document of a real cluster.

Each is answered or refused with a reason: no fault of the server, no hang, and nothing is left
behind. `--fuzz N` sends N of them.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from baton.deploy.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
ACCEPTED = 0.2
LEFT_OUT = {"/start_profile", "/stop_profile", "/workers/{worker_id}/metrics"}
"""Paths whose work would be that of the profiler, or of one worker."""
LIMITS = {
    "/v1/completions": "max_tokens", "/v1/chat/completions": "max_tokens",
    "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens",
}  # fmt: skip
"""The fields that limit an answer's length: the tests are of requests, not of long answers."""
USER = {"messages": [{"role": "user", "content": "hello"}]}
LEGAL: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": USER,
    "/v1/responses": {"input": "hello"},
    "/v1/messages": USER | {"max_tokens": 2},
    "/v1/messages/count_tokens": USER,
    "/generate": {"text": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5, 6]},
    "/abort_request": {"rid": "nobody"},
}
"""Bodies that are legal: in half of the inputs, fields of the document are added to one."""
LONGEST = 4
MAY_GROW = 96 << 20  # bytes of one process: what its caches and pools take at first
Body = dict[str, Any]


def fewer(body: Body, kept: int, needed: frozenset[str]) -> Body:
    """Return a body with all that is needed and `kept` further fields: few of those with twenty
    arbitrary ones are legal."""
    others = [name for name in body if name not in needed]
    return {name: body[name] for name in [*needed & body.keys(), *others[:kept]]}


def shorter(path: str, body: Body) -> Body:
    """Return a body whose answers are short and few."""
    if path == "/generate":
        given = body.get("sampling_params")
        if given is None:
            return body | {"sampling_params": {"max_new_tokens": LONGEST}}
        if not isinstance(given, dict):
            return body
        return body | {"sampling_params": _capped(given, "max_new_tokens")}
    return _capped(body, LIMITS[path]) if path in LIMITS else body


def _capped(body: Body, limit: str) -> Body:
    found = dict(body)
    for name in (limit, "n", "best_of"):
        value = found.get(name, LONGEST if name == limit else None)
        if (
            isinstance(value, int | None)
            and not isinstance(value, bool)
            and name in {limit, *found}
        ):
            found[name] = LONGEST if value is None else min(value, LONGEST)
    return found


def inputs(document: Body) -> st.SearchStrategy[tuple[str, str, Any, Any]]:
    """Return a strategy of method, path, query and body."""
    strategies = []
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path in LEFT_OUT:
            continue
        strategies.append(_inputs_of(document, operation))
    return st.one_of(*strategies)


def _inputs_of(document: Body, operation: Any) -> st.SearchStrategy[tuple[str, str, Any, Any]]:
    body = document["paths"][operation.path][operation.method.lower()].get("requestBody")
    needed = frozenset[str]()
    if body is not None:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        needed = frozenset(document["components"]["schemas"][name].get("required", ()))
        if operation.path == "/generate":
            needed = frozenset({"text"})
        elif operation.path == "/tokenize":
            needed = frozenset({"prompt"})

    def sent(drawn: tuple[Any, int, bool]) -> tuple[str, str, Any, Any]:
        case, kept, likely = drawn
        path = operation.path.format(**(case.path_parameters or {}))
        given = case.body if isinstance(case.body, dict) else None
        if given is not None:
            given = fewer(given, kept, needed)
            if likely:
                given |= LEGAL[operation.path]
            given = shorter(operation.path, given)
        elif body is not None:
            given = case.body  # no object
        return operation.method.upper(), path, case.query, given

    return st.tuples(operation.as_strategy(), st.integers(0, 4), st.booleans()).map(sent)


def may_be_late(body: Any) -> bool:
    """Return whether a request may have run out of the time that it named."""
    seconds = body.get("timeout") if isinstance(body, Mapping) else None
    return isinstance(seconds, int | float) and seconds < DEADLINE_S


def memory(cluster: Cluster) -> dict[str, int]:
    """Return the resident bytes of each worker."""
    workers = cluster.router.server_info()["workers"]
    return {each["worker_id"]: psutil.Process(each["pid"]).memory_info().rss for each in workers}


async def test_any_input_is_answered_or_refused_with_a_reason(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--fuzz")
    document = httpx.get(f"{cluster.http_url}/openapi.json", timeout=DEADLINE_S).json()
    verdicts: Counter[tuple[str, int]] = Counter()
    at_first: dict[str, int] = {}

    def run(client: httpx.Client) -> None:
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(each=inputs(document))
        def fuzz(each: tuple[str, str, Any, Any]) -> None:
            method, path, query, body = each
            content = None if body is None else json.dumps(body, default=str).encode()
            reply = client.request(
                method,
                httpx.URL(path=path if path.startswith("/") else f"/{path}"),
                params=None if not isinstance(query, Mapping) else dict(query),
                content=content,
                headers={"content-type": "application/json"},
            )
            verdicts[f"{method} {path}" if len(path) < 30 else method, reply.status_code] += 1
            assert reply.status_code < 500 or (reply.status_code == 504 and may_be_late(body)), (
                each, reply.text,
            )  # fmt: skip
            if reply.status_code >= 400 and method != "HEAD":
                error = reply.json()["error"]
                assert error["message"], each
            if sum(verdicts.values()) == max(count // 4, 1):
                at_first.update(memory(cluster))

        fuzz()

    with httpx.Client(base_url=cluster.http_url, timeout=DEADLINE_S) as client:
        await asyncio.to_thread(run, client)
    total = sum(verdicts.values())
    accepted = sum(number for (_, status), number in verdicts.items() if status == 200)
    posts = {each: n for each, n in verdicts.items() if each[0].startswith("POST")}
    good = sum(number for (_, status), number in posts.items() if status == 200)
    print(f"{accepted} of {total} inputs accepted; {good} of {sum(posts.values())} POSTs")
    for each, number in sorted(verdicts.items()):
        print(*each, number)
    grown = {name: after - at_first.get(name, after) for name, after in memory(cluster).items()}
    print({name: f"{bytes_ / 2**20:.1f} MiB" for name, bytes_ in grown.items()})
    assert good >= ACCEPTED * sum(posts.values())
    assert max(grown.values()) < MAY_GROW
