"""`langchain-openai` (chat completions, Responses) and `langchain-anthropic`, by themselves and in
an agent of `langchain`.
"""

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from weather import BOTH, FOUND, PLAIN, ask, expect
from weather import weather as look_up

weather = tool(look_up)


def result_of(call: Any) -> ToolMessage:
    try:
        return ToolMessage(look_up(**call["args"]), tool_call_id=call["id"])
    except Exception as error:
        return ToolMessage(str(error), tool_call_id=call["id"], status="error")


def talk(scenario: str, model: Any, *, stream: bool) -> str:
    """Go through a conversation to its end."""
    bound = model.bind_tools([weather])
    messages: list[BaseMessage] = [SystemMessage("Be kind."), HumanMessage(ask(scenario))]
    while True:
        if stream:
            reply = None
            for part in bound.stream(messages):
                reply = part if reply is None else reply + part
        else:
            reply = bound.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return reply.text
        messages += [result_of(call) for call in reply.tool_calls]


OPENAI: Any = {"model": "toy", "base_url": f"{sys.argv[1]}/v1", "api_key": "none",
               "max_retries": 0}  # fmt: skip
MODELS = (
    ChatOpenAI(**OPENAI),
    ChatOpenAI(**OPENAI, use_responses_api=True),
    ChatAnthropic(
        model_name="toy", base_url=sys.argv[1], api_key="none", max_retries=0,
        max_tokens_to_sample=2000, thinking={"type": "enabled", "budget_tokens": 1024},
    ),
)  # fmt: skip
for model in MODELS:
    for stream in (False, True):
        expect(talk("plain", model, stream=stream), PLAIN)
        expect(talk("call", model, stream=stream), FOUND)
        expect(talk("parallel", model, stream=stream), BOTH)
        expect(talk("think", model, stream=stream), "Thought over.")
        expect(talk("think_call", model, stream=stream), FOUND)
    agent = create_agent(model, [weather], system_prompt="Be kind.")
    found = agent.invoke({"messages": [HumanMessage(ask("think_call"))]})
    expect(found["messages"][-1].text, FOUND)
