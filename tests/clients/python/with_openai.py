"""The `openai` package: chat completions and Responses. What came is sent back unchanged."""

import json
import sys
from typing import Any

import openai
from weather import BOTH, DESCRIPTION, FOUND, PLAIN, SCHEMA, ask, expect, weather

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
FUNCTION: Any = {"name": "weather", "description": DESCRIPTION, "parameters": SCHEMA}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
TOOLS: Any = [{"type": "function", "strict": False, **FUNCTION}]


def result_of(arguments: str) -> str:
    try:
        return weather(**json.loads(arguments))
    except Exception as error:
        return f"Error: {error}"


def chat(scenario: str, *, stream: bool) -> str:
    """Go through a conversation to its end."""
    messages: list[Any] = [{"role": "system", "content": "Be kind."}]
    messages.append({"role": "user", "content": ask(scenario)})
    while True:
        if stream:
            with client.chat.completions.stream(
                model="toy",
                messages=messages,
                tools=CHAT_TOOLS,
                stream_options={"include_usage": True},
            ) as events:
                message: Any = events.get_final_completion().choices[0].message
        else:
            reply = client.chat.completions.create(model="toy", messages=messages, tools=CHAT_TOOLS)
            message = reply.choices[0].message
        messages.append(message.model_dump() if stream else message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            content = result_of(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def respond(scenario: str, *, stream: bool) -> str:
    """Go through a conversation of Responses to its end."""
    items: list[Any] = [{"role": "developer", "content": "Be kind."}]
    items.append({"role": "user", "content": ask(scenario)})
    asked: Any = {"include": ["reasoning.encrypted_content"], "store": False}
    while True:
        if stream:
            with client.responses.stream(model="toy", input=items, tools=TOOLS, **asked) as events:
                reply: Any = events.get_final_response()
        else:
            reply = client.responses.create(model="toy", input=items, tools=TOOLS, **asked)
        items += [item.model_dump(exclude_unset=True) for item in reply.output]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        for call in calls:
            output = result_of(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )


for stream in (False, True):
    for talk in (chat, respond):
        expect(talk("plain", stream=stream), PLAIN)
        expect(talk("call", stream=stream), FOUND)
        expect(talk("parallel", stream=stream), BOTH)
        expect(talk("think", stream=stream), "Thought over.")
        expect(talk("think_call", stream=stream), FOUND)
