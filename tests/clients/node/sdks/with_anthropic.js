// The `@anthropic-ai/sdk` package: Messages, each of our blocks sent back as it came.
import Anthropic from "@anthropic-ai/sdk";
import {
  BOTH, DESCRIPTION, FOUND, OBJECT, OBJECT_SCHEMA, PLAIN, SCHEMA, THOUGHT, TOO_LONG,
  ask, expect, failure, url, weather,
} from "./weather.js";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const model = "toy";
const tools = [{ name: "weather", description: DESCRIPTION, input_schema: SCHEMA }];
const system = "Be kind.";

function resultOf(call) {
  const result = { type: "tool_result", tool_use_id: call.id };
  try {
    return { ...result, content: weather(call.input.city) };
  } catch (error) {
    return { ...result, content: error.message, is_error: true };
  }
}

async function talk(scenario, stream, more = {}) {
  const messages = [{ role: "user", content: ask(scenario) }];
  for (;;) {
    const counted = await client.messages.countTokens({ model, messages, tools, system });
    const body = { model, max_tokens: 2000, messages, tools, system, ...more };
    const reply = stream
      ? await client.messages.stream(body).finalMessage()
      : await client.messages.create(body);
    const { input_tokens, cache_read_input_tokens } = reply.usage;
    expect(input_tokens + (cache_read_input_tokens ?? 0), counted.input_tokens);
    messages.push({ role: "assistant", content: reply.content });
    const calls = reply.content.filter((block) => block.type === "tool_use");
    if (!calls.length) {
      const texts = reply.content.filter((block) => block.type === "text");
      return texts.map((block) => block.text).join("");
    }
    messages.push({ role: "user", content: calls.map(resultOf) });
  }
}

const thinking = { thinking: { type: "enabled", budget_tokens: 1024 } };
for (const stream of [false, true]) {
  expect(await talk("plain", stream), PLAIN);
  expect(await talk("call", stream), FOUND);
  expect(await talk("parallel", stream), BOTH);
  expect(await talk("think", stream, thinking), THOUGHT);
  expect(await talk("think_call", stream, thinking), FOUND);
}

const place = await client.messages.create({
  model,
  max_tokens: 2000,
  messages: [{ role: "user", content: ask("object") }],
  output_config: { format: { type: "json_schema", schema: OBJECT_SCHEMA } },
});
expect(JSON.parse(place.content.at(-1).text), OBJECT);

const asked = { model, max_tokens: 9 };
const long = await failure(
  client.messages.create({ ...asked, messages: [{ role: "user", content: TOO_LONG }] }),
);
expect([long.status, long.type], [400, "invalid_request_error"]);
expect(/prompt is too long: \d+ tokens > \d+ maximum/.test(long.message), true);
expect(long instanceof Anthropic.BadRequestError, true);
const wrong = await failure(
  client.messages.create({ ...asked, messages: [{ role: "user", content: "a" }], top_p: 9 }),
);
expect(wrong.status, 400);
