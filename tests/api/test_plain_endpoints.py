"""Models, health and metrics."""

from fake_backend import Connect, FakeBackend


async def test_health_says_why_a_request_could_not_be_answered(
    connect: Connect, backend: FakeBackend
) -> None:
    async with connect() as client:
        assert (await client.get("/health")).status_code == 200
        backend.ready = False
        reply = await client.get("/health")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "no decode rank has registered"


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
