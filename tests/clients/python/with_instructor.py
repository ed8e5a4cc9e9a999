"""`instructor`, whose answers are objects, by a schema."""

import sys

import instructor
import openai
from pydantic import BaseModel
from weather import ask, expect


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
for mode, scenario in (
    (instructor.Mode.TOOLS, "forced"),
    (instructor.Mode.JSON, "object"),
    (instructor.Mode.JSON_SCHEMA, "object"),
):
    asker = instructor.from_openai(client, mode=mode)
    found = asker.chat.completions.create(
        model="toy",
        response_model=Weather,
        max_retries=0,
        messages=[{"role": "user", "content": ask(scenario)}],
    )
    expect(found.model_dump(), {"city": "Paris", "degrees": 18})
