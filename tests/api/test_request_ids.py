"""`X-Request-Id`: a client's own comes back, on errors too."""

import pytest
from fake_backend import Connect, FakeBackend

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

GOOD = {"prompt": "hello", "max_tokens": 2}


async def test_the_clients_id_comes_back_with_every_kind_of_reply(
    connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        for method, path, body, status in (
            ("POST", "/v1/completions", GOOD, 200),
            ("POST", "/v1/completions", GOOD | {"stream": True}, 200),
            ("POST", "/v1/completions", {"prompt": 5}, 400),
            ("GET", "/v1/completions", None, 405),
            ("GET", "/nothing", None, 404),
            ("GET", "/v1/models", None, 200),
        ):
            headers = {"x-request-id": "my-id/7"}
            reply = await client.request(method, path, json=body, headers=headers)
            assert reply.status_code == status
            assert reply.headers["x-request-id"] == "my-id/7"
        assert backend.seen[0].client_id == "my-id/7"
        backend.fail_first = ApiError(ErrorCode.OVERLOADED, "full")
        reply = await client.post("/v1/completions", json=GOOD, headers=headers)
        assert (reply.status_code, reply.headers["x-request-id"]) == (429, "my-id/7")


async def test_a_fault_of_the_server_names_the_request(
    connect: Connect, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(backend, "models", fail)
    async with connect() as client:
        reply = await client.get("/v1/models", headers={"x-request-id": "mine"})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal"
    assert reply.headers["x-request-id"] == "mine"


async def test_a_request_without_id_is_given_one(connect: Connect) -> None:
    async with connect() as client:
        one, two = [await client.get("/health") for _ in range(2)]
    assert len(one.headers["x-request-id"]) == 32
    assert one.headers["x-request-id"] != two.headers["x-request-id"]


@pytest.mark.parametrize("given", [b"", b"two words", b"x" * 129, b"tab\tbed", "é".encode()])
async def test_an_id_that_logs_could_not_show_is_refused(
    connect: Connect, backend: FakeBackend, given: bytes
) -> None:
    async with connect() as client:
        headers = [(b"x-request-id", given)]
        reply = await client.post("/v1/completions", json=GOOD, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "x-request-id"
    assert len(reply.headers["x-request-id"]) == 32
    assert not backend.seen
