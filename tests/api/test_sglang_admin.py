"""SGLang's endpoints beside `/generate`, over a fake backend."""

import asyncio

import pytest
from fake_backend import Connect, FakeBackend

from baton.api.backend import MAX_PRIORITY, CachePart
from baton.api.client_salt import salts_of
from baton.api.sglang import admin as sglang_admin
from baton.core.cache_salt import CacheScope, key_part, key_salt, make_salt
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_flush_cache_waits_as_long_as_it_is_told(
    connect: Connect, backend: FakeBackend, method: str
) -> None:
    async with connect() as client:
        for query in ("", "?timeout=0", "?timeout=2.5"):
            assert (await client.request(method, f"/flush_cache{query}")).status_code == 200
        assert backend.flushed == [sglang_admin.FLUSH_WAIT_S, 0, 2.5]
        backend.flush_failure = ApiError(ErrorCode.DEADLINE_EXCEEDED, "d0 is still at work")
        reply = await client.request(method, "/flush_cache?timeout=0")
    assert reply.status_code == 504
    assert "still at work" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, None),
        ({"api_key": None, "cache_salt": None}, None),
        ({"cache_salt": "s"}, CachePart(None, make_salt("s"))),
        ({"extra_key": "s"}, CachePart(None, make_salt("s"))),
        ({"cache_salt": "s", "extra_key": "t"}, CachePart(None, make_salt("s", "t"))),
        ({"api_key": "ada"}, CachePart("ada")),
        ({"api_key": "ada", "cache_salt": "s"}, CachePart("ada", make_salt("s"))),
    ],
)
async def test_a_flush_may_name_a_key_and_a_salt(
    connect: Connect, backend: FakeBackend, body: dict[str, str], part: CachePart | None
) -> None:
    async with connect() as client:
        reply = await client.post("/flush_cache", json=body)
    assert reply.status_code == 200, reply.text
    assert backend.parts == [part]
    assert ("are empty" in reply.text) == (part is None)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"api_key": ""}', "api_key"),
        (b'{"cache_salt": ""}', "cache_salt"),
        (b'{"cache_salt": 7}', "cache_salt"),
        (b'{"cache_salts": "s"}', "cache_salts"),
        (b'{"tenant": "ada"}', "tenant"),
        (b"ada", None),
        (b'["ada"]', None),
    ],
)
async def test_a_flush_that_names_what_nobody_knows_removes_nothing(
    connect: Connect, backend: FakeBackend, body: bytes, named: str | None
) -> None:
    async with connect() as client:
        reply = await client.post(
            "/flush_cache", content=body, headers={"content-type": "application/json"}
        )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == named
    assert not backend.flushed


def test_a_part_of_the_caches_is_one_that_the_scope_has() -> None:
    salt, key, both = CachePart(None, make_salt("s")), CachePart("ada"), CachePart("ada", b"s" * 16)
    assert salts_of(None, CacheScope.SHARED) == salts_of(None, CacheScope.KEY) == b""
    assert salts_of(salt, CacheScope.SHARED) == make_salt("s")
    assert salts_of(key, CacheScope.KEY) == key_part("ada")
    assert salts_of(both, CacheScope.KEY) == key_salt("ada", b"s" * 16)
    for part, scope in (
        (key, CacheScope.SHARED),
        (both, CacheScope.SHARED),
        (salt, CacheScope.KEY),
    ):
        with pytest.raises(ApiError, match="cache scope is") as refused:
            salts_of(part, scope)
        assert refused.value.param == "api_key"


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "soon", "1e9", ""])
async def test_a_timeout_that_is_none_is_refused(
    connect: Connect, backend: FakeBackend, timeout: str
) -> None:
    async with connect() as client:
        reply = await client.post("/flush_cache", params={"timeout": timeout})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "timeout"
    assert not backend.flushed


async def test_an_abort_must_name_something(connect: Connect) -> None:
    async with connect() as client:
        for body in ({}, {"rid": ""}, {"rid": None, "abort_all": False}):
            reply = await client.post("/abort_request", json=body)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == "rid"


async def test_health_generate_computes_one_token(connect: Connect, backend: FakeBackend) -> None:
    async with connect() as client:
        assert (await client.get("/health_generate")).status_code == 200
    (probe,) = backend.seen
    assert (probe.sampling.max_tokens, len(probe.prompt_ids)) == (1, 1)
    assert probe.priority == MAX_PRIORITY, "a long queue is no illness"


async def test_health_generate_fails_as_a_request_would(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.fail_first = ApiError(ErrorCode.UNAVAILABLE, "no prefill worker is ready")
    async with connect() as client:
        reply = await client.get("/health_generate")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "no prefill worker is ready"


async def test_health_generate_gives_up_on_a_server_that_hangs(
    connect: Connect, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.hold_after = 0
    monkeypatch.setattr(sglang_admin, "PROBE_S", 0.05)
    async with connect() as client, asyncio.timeout(60):
        reply = await client.get("/health_generate")
    assert reply.status_code == 503
    assert "no token within" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info_has_the_documented_keys(connect: Connect, path: str) -> None:
    async with connect() as client:
        info = (await client.get(path)).json()
    assert info == {
        "model_path": "/models/toy",
        "tokenizer_path": "/models/toy",
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_server_info_is_the_backends_with_the_model_beside_it(
    connect: Connect, backend: FakeBackend, path: str
) -> None:
    async with connect() as client:
        info = (await client.get(path)).json()
        assert info["workers"] == 0, "the fake backend's own"
        assert info["served_model_name"] == "toy"
        assert info["model_path"] == "/models/toy"
        assert (info["context_length"], info["status"]) == (64, "ready")
        backend.ready = False
        assert (await client.get(path)).json()["status"] == "not ready"
