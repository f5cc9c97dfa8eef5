// OpenAI's JavaScript client: parsed output, a loop of tools, and a streamed response. Prints what it got as JSON.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const said = 'Say: {"name": "Ada", "age": 36}';
const Person = z.object({ name: z.string(), age: z.number().int() });
const degrees = { Paris: 21, Rome: 25 };
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { name: "get_weather", description: "Degrees in a city.", parameters };

const completion = await client.chat.completions.parse({
  model: "demo",
  messages: [{ role: "user", content: said }],
  response_format: zodResponseFormat(Person, "person"),
  temperature: 0,
});

const runner = client.chat.completions.runTools({
  model: "demo",
  messages: [{ role: "user", content: "What is the weather?" }],
  tools: [
    {
      type: "function",
      function: { ...weather, parse: JSON.parse, function: ({ city }) => String(degrees[city]) },
    },
  ],
  temperature: 0,
});
const told = await runner.finalContent();

const kinds = [];
let streamed = "";
const stream = await client.responses.create({ model: "demo", input: "Say: hello", temperature: 0, stream: true });
for await (const event of stream) {
  if (kinds.at(-1) !== event.type) kinds.push(event.type);
  if (event.type === "response.output_text.delta") streamed += event.delta;
}

const call = await client.responses.create({
  model: "demo",
  input: "What is the weather?",
  tools: [{ type: "function", strict: true, ...weather }],
  temperature: 0,
});

console.log(
  JSON.stringify({
    parsed: completion.choices[0].message.parsed,
    num_calls: runner.messages.filter((message) => message.role === "tool").length,
    told,
    kinds,
    streamed,
    arguments: JSON.parse(call.output[0].arguments),
  }),
);
