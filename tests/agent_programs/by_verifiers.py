"""verifiers 0.3: an environment with its rubric, whose reward is the episode's."""

from contextvars import ContextVar

import verifiers as vf
from datasets import Dataset
from verifiers.clients import OpenAIChatCompletionsClient

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (vf.InvalidModelResponseError, vf.OverlongPromptError, vf.ToolError)
playing: ContextVar[Game] = ContextVar("playing")  # of this episode


def guess(number: int) -> str:
    """Guess the number.

    Args:
        number: Between 1 and 10.
    """
    return playing.get().guess(number)


def found(completion, **_):
    return playing.get().reward


rows = Dataset.from_list([{"question": REQUEST, "answer": ""}])
task = vf.ToolEnv(tools=[guess], max_turns=8, dataset=rows, rubric=vf.Rubric(funcs=[found]), system_prompt=ORDERS)


async def agent(row, client):
    playing.set(Game(row["number"]))
    served = OpenAIChatCompletionsClient(client.openai)
    rollout = await task.run_rollout(task.get_dataset()[0], client=served, model="policy", sampling_args={})
    if fault := rollout.get("error"):
        raise getattr(vf, fault["error"], vf.Error)(fault["error_chain_str"])
    return rollout["reward"]
