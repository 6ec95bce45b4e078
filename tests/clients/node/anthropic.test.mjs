// Drives the official Anthropic client for JavaScript, with its defaults, against a running Baton.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BATON_URL, apiKey: "none" });
const model = process.env.BATON_MODEL;
const ask = (content) => ({ model, max_tokens: 64, messages: [{ role: "user", content }], temperature: 0 });

test("a message, whole and streamed, is the same answer", async () => {
  const whole = await client.messages.create(ask("What is 7 + 5?"));
  assert.equal(whole.stop_reason, "end_turn");
  assert.ok(whole.content[0].text.includes("12"));
  const stream = client.messages.stream(ask("What is 7 + 5?"));
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("a tool that has to be used is used", async () => {
  const done = await client.messages.create({
    ...ask("What is the weather in Paris?"),
    tools: [
      {
        name: "get_weather",
        input_schema: { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"] },
      },
    ],
    tool_choice: { type: "tool", name: "get_weather" },
  });
  assert.equal(done.stop_reason, "tool_use");
  const used = done.content.find((block) => block.type === "tool_use");
  assert.equal(used.name, "get_weather");
  assert.ok(["Paris", "Rome"].includes(used.input.city));
});

test("tokens are counted, and errors have the client's own classes", async () => {
  const { input_tokens } = await client.messages.countTokens({ model, messages: ask("Hello!").messages });
  assert.ok(input_tokens > 2);
  await assert.rejects(client.messages.create({ ...ask("Hi"), max_tokens: 0 }), Anthropic.BadRequestError);
  await assert.rejects(client.messages.create({ ...ask("Hi"), model: "another" }), Anthropic.NotFoundError);
});
