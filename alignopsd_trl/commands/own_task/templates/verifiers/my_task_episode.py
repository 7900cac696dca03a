"""Run by the Python that has verifiers. `ASKED NUMBER` prints a taskset's first tasks and what they need, `ASKED` plays
the task in the file task.json with the policy and writes how it ended to episode.json."""

import asyncio
import json
import os
import sys
from itertools import islice
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import load_environment, load_harness, resolve_env_config


def config_of(taskset, harness, runtime, turns):
    """All seats of the taskset's environment are the policy's."""
    seat = {"runtime": {"type": runtime}, "max_turns": turns} | ({"harness": {"id": harness}} if harness else {})
    seats = agent_config_fields(resolve_env_config({"taskset": taskset}))
    return resolve_env_config({"taskset": taskset, **dict.fromkeys(seats, seat)})


def listed(config, number):
    taskset = load_environment(config).taskset
    tasks = list(islice(taskset, number))
    harnesses = [load_harness(one) for one in config.agent_harnesses().values()]
    boxed = [type(one).__name__ for one in [*harnesses, *tasks] if type(one).NEEDS_CONTAINER]
    boxed += [f"the image {one.data.image}" for one in tasks if one.data.image]
    data = [one.data.model_dump(mode="json", exclude_unset=True) for one in tasks]
    return {
        "tasks": data,
        "containers": " and ".join(dict.fromkeys(boxed)),
        "chats": all(one.config.id == "null" for one in harnesses),
    }


async def played(config):
    env, file = load_environment(config), Path("task.json")
    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate_json(file.read_text()), config.taskset.task)
    file.unlink()  # it may hold the answer
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    errors = [*episode.errors, *(one for trace in episode.traces for one in trace.errors)]
    rewards = [trace.reward for trace in episode.traces] or [0.0]
    return {"reward": sum(rewards) / len(rewards), "errors": [f"{one.type}: {one.message}" for one in errors]}


if __name__ == "__main__":
    config = config_of(**json.loads(sys.argv[1]))
    if len(sys.argv) > 2:
        print(json.dumps(listed(config, int(sys.argv[2]))))
    else:
        Path("episode.json").write_text(json.dumps(asyncio.run(played(config))))
