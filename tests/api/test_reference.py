"""`/openapi.json` and `/docs`."""

import pytest
from fake_backend import Connect, FakeBackend
from starlette.responses import Response
from starlette.routing import Route

from baton.api.access.access import ROUTES
from baton.api.http import make_app
from baton.api.reference import OPERATIONS
from baton.api.text_service import TextService
from baton.core.errors import ConfigError


def test_every_endpoint_with_a_scope_has_an_entry() -> None:
    assert OPERATIONS.keys() == ROUTES.keys()


OF_ROUTERS = {
    "/prometheus/targets", "/workers/{worker_id}/metrics", "/start_profile", "/stop_profile",
    "/control", "/explain/{request_id}",
}  # fmt: skip


async def test_the_document_has_every_route_and_the_fields_that_are_parsed(
    connect: Connect,
) -> None:
    async with connect() as client:
        document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    served = {path.replace(":path", "") for path in ROUTES} - OF_ROUTERS
    assert set(document["paths"]) == served
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    chat = document["components"]["schemas"][name]
    assert {"messages", "temperature", "tools", "stream"} <= set(chat["properties"])
    assert "get" not in document["paths"]["/generate"]


async def test_every_reference_in_the_document_leads_somewhere(connect: Connect) -> None:
    async with connect() as client:
        document = (await client.get("/openapi.json")).json()

    def check(part: object) -> None:
        if isinstance(part, dict):
            target = part.get("$ref")
            if isinstance(target, str):
                assert target.rpartition("/")[2] in document["components"]["schemas"], target
            for each in part.values():
                check(each)
        elif isinstance(part, list):
            for each in part:
                check(each)

    check(document)


async def test_the_page_for_people_lists_the_endpoints_and_loads_nothing(
    connect: Connect,
) -> None:
    async with connect() as client:
        reply = await client.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    for part in ("POST /v1/completions", "max_tokens", "openapi.json"):
        assert part in reply.text
    assert "<script" not in reply.text and "://" not in reply.text


def test_a_route_that_the_reference_lacks_stops_the_start(
    backend: FakeBackend, text: TextService
) -> None:
    with pytest.raises(ConfigError, match="/new"):
        make_app(backend, text, more_routes=[Route("/new", lambda _: Response())])
