// The OpenAI Agents SDK for JavaScript, with its default model.
import { Agent, MaxTurnsExceededError, ModelBehaviorError, OpenAIProvider, Runner, tool } from "@openai/agents";
import { z } from "zod";
import { Game, ORDERS, REQUEST } from "./game.mjs";

export const LOSES = [ModelBehaviorError, MaxTurnsExceededError];

export async function agent(row, client) {
  const game = new Game(row.number);
  const parameters = z.object({ number: z.number() });
  const guess = tool({ name: "guess", description: "Guess.", parameters, execute: ({ number }) => game.guess(number) });
  const player = new Agent({ name: "player", instructions: ORDERS, tools: [guess], model: "policy" });
  const modelProvider = new OpenAIProvider({ baseURL: client.url, apiKey: client.key });
  await new Runner({ modelProvider, tracingDisabled: true }).run(player, REQUEST, { maxTurns: 8 });
  return game.reward;
}
