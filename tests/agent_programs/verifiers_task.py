"""A task of verifiers 0.4, which is a process: `python verifiers_task.py URL NUMBER` prints its reward."""

import asyncio
import re
import sys

import verifiers.v1 as vf


class Data(vf.TaskData):
    number: int


class Find(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def found(self, trace: vf.Trace) -> float:
        guesses = [guess(one.content) for one in trace.assistant_messages]
        return float(guesses[-1] == self.data.number) / len(guesses)


def guess(text: str) -> int:
    return int((re.findall(r"\d+", text) or [0])[-1])


async def main(url: str, number: int) -> float:
    client = vf.EvalClientConfig(base_url=url, api_key_var="POLICY_KEY")
    config = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"}, model="policy", client=client)
    task = Find(Data(idx=0, number=number, prompt="Find the number between 1 and 10. Answer with it."))
    async with vf.make_agent(config).interaction(task) as game:
        said = await game.turn()
        while not said.terminated and (last := guess(said.last_reply)) != number:
            said = await game.turn(f"{last} is too {'low' if last < number else 'high'}.")
    return game.trace.reward


print(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
