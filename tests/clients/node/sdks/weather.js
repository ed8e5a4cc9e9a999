// The tool that every client has, and the answers that the scripted model gives.
import { isDeepStrictEqual } from "node:util";

export const PLAIN = "Fine, thank you.";
export const FOUND = "It is 18 C in Paris.";
export const BOTH = "Paris has 18 C; nobody knows Atlantis.";
export const THOUGHT = "Thought over.";
export const OBJECT = { city: "Paris", degrees: 18 };
export const DESCRIPTION = "Return the weather of a city.";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
export const OBJECT_SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
export const TOO_LONG = "scenario plain " + "word ".repeat(120000);

export const [, , url] = process.argv;

export function weather(city) {
  if (city !== "Paris") throw new Error("no such city");
  return "18 C";
}

export function ask(scenario) {
  return `How is it? scenario ${scenario}`;
}

export function expect(found, right) {
  if (!isDeepStrictEqual(found, right)) {
    console.error(`got ${JSON.stringify(found)}, expected ${JSON.stringify(right)}`);
    process.exit(1);
  }
}

// Return the error of a promise that must fail.
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  console.error("a request was not refused");
  process.exit(1);
}
