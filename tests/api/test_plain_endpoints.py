"""Models, health and metrics."""

from fake_backend import Connect, FakeBackend

from baton import __version__


async def test_ready_says_why_a_request_could_not_be_answered(
    connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        assert (await client.get("/ready")).status_code == 200
        backend.ready = False
        reply = await client.get("/ready")
        health = await client.get("/health")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "no decode rank has registered"
    assert health.status_code == 200
    assert health.json()["detail"] == "no decode rank has registered"


async def test_health_fails_once_only_a_new_start_would_help(
    connect: Connect, backend: FakeBackend
) -> None:
    backend.ready = backend.alive = False
    async with connect() as client:
        assert (await client.get("/health")).status_code == 503


async def test_the_version_is_told(connect: Connect) -> None:
    async with connect() as client:
        assert (await client.get("/")).json() == {"server": "baton"}
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/version")).json() == {"version": __version__}


async def test_the_metrics_page_is_the_one_that_was_handed_in(connect: Connect) -> None:
    async with connect() as client:
        reply = await client.get("/metrics")
    assert reply.text == "baton_up 1\n"
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_models_say_how_long_their_context_is(connect: Connect) -> None:
    async with connect() as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
    assert model["id"] == "toy"
    assert model["max_model_len"] == 64
