"""LlamaIndex."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import WorkflowRuntimeError
from llama_index.llms.openai_like import OpenAILike

from agent_programs.game import ORDERS, REQUEST, Game

LOSES = (WorkflowRuntimeError,)


async def agent(row, client):
    game = Game(row["number"])
    llm = OpenAILike("policy", api_base=client.url, api_key=client.key, temperature=1.0, max_retries=0)
    llm.is_chat_model = llm.is_function_calling_model = True
    await FunctionAgent(tools=[game.guess], llm=llm, system_prompt=ORDERS).run(REQUEST, max_iterations=8)
    return game.reward
