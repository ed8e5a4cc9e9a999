"""`pydantic-ai` with its models for chat completions, Responses and Messages."""

import asyncio
import sys

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from weather import BOTH, FOUND, PLAIN, NoSuchCityError, ask, expect
from weather import weather as look_up

OPENAI = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
ANTHROPIC = AnthropicProvider(base_url=sys.argv[1], api_key="none")


def weather(city: str) -> str:
    """Return the weather of a city."""
    try:
        return look_up(city)
    except NoSuchCityError as error:
        raise ModelRetry(str(error)) from error


async def talk(scenario: str, agent: Agent, *, stream: bool) -> str:
    """Go through a conversation to its end, and begin another turn behind it."""
    if not stream:
        return (await agent.run(ask(scenario))).output
    async with agent.run_stream(ask(scenario)) as result:
        return await result.get_output()


async def main() -> None:
    for model in (
        OpenAIChatModel("toy", provider=OPENAI),
        OpenAIResponsesModel("toy", provider=OPENAI),
        AnthropicModel("toy", provider=ANTHROPIC),
    ):
        agent = Agent(model, system_prompt="Be kind.", tools=[weather], retries=2)
        for stream in (False, True):
            expect(await talk("plain", agent, stream=stream), PLAIN)
            expect(await talk("call", agent, stream=stream), FOUND)
            if not stream:  # text before calls ends a run that streams
                expect(await talk("parallel", agent, stream=stream), BOTH)
            expect(await talk("think", agent, stream=stream), "Thought over.")
            expect(await talk("think_call", agent, stream=stream), FOUND)
        first = await agent.run(ask("think_call"))
        second = await agent.run(ask("plain"), message_history=first.all_messages())
        expect(second.output, PLAIN)


asyncio.run(main())
