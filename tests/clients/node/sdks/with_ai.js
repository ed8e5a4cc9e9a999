// The `ai` package with its providers for chat completions, Responses and Messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import {
  BOTH, DESCRIPTION, FOUND, OBJECT, PLAIN, THOUGHT, TOO_LONG,
  ask, expect, failure, url, weather,
} from "./weather.js";

const given = { baseURL: `${url}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({
  ...given, name: "baton", supportsStructuredOutputs: true, includeUsage: true,
});
const openai = createOpenAI(given);
const anthropic = createAnthropic(given);
// Otherwise the provider of Responses sends names of items that OpenAI's servers store, and leaves
// reasoning out.
const providerOptions = {
  openai: {
    store: false, include: ["reasoning.encrypted_content"], forceReasoning: true, reasoningSummary: "auto",
  },
};
const models = {
  compatible: compatible("toy"),
  chat: openai.chat("toy"),
  responses: openai.responses("toy"),
  messages: anthropic("toy"),
};
const tools = {
  weather: tool({
    description: DESCRIPTION,
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => weather(city),
  }),
};
const Place = z.object({ city: z.string(), degrees: z.number().int() });

async function talk(model, scenario, stream) {
  const call = {
    model, tools, instructions: "Be kind.", prompt: ask(scenario), stopWhen: isStepCount(5),
    maxRetries: 0, onError: () => {}, providerOptions,
  };
  const result = stream ? streamText(call) : await generateText(call);
  return { text: await result.text, thoughts: await result.reasoningText };
}

for (const [name, model] of Object.entries(models)) {
  for (const stream of [false, true]) {
    expect((await talk(model, "plain", stream)).text, PLAIN);
    expect((await talk(model, "call", stream)).text, FOUND);
    expect((await talk(model, "parallel", stream)).text, BOTH);
    expect((await talk(model, "think_call", stream)).text, FOUND);
    const { text, thoughts } = await talk(model, "think", stream);
    expect(text, THOUGHT);
    // The provider of OpenAI's chat completions reads no reasoning.
    if (name !== "chat") expect(thoughts, "Hm, so.");
  }
  // The provider of Messages forces a tool.
  const scenario = name === "messages" ? "json_tool" : "object";
  const { output } = await generateText({
    model, prompt: ask(scenario), output: Output.object({ schema: Place }), maxRetries: 0, providerOptions,
  });
  expect(output, OBJECT);
  const error = await failure(generateText({ model, prompt: TOO_LONG, maxRetries: 0 }));
  expect(APICallError.isInstance(error), true);
  expect([error.statusCode, error.isRetryable], [400, false]);
}
