"""A vLLM engine in this process, in which no request waits for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

from alignopsd_trl.chat.reading import Reader
from alignopsd_trl.rollout import BatchSampler, Continuous, Request, RequestFailed, Response, Responses, SamplerDown

_NUMBERS = count()  # an engine's requests have names of their own


class SteppingSampler(Continuous):
    """A [`~alignopsd_trl.rollout.Sampler`] on a colocated engine, which makes a token of all its requests a step.

    Args:
        engine: vLLM's ``LLMEngine``, with the policy's weights.
        parameters: vLLM's ``SamplingParams`` for a request's seed. They ask for the final output only.
        read: the response in vLLM's ``RequestOutput``.
    """

    def __init__(self, engine: Any, parameters: Callable[[int], Any], read: Callable[[Any], Response]):
        self._engine, self._parameters, self._read = engine, parameters, read
        self._asked: dict[str, Future[Response]] = {}

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        name, prompt = f"turn-{next(_NUMBERS)}", {"prompt_token_ids": list(request.prompt_ids)}
        try:
            self._engine.add_request(name, prompt, self._parameters(request.seed))
        except Exception as error:  # vLLM's own kinds, as for a prompt that is longer than the engine takes
            future.set_exception(RequestFailed(f"vLLM refused the request: {error}"))
        else:
            self._asked[name] = future
        return future

    def advance(self) -> bool:
        if not self._asked:
            return False
        for output in self._engine.step():
            if output.finished and output.request_id in self._asked:
                self._asked.pop(output.request_id).set_result(self._read(output))
        return True

    def drop(self) -> None:
        if self._asked:
            self._engine.abort_request(list(self._asked))
            self._asked = {}


class TogetherSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that ends with the same error on all processes if it is down on one.

    Args:
        sampler: of each process by itself.
        together: calls a function on all processes, as `ProcessGroup.together`.
    """

    def __init__(
        self, sampler: BatchSampler, together: Callable[[Callable[[], Responses], type[Exception]], Responses]
    ):
        self._sampler, self._together = sampler, together

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        return self._together(lambda: self._sampler.respond(prompts, until), SamplerDown)
