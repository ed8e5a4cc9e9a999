// The `openai` package: chat completions and Responses. What came is sent back unchanged.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  BOTH, DESCRIPTION, FOUND, OBJECT, PLAIN, SCHEMA, THOUGHT, TOO_LONG,
  ask, expect, failure, url, weather,
} from "./weather.js";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const model = "toy";
const described = { name: "weather", description: DESCRIPTION, parameters: SCHEMA };
const CHAT_TOOLS = [{ type: "function", function: described }];
const TOOLS = [{ type: "function", strict: false, ...described }];
const Place = z.object({ city: z.string(), degrees: z.number().int() });

function resultOf(written) {
  try {
    return weather(JSON.parse(written).city);
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

async function chat(scenario, stream) {
  const messages = [
    { role: "system", content: "Be kind." },
    { role: "user", content: ask(scenario) },
  ];
  for (;;) {
    const body = { model, messages, tools: CHAT_TOOLS };
    const reply = stream
      ? await client.chat.completions
          .stream({ ...body, stream_options: { include_usage: true } })
          .finalChatCompletion()
      : await client.chat.completions.create(body);
    const message = reply.choices[0].message;
    messages.push(message);
    if (!message.tool_calls?.length) return message.content;
    for (const call of message.tool_calls) {
      const content = resultOf(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function respond(scenario, stream) {
  const input = [
    { role: "developer", content: "Be kind." },
    { role: "user", content: ask(scenario) },
  ];
  for (;;) {
    const body = {
      model, input, tools: TOOLS, include: ["reasoning.encrypted_content"], store: false,
    };
    const reply = stream
      ? await client.responses.stream(body).finalResponse()
      : await client.responses.create(body);
    input.push(...reply.output);
    const calls = reply.output.filter((item) => item.type === "function_call");
    if (!calls.length) return reply.output_text;
    for (const call of calls) {
      const output = resultOf(call.arguments);
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

for (const stream of [false, true]) {
  for (const talk of [chat, respond]) {
    expect(await talk("plain", stream), PLAIN);
    expect(await talk("call", stream), FOUND);
    expect(await talk("parallel", stream), BOTH);
    expect(await talk("think", stream), THOUGHT);
    expect(await talk("think_call", stream), FOUND);
  }
}

const messages = [{ role: "user", content: ask("object") }];
const parsed = await client.chat.completions.parse({
  model, messages, response_format: zodResponseFormat(Place, "place"),
});
expect(parsed.choices[0].message.parsed, OBJECT);
const text = await client.responses.parse({
  model, input: messages, text: { format: zodTextFormat(Place, "place") },
});
expect(text.output_parsed, OBJECT);

const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: ask("call") }],
  tools: [{
    type: "function",
    function: { ...described, parse: JSON.parse, function: ({ city }) => weather(city) },
  }],
});
expect(await runner.finalContent(), FOUND);

const long = await failure(
  client.chat.completions.create({ model, messages: [{ role: "user", content: TOO_LONG }] }),
);
expect([long.status, long.code], [400, "context_length_exceeded"]);
expect(long instanceof OpenAI.BadRequestError, true);
const wrong = await failure(
  client.chat.completions.create({ model, messages, top_p: 9 }),
);
expect([wrong.status, wrong.param], [400, "top_p"]);
const gone = await failure(client.responses.retrieve("resp_1"));
expect(gone.status, 404);
