"""`openai-agents` with its models for Responses and for chat completions."""

import asyncio
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from weather import BOTH, FOUND, PLAIN, ask, expect
from weather import weather as look_up

weather = function_tool(look_up)


async def talk(scenario: str, agent: Agent, *, stream: bool) -> str:
    """Go through a conversation to its end."""
    if not stream:
        return (await Runner.run(agent, ask(scenario))).final_output
    result = Runner.run_streamed(agent, ask(scenario))
    async for _ in result.stream_events():
        pass
    return result.final_output


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    for model in (
        OpenAIResponsesModel("toy", client),
        OpenAIChatCompletionsModel("toy", client),
    ):
        agent = Agent("helper", instructions="Be kind.", model=model, tools=[weather])
        for stream in (False, True):
            expect(await talk("plain", agent, stream=stream), PLAIN)
            expect(await talk("call", agent, stream=stream), FOUND)
            expect(await talk("parallel", agent, stream=stream), BOTH)
            expect(await talk("think", agent, stream=stream), "Thought over.")
            expect(await talk("think_call", agent, stream=stream), FOUND)
        first = await Runner.run(agent, ask("think_call"))
        again = [*first.to_input_list(), {"role": "user", "content": ask("plain")}]
        expect((await Runner.run(agent, again)).final_output, PLAIN)


asyncio.run(main())
