// Vercel's AI SDK, with the default model of its OpenAI provider.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, tool } from "ai";
import { z } from "zod";
import { Game, ORDERS, REQUEST } from "./game.mjs";

export const LOSES = [];

export async function agent(row, client) {
  const game = new Game(row.number);
  const inputSchema = z.object({ number: z.number() });
  const guess = tool({ description: "Guess.", inputSchema, execute: ({ number }) => game.guess(number) });
  const model = createOpenAI({ baseURL: client.url, apiKey: client.key })("policy");
  await generateText({ model, system: ORDERS, prompt: REQUEST, tools: { guess }, stopWhen: isStepCount(8), maxRetries: 0 });
  return game.reward;
}
