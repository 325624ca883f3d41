// `node ai_sdk.mjs URL MODEL`: Vercel's `ai` with @ai-sdk/openai-compatible prints what it got as JSON.
// Packages are looked up from NODE_CLIENTS, a folder that holds node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.NODE_CLIENTS}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, generateObject, streamObject, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "local", baseURL: url, apiKey: "x", supportsStructuredOutputs: true, includeUsage: true,
});
const ask = { model: provider(name), prompt: "Hello", temperature: 0, maxRetries: 0 };
const place = z.object({ city: z.enum(["Paris", "Rome"]), unit: z.enum(["C", "F"]) });
const forced = {
  ...ask, toolChoice: "required",
  tools: { weather: tool({ description: "The weather.", inputSchema: place }) },
};
const onError = ({ error }) => { throw error; };

async function collected(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

const called = (calls) => [calls[0].toolName, calls[0].input];
const streamed = streamText({ ...ask, maxOutputTokens: 8, onError });
const objects = streamObject({ ...ask, schema: place, onError });
const partial = await collected(objects.partialObjectStream);
const streamedForced = streamText({ ...forced, onError });
await collected(streamedForced.textStream);

console.log(JSON.stringify({
  text: (await generateText({ ...ask, maxOutputTokens: 8 })).text,
  streamed: (await collected(streamed.textStream)).join(""),
  tool: called((await generateText(forced)).toolCalls),
  streamed_tool: called(await streamedForced.toolCalls),
  object: (await generateObject({ ...ask, schema: place })).object,
  streamed_object: await objects.object,
  partial_objects: partial.length,
  tokens: (await streamed.usage).outputTokens,
}));
