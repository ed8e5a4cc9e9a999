"""The `anthropic` package's runner of tools asks for a thread, and goes on without one."""

from pathlib import Path

import anthropic
import pytest
from clients.scenarios import SDK_SCRIPTS
from clients.scripted_server import scripted_server
from fake_backend import Connect
from prompt_model import MESSAGES

SAID = "It is 18 C in Paris."


@anthropic.beta_async_tool
async def weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: The city's name.
    """
    return "18 C"


async def test_the_runner_of_tools_goes_on_without_a_thread(tmp_path: Path) -> None:
    async with scripted_server(tmp_path, "strict_text") as server:
        server.backend.scripts = SDK_SCRIPTS
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        async with client:
            runner = client.beta.messages.tool_runner(
                model="toy",
                max_tokens=99,
                tools=[weather],
                messages=[{"role": "user", "content": "How is it? scenario call"}],
            )
            reply = await runner.until_done()
        assert [block.text for block in reply.content if block.type == "text"] == [SAID]
        assert [exchange.status for exchange in server.exchanges] == [400, 200, 200]
        assert ["thread" in exchange.body for exchange in server.exchanges] == [True, False, False]


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
async def test_a_thread_is_refused_in_the_words_that_the_sdk_knows(
    connect: Connect, thread: dict[str, str]
) -> None:
    body = {"model": "toy", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    async with connect() as client:
        reply = await client.post(MESSAGES, json=body | {"thread": thread})
        other = await client.post(MESSAGES, json=body | {"max_tokens": "9"})
    assert (reply.status_code, other.status_code) == (400, 400)
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert "details" not in other.json()["error"]
