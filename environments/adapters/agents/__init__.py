"""Agents that own their loop: whatever asks for chat completions or responses, played as an environment.

An agent runs on a thread of its own. Its first request is the opening of the episode; each `step` answers the pending
request and waits for the next one, or for the agent's end. `schema` checks requests, `requests` reads them, `line`
queues those of an episode, `client` and `server` bring them to `api`, which writes `answers` and `responses`,
`environment` plays them; `served` is for an agent after training.
"""

from alignopsd_trl.environments.adapters.agents.client import Client
from alignopsd_trl.environments.adapters.agents.environment import AgentEnvironment
from alignopsd_trl.environments.adapters.agents.program import Program, tests_pass
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.served import Served

__all__ = ["AgentEnvironment", "Client", "Program", "Refused", "Served", "tests_pass"]
