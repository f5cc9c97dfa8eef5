// OpenAI's JavaScript client against a running server: node openai_client.mjs http://localhost:8000
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const common = { model, prompt: "# heapq\ndef merge(", max_tokens: 24, temperature: 0 };

const whole = await client.completions.create({ ...common, logprobs: 2 });
const text = whole.choices[0].text;
assert.equal(whole.usage.completion_tokens, 24);
assert.equal(whole.choices[0].logprobs.tokens.join(""), text);
assert.equal(whole.choices[0].finish_reason, "length");

let streamed = "", usage = null;
const parts = await client.completions.create({ ...common, stream: true, stream_options: { include_usage: true } });
for await (const part of parts) {
  streamed += part.choices[0]?.text ?? "";
  usage = part.usage ?? usage;
}
assert.equal(streamed, text);
assert.ok(usage.speculation.steps <= 24);

const stopped = await client.completions.create({ ...common, stop: text.slice(5, 8) });
assert.equal(stopped.choices[0].text, text.slice(0, text.indexOf(text.slice(5, 8))));
assert.equal(stopped.choices[0].finish_reason, "stop");

const sampled = { ...common, temperature: 1, seed: 5, n: 3 };
const texts = async (more) => (await client.completions.create({ ...sampled, ...more })).choices.map((one) => one.text);
assert.deepEqual(await texts({ proposer: "off" }), await texts({ proposer: "lookahead:N=3,W=3,G=3" }));

const messages = [{ role: "user", content: "x" }];
const chat = await client.chat.completions.create({ model, messages, max_completion_tokens: 8, temperature: 0 });
let told = "";
for await (const part of await client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0, stream: true })) {
  told += part.choices[0].delta.content ?? "";
}
assert.equal(told, chat.choices[0].message.content);

await assert.rejects(client.completions.create({ ...common, temperature: 7 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  return true;
});
await assert.rejects(client.completions.create({ ...common, model: "x" }), OpenAI.NotFoundError);

const leaving = new AbortController();
const stream = await client.completions.create({ ...common, max_tokens: 400, stream: true }, { signal: leaving.signal });
for await (const _ of stream) break;
leaving.abort();
console.log("every check passed:", JSON.stringify(text));
