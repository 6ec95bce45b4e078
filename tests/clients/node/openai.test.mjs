// Drives the official OpenAI client for JavaScript, with its defaults, against a running Baton.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.env.BATON_URL}/v1`;
const client = new OpenAI({ baseURL, apiKey: "none" });
const model = (await client.models.list()).data[0].id;
const ask = (content) => ({ model, messages: [{ role: "user", content }], temperature: 0 });
const Sum = z.object({ a: z.number().int(), b: z.number().int(), kind: z.enum(["sum", "difference"]) });

test("a chat, whole and streamed, is the same answer", async () => {
  const whole = await client.chat.completions.create(ask("What is 7 + 5?"));
  const stream = await client.chat.completions.create({
    ...ask("What is 7 + 5?"),
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.ok(text.includes("12"), text);
  assert.deepEqual(usage, whole.usage);
});

test("the stream helper gathers the final answer", async () => {
  const final = await client.chat.completions.stream(ask("What is 2 + 2?")).finalChatCompletion();
  assert.equal(final.choices[0].finish_reason, "stop");
  assert.ok(final.choices[0].message.content.includes("4"));
});

test("log-probabilities come with every token", async () => {
  const { choices } = await client.chat.completions.create({ ...ask("Hello!"), logprobs: true, top_logprobs: 3 });
  const tokens = choices[0].logprobs.content;
  assert.ok(tokens.length > 1);
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 3);
    assert.equal(token.top_logprobs[0].logprob, token.logprob); // greedy
  }
  const text = Buffer.from(tokens.flatMap((token) => token.bytes)).toString(); // a token may be a part of a character
  assert.ok(text.startsWith(choices[0].message.content), text);
});

test("an answer is parsed by its zod schema", async () => {
  const done = await client.chat.completions.parse({
    ...ask("What is 7 + 5?"),
    response_format: zodResponseFormat(Sum, "sum"),
  });
  assert.deepEqual(Sum.parse(done.choices[0].message.parsed), done.choices[0].message.parsed);
});

test("a tool that is required is called with arguments that its schema takes", async () => {
  const done = await client.chat.completions.parse({
    ...ask("What is 7 + 5?"),
    tools: [zodFunction({ name: "calculate", parameters: Sum })],
    tool_choice: "required",
  });
  assert.equal(done.choices[0].finish_reason, "tool_calls");
  const [call] = done.choices[0].message.tool_calls;
  assert.equal(call.function.name, "calculate");
  Sum.parse(call.function.parsed_arguments);
});

test("runTools calls the tool and brings its result back", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    ...ask("What is the weather in Paris?"),
    tools: [
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "Tells the weather in a city.",
          parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
          parse: JSON.parse,
          function: ({ city }) => {
            asked.push(city);
            return "rain";
          },
        },
      },
    ],
  });
  const text = await runner.finalContent();
  assert.deepEqual(asked, ["Paris"]);
  assert.match(text, /rain/);
});

test("responses: whole, streamed, parsed, and the next turn", async () => {
  const first = await client.responses.create({ model, input: "What is 7 + 5?", temperature: 0 });
  assert.ok(first.output_text.includes("12"), first.output_text);
  const stream = client.responses.stream({ model, input: "What is 7 + 5?", temperature: 0 });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  assert.equal((await stream.finalResponse()).output_text, text);
  assert.equal(text, first.output_text);
  const parsed = await client.responses.parse({
    model,
    input: "What is 7 + 5?",
    text: { format: zodTextFormat(Sum, "sum") },
  });
  Sum.parse(parsed.output_parsed);
  const next = await client.responses.create({ model, previous_response_id: first.id, input: "Thanks, bye!" });
  assert.equal(next.previous_response_id, first.id);
});

test("an answer that is aborted ends, and the next one is served", async () => {
  const stream = await client.chat.completions.create({
    ...ask("Tell me a story about a fox."),
    stream: true,
    max_tokens: 1500,
    ignore_eos: true,
  });
  let count = 0;
  for await (const _ of stream) {
    if (++count === 5) break; // the client closes the connection
  }
  assert.equal(count, 5);
  const done = await client.chat.completions.create(ask("Hello!"));
  assert.equal(done.choices[0].finish_reason, "stop");
});

test("a time-out is the client's own error", async () => {
  const long = { ...ask("Tell me a story about a fox."), max_tokens: 1500, ignore_eos: true };
  await assert.rejects(
    client.chat.completions.create(long, { timeout: 100, maxRetries: 0 }),
    OpenAI.APIConnectionTimeoutError,
  );
});

test("a request that is refused for now is tried again when Retry-After says", async () => {
  const held = [];
  for (let place = 0; place < Number(process.env.BATON_AT_ONCE); place++) {
    const long = { ...ask("Tell me a story about a fox."), stream: true, max_tokens: 1500, ignore_eos: true };
    held.push(await client.chat.completions.create(long));
  }
  await assert.rejects(client.chat.completions.create(ask("Hello!"), { maxRetries: 0 }), OpenAI.RateLimitError);
  const later = client.chat.completions.create(ask("Hello!"), { maxRetries: 8 });
  for (const stream of held) stream.controller.abort();
  assert.equal((await later).choices[0].finish_reason, "stop");
});

test("errors have the client's own classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask("Hi"), model: "another" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...ask("Hi"), temperature: 9 }), OpenAI.BadRequestError);
});
