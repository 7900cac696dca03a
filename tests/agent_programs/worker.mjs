// Plays a program of Node as worker.py does those of Python: `node worker.mjs by_ai_sdk.mjs`.
import { createInterface } from "node:readline";

const answers = process.stdout.write.bind(process.stdout);
const { agent, LOSES } = await import(`./${process.argv[2]}`);

async function play({ episode, row, url, key }) {
  try {
    return { episode, reward: await agent(row, { url, key }) };
  } catch (error) {
    const told = `${error.name}: ${error.message}`;
    return LOSES.some((kind) => error instanceof kind) ? { episode, lost: told } : { episode, raised: told };
  }
}

answers("ready\n");
for await (const line of createInterface({ input: process.stdin })) {
  play(JSON.parse(line)).then((told) => answers(JSON.stringify(told) + "\n"));
}
