"""A LoRA policy as an adapter of a colocated vLLM engine, so that an update pushes the adapter alone."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import shutil
from collections.abc import Generator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import gather_object, is_peft_model
from safetensors.torch import save_file
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from alignopsd_trl.common.patched import patched
from alignopsd_trl.common.strategies import held, reshard, whole_of

logger = logging.getLogger(__name__)
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's ``max_lora_rank``."""
OTHERS = ("use_dora", "alora_invocation_tokens", "target_parameters", "layer_replication")
"""Fields of PEFT's configuration with which an adapter is more than its matrices A and B."""


def why_merged(model: Any) -> str | None:
    """Returns the reason why a PEFT policy can't be an adapter of the engine; `None` if it can."""
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    if len(model.active_adapters) != 1:
        return f"it has the active adapters {model.active_adapters}"
    if others := [name for name in names if not name.endswith(_endings(model))]:
        return f"{others[0]} is trained, which is no matrix of LoRA"
    if heads := [name for name in names if ".lm_head." in name]:
        return f"{heads[0]} is on the head"
    config = model.peft_config[model.active_adapters[0]]
    if found := [name for name in OTHERS if getattr(config, name, None)]:
        return f"{found[0]} is set"
    return f"its rank is above {RANKS[-1]}" if _rank(model) > RANKS[-1] else None


class AdapterEngine(VLLMGeneration):
    """TRL's vLLM, which serves a LoRA policy as an adapter. Where vLLM can't, TRL merges the adapter for each push.

    Attributes:
        serves: whether the policy is an adapter.
        policy: vLLM's request with the policy's adapter that was pushed last.
        instead: a request, or `None` for the base weights, in a tuple of one: asked in place of ``policy``.
    """

    instead: tuple[Any] | None = None

    def _init_vllm(self) -> None:
        self.serves, self.policy, self._has_base, self._pushed = False, None, False, 0
        adapted = is_peft_model(self.model) and hasattr(vllm_generation, "LLM")  # else TRL says that it is missing
        with patched(vllm_generation, **{"LLM": partial(self._made, vllm_generation.LLM)} if adapted else {}):
            super()._init_vllm()

    def _made(self, make: Any, **options: Any) -> Any:
        """Makes the engine, and a plain one where it or the adapter is refused on any process."""
        llm: Any = None
        problem = why_merged(self.model)
        if problem is None:
            self._folder = TemporaryDirectory(prefix="adapters-")
            rank = next(one for one in RANKS if one >= _rank(self.model))
            try:
                llm = make(**{**options, "enable_lora": True, "max_lora_rank": rank, "max_loras": 2})
                empty = {name: torch.zeros(getattr(one, "ds_shape", one.shape)) for name, one in self._matrices()}
                llm.llm_engine.add_lora(tried := self._written(empty))
                llm.llm_engine.remove_lora(tried.lora_int_id)
            except Exception as error:  # of vLLM's own classes
                problem = f"vLLM refuses it: {error}"
        problems = [one for one in gather_object([problem]) if one is not None]
        if not problems:
            self.serves = True
            if self.enable_sleep_mode:  # level 2 would throw the base weights away, which no push brings back
                llm.sleep = lambda level, sleep=llm.sleep: sleep(level=1)
            return llm
        if self.accelerator.is_main_process:
            logger.warning(f"vLLM gets the adapter merged into all weights at each push: {problems[0]}")
        del llm
        gc.collect()
        vllm_generation.empty_cache()
        return make(**options)

    def sync_weights(self) -> None:
        if not self.serves:
            super().sync_weights()
            return
        if not self._has_base:
            self._push_base()
        self.policy = self.take(self.policy)

    def take(self, before: Any = None) -> Any:
        """Gives the engine the model's adapter as it is now, in place of that of an earlier request, and returns the
        request for it. A collective."""
        reshard(self.model)
        request = self._written({name: whole_of(held(value), value) for name, value in self._matrices()})
        if before is not None:
            self.llm.llm_engine.remove_lora(before.lora_int_id)
            shutil.rmtree(before.lora_path)
        self.llm.llm_engine.add_lora(request)
        return request

    def generate(self, *given: Any, **named: Any) -> Any:
        if not self.serves:
            return super().generate(*given, **named)
        asked = partial(self.llm.generate, lora_request=self.instead[0] if self.instead else self.policy)
        with patched(self.llm, generate=asked):
            return super().generate(*given, **named)

    def _matrices(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the adapter's matrices by PEFT's names."""
        return [one for one in self.model.named_parameters() if one[0].endswith(_endings(self.model))]

    @torch.no_grad()
    def _written(self, matrices: dict[str, torch.Tensor]) -> Any:
        """Writes matrices to a folder and returns a request for it. Scales are part of the matrices B, since vLLM has
        one for all modules."""
        from vllm.lora.request import LoRARequest

        model: Any = self.model
        adapter, found = model.active_adapters[0], {}
        for name, value in matrices.items():
            place, _, kind = name.removesuffix(f".{adapter}.weight").rpartition(".")
            scale = model.get_submodule(place).scaling[adapter] if kind == "lora_B" else 1.0
            key = self._fix_param_name_to_vllm(f"{place}.{kind}.weight")
            found[key] = (value.detach().float() * scale).cpu().contiguous()
        self._pushed += 1
        folder = Path(self._folder.name) / str(self._pushed)
        folder.mkdir()
        save_file(found, folder / "adapter_model.safetensors")
        rank, modules = _rank(self.model), sorted({key.split(".")[-3] for key in found})
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": modules}
        (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return LoRARequest(f"adapter-{self._pushed}", self._pushed, str(folder))

    def _push_base(self) -> None:
        """Pushes the base weights, once, since a policy in memory may differ from the files that the engine loaded.
        Quantised ones are the same files'."""
        self._has_base = True
        if self.llm.llm_engine.model_config.quantization is not None:
            return
        as_it_is = patched(self.model, merge_adapter=lambda: None, unmerge_adapter=lambda: None)
        with as_it_is, _without_adapters(self.llm.llm_engine.model_executor.driver_worker.model_runner):
            super().sync_weights()


@contextlib.contextmanager
def _without_adapters(runner: Any) -> Generator[None]:
    """Puts vLLM's layers back in the place of those that add an adapter, so that weights are loaded by their names."""
    known = runner.lora_manager._adapter_manager.modules.items()  # the head's name is the logits processor's too
    wrappers = {name: wrapper for name, wrapper in known if runner.model.get_submodule(name) is wrapper}
    try:
        for name, wrapper in wrappers.items():
            runner.model.set_submodule(name, wrapper.base_layer)
        yield
    finally:
        for name, wrapper in wrappers.items():
            runner.model.set_submodule(name, wrapper)


def _endings(model: Any) -> tuple[str, str]:
    adapter = model.active_adapters[0]
    return f".lora_A.{adapter}.weight", f".lora_B.{adapter}.weight"


def _rank(model: Any) -> int:
    config = model.peft_config[model.active_adapters[0]]
    return max([config.r, *(config.rank_pattern or {}).values()])
