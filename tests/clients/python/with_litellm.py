"""The `litellm` package, as a client of chat completions and of Messages."""

import json
import sys
from typing import Any

import litellm
from weather import BOTH, DESCRIPTION, FOUND, PLAIN, SCHEMA, ask, expect, weather

FUNCTION = {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]


def result_of(arguments: str) -> str:
    try:
        return weather(**json.loads(arguments))
    except Exception as error:
        return f"Error: {error}"


def talk(scenario: str, model: str, base: str, *, stream: bool) -> str:
    """Go through a conversation to its end."""
    messages: list[Any] = [{"role": "system", "content": "Be kind."}]
    messages.append({"role": "user", "content": ask(scenario)})
    while True:
        reply: Any = litellm.completion(
            model=model, api_base=base, api_key="none", messages=messages, tools=TOOLS,
            stream=stream, max_tokens=2000, num_retries=0,
        )  # fmt: skip
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=messages)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            content = result_of(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


for model, base in (
    ("openai/toy", f"{sys.argv[1]}/v1"),
    ("hosted_vllm/toy", f"{sys.argv[1]}/v1"),
    ("anthropic/toy", sys.argv[1]),
):
    for stream in (False, True):
        expect(talk("plain", model, base, stream=stream), PLAIN)
        expect(talk("call", model, base, stream=stream), FOUND)
        expect(talk("parallel", model, base, stream=stream), BOTH)
        expect(talk("think", model, base, stream=stream), "Thought over.")
        expect(talk("think_call", model, base, stream=stream), FOUND)
