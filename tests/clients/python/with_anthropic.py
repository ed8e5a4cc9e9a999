"""The `anthropic` package: Messages, each of our blocks sent back as it came."""

import sys
from typing import Any

import anthropic
from weather import BOTH, DESCRIPTION, FOUND, PLAIN, SCHEMA, ask, expect, weather

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
TOOLS: Any = [{"name": "weather", "description": DESCRIPTION, "input_schema": SCHEMA}]


def result_of(call: Any) -> Any:
    result = {"type": "tool_result", "tool_use_id": call.id}
    try:
        return result | {"content": weather(**call.input)}
    except Exception as error:
        return result | {"content": str(error), "is_error": True}


def talk(scenario: str, *, stream: bool, **more: Any) -> str:
    """Go through a conversation to its end."""
    messages: list[Any] = [{"role": "user", "content": ask(scenario)}]
    body: Any = {"model": "toy", "max_tokens": 2000, "tools": TOOLS, "system": "Be kind."} | more
    while True:
        counted = client.messages.count_tokens(
            model="toy", messages=messages, tools=TOOLS, system="Be kind."
        )
        if stream:
            with client.messages.stream(messages=messages, **body) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(messages=messages, **body)
        expect(reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0),
               counted.input_tokens)  # fmt: skip
        messages.append({"role": "assistant", "content": reply.content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "user", "content": [result_of(call) for call in calls]})


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
for stream in (False, True):
    expect(talk("plain", stream=stream), PLAIN)
    expect(talk("call", stream=stream), FOUND)
    expect(talk("parallel", stream=stream), BOTH)
    expect(talk("think", stream=stream, **THINKING), "Thought over.")
    expect(talk("think_call", stream=stream, **THINKING), FOUND)


@anthropic.beta_tool(name="weather", description=DESCRIPTION)
def tool(city: str) -> str:
    return weather(city)


# It asks for a thread first, which Baton does not keep.
runner = client.beta.messages.tool_runner(
    model="toy",
    max_tokens=2000,
    tools=[tool],
    messages=[{"role": "user", "content": ask("call")}],
)
expect("".join(block.text for block in runner.until_done().content if block.type == "text"), FOUND)
