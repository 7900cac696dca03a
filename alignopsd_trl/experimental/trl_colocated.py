"""A vLLM engine in each process, which answers request by request, and its samplers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from trl.generation import vllm_generation

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.rollout.sampler import AnySampler, Continuous, Request, RequestFailed, Response
from alignopsd_trl.sampling.trl_engine import TEACHERS, EngineBackend
from alignopsd_trl.scoring.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer


class ColocatedBackend(EngineBackend):
    """A vLLM engine in each process, which answers request by request, so that no episode waits for another."""

    def __init__(self, trainer: Trainer, processes: ProcessGroup):
        super().__init__(trainer, processes)
        self._asked: dict[str, Future[Response]] = {}

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        options = sampling_options(self._trainer, temperature, max_tokens)
        if isinstance(options.get("structured_outputs"), dict):
            options["structured_outputs"] = vllm_generation.StructuredOutputsParams(**options["structured_outputs"])

        def parameters(seed: int) -> Any:
            chosen = vllm_generation.SamplingParams(**options | {"seed": seed})
            chosen.output_kind = type(chosen.output_kind).FINAL_ONLY
            return chosen

        def read(output: Any) -> Response:
            log_probs = vllm_generation.extract_logprobs([output])[0][0]
            return Response(list(output.outputs[0].token_ids), [one[0] for one in log_probs])

        engine = self._trainer.vllm_generation
        return SteppingSampler(engine.llm.llm_engine, parameters, read, getattr(engine, "policy", None), self._asked)

    def take_back(self) -> None:
        """Gives the engine the policy's weights again, if the teacher's are in their place. A collective."""
        if self._trainer._last_loaded_step == TEACHERS:
            self.push(self._trainer.state.global_step)


def sampling_options(trainer: Trainer, temperature: float, max_tokens: int) -> dict[str, Any]:
    """Returns TRL's sampling options for one response, under vLLM's names."""
    engine = trainer.vllm_generation
    return {
        "n": 1,
        "repetition_penalty": engine.repetition_penalty,
        "temperature": temperature,
        "top_p": engine.top_p,
        "top_k": engine.top_k,
        "min_p": engine.min_p or 0.0,
        "max_tokens": max_tokens,
        "logprobs": 0,
        **engine.generation_kwargs,
        **({"structured_outputs": {"regex": pattern}} if (pattern := engine.structured_outputs_regex) else {}),
    }


_NUMBERS = count()  # an engine needs distinct request names


@dataclass(eq=False)
class SteppingSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] on a colocated engine. Each step samples one token of every request.

    Args:
        engine: vLLM's ``LLMEngine``, with the policy's weights.
        parameters: makes vLLM's ``SamplingParams`` from a request's seed, with the final output only.
        read: makes the response from vLLM's ``RequestOutput``.
        adapter: vLLM's ``LoRARequest``; `None` where the engine's weights are asked as they are.
        asked: of all samplers on this engine, since a step of one fulfils the requests of all.
    """

    engine: Any
    parameters: Callable[[int], Any]
    read: Callable[[Any], Response]
    adapter: Any = None
    asked: dict[str, Future[Response]] = field(default_factory=dict)
    takes_schemas = True

    def instead(self, adapter: Any) -> SteppingSampler:
        """Returns a sampler that asks the engine for another adapter; `None`: for the base weights."""
        return replace(self, adapter=adapter)

    @property
    def waiting(self) -> int:
        return len(self.asked)

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        name, prompt = f"turn-{next(_NUMBERS)}", {"prompt_token_ids": list(request.prompt_ids)}
        parameters = self.parameters(request.seed)
        try:
            if request.schema is not None:
                from vllm.sampling_params import StructuredOutputsParams

                parameters.structured_outputs = StructuredOutputsParams(json=dict(request.schema))
            self.engine.add_request(name, prompt, parameters, lora_request=self.adapter)
        except Exception as error:  # of vLLM's own classes, for example if a prompt is too long for the engine
            future.set_exception(RequestFailed(f"vLLM refused the request: {error}"))
        else:
            self.asked[name] = future
        return future

    def advance(self) -> bool:
        if not self.asked:
            return False
        for output in self.engine.step():
            if output.finished and output.request_id in self.asked:
                self.asked.pop(output.request_id).set_result(self.read(output))
        return True

    def drop(self) -> None:
        if self.asked:
            self.engine.abort_request(list(self.asked))
            self.asked.clear()
