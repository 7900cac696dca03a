"""A vLLM engine in each process, which answers request by request."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from trl.generation import vllm_generation

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.experimental.vllm import SteppingSampler, TogetherSampler
from alignopsd_trl.rollout.sampler import AnySampler, BatchSampler, Response
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

    def together(self, sampler: BatchSampler) -> BatchSampler:
        return TogetherSampler(sampler, self._processes.together)

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
