// `node openai_node.mjs URL MODEL`: the npm package `openai` prints what it got as JSON; see ai_sdk.mjs.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.NODE_CLIENTS}/package.json`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "x", maxRetries: 0 });
const ask = { model, messages: [{ role: "user", content: "Hello" }], temperature: 0 };
const schema = {
  type: "object", properties: { city: { enum: ["Paris", "Rome"] }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"], additionalProperties: false,
};
const forced = {
  ...ask, tools: [{ type: "function", function: { name: "weather", parameters: schema } }], tool_choice: "required",
  parallel_tool_calls: false,
};
const called = (answer) => {
  const { name, arguments: text } = answer.choices[0].message.tool_calls[0].function;
  return [name, JSON.parse(text)];
};

const chat = client.chat.completions;
let streamed = "";
for await (const chunk of await chat.create({ ...ask, max_tokens: 8, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const object = await chat.create({
  ...ask, response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } },
});
const error = await chat.create({ ...ask, top_p: 3 }).then(() => null, (e) => [e.status, e.param]);

console.log(JSON.stringify({
  text: (await chat.create({ ...ask, max_completion_tokens: 8 })).choices[0].message.content,
  streamed,
  tool: called(await chat.create(forced)),
  streamed_tool: called(await chat.stream(forced).finalChatCompletion()),
  object: JSON.parse(object.choices[0].message.content),
  error,
}));
