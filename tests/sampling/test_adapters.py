"""A LoRA policy as an adapter of vLLM's colocated engine, with a stand-in for vLLM; `.ci/vllm` runs the real one."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from accelerate import Accelerator
from fakes.toy import build_model, build_tokenizer
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl.generation import vllm_generation

from alignopsd_trl.sampling.trl_adapters import AdapterEngine, why_merged


class LoRARequest(NamedTuple):
    lora_name: str
    lora_int_id: int
    lora_path: str


class Layer(torch.nn.Module):
    """As vLLM's layer that adds an adapter to another one."""

    def __init__(self, base: torch.nn.Module):
        super().__init__()
        self.base_layer = base


class LLM:
    """Keeps what reaches vLLM. One that ``refuses`` takes no adapter."""

    refuses = False

    def __init__(self, **options: Any):
        self.options, self.taken, self.asked, self.slept = options, {}, [], []
        self.loaded: dict[str, torch.Tensor] = {}
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        wrapper, self.head = Layer(self.model[0]), self.model[1]
        self.model[0] = wrapper
        self.model.load_weights = self.load_weights
        runner = SimpleNamespace(model=self.model, lora_manager=SimpleNamespace())
        runner.lora_manager._adapter_manager = SimpleNamespace(modules={"0": wrapper, "1": Layer(torch.nn.Identity())})
        worker = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        config = SimpleNamespace(quantization=None)
        self.llm_engine = SimpleNamespace(
            model_executor=worker, model_config=config, add_lora=self.add_lora, remove_lora=self.remove_lora
        )

    def load_weights(self, pairs: list[tuple[str, torch.Tensor]]) -> None:
        assert self.model[1] is self.head, "another module stands under its name"
        assert isinstance(self.model[0], torch.nn.Linear) or not self.options.get("enable_lora"), (
            "plain names are loaded"
        )
        self.loaded.update({name: value.detach().clone() for name, value in pairs})

    def add_lora(self, request: LoRARequest) -> None:
        if self.refuses:
            raise ValueError("this module has no adapters")
        folder = Path(request.lora_path)
        self.taken[request.lora_int_id] = load_file(folder / "adapter_model.safetensors")
        self.settings = json.loads((folder / "adapter_config.json").read_text())

    def remove_lora(self, number: int) -> None:
        del self.taken[number]

    def sleep(self, level: int) -> None:
        self.slept.append(level)

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def generate(self, prompts: Any, lora_request: Any = None, **options: Any) -> list[Any]:
        self.asked.append(lora_request and lora_request.lora_int_id)
        return []


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes an engine of a model."""
    module: Any = ModuleType("vllm.lora.request")
    module.LoRARequest = LoRARequest
    monkeypatch.setitem(sys.modules, "vllm.lora.request", module)
    for name, value in {"LLM": LLM, "is_vllm_available": lambda: True, "SamplingParams": dict}.items():
        monkeypatch.setattr(vllm_generation, name, value, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # so that what TRL sets is undone
        monkeypatch.delenv(name)

    def made(model: Any, **options: Any) -> Any:
        return AdapterEngine(model, Accelerator(cpu=True), build_tokenizer(), **options)

    return made


def policy(**options: Any) -> Any:
    return get_peft_model(build_model(build_tokenizer()), LoraConfig(**{"r": 4, "lora_alpha": 12} | options))


@torch.no_grad()
def moved(model: Any, by: float) -> Any:
    for name, value in model.named_parameters():
        if ".lora_B." in name:
            value.fill_(by)
    return model


def test_an_update_pushes_the_adapter_alone(engine: Callable[..., Any]) -> None:
    model = moved(policy(target_modules="all-linear"), 0.5)
    made = engine(model)
    llm = made.llm
    assert made.serves and llm.options["enable_lora"] and llm.options["max_lora_rank"] == 8 and not llm.taken
    made.sync_weights()
    plain = dict(model.get_base_model().named_parameters())
    base = {name.replace(".base_layer", "") for name in plain if ".lora_" not in name}
    assert base == set(llm.loaded), "the base weights once, not merged"
    name = next(one for one in base if one.endswith("q_proj.weight"))
    assert torch.equal(llm.loaded[name], plain[name.replace(".weight", ".base_layer.weight")])
    assert isinstance(llm.model[0], Layer), "the engine's layers are where they were"
    (first,) = llm.taken.values()
    own = {name.replace(".default", ""): value for name, value in model.named_parameters() if ".lora_" in name}
    assert first.keys() == own.keys()
    assert all(torch.equal(first[name], own[name] * (3.0 if ".lora_B." in name else 1.0)) for name in own)
    assert llm.settings["r"] == llm.settings["lora_alpha"] == 4, "the scale is in B"
    before, folder = made.policy, Path(made.policy.lora_path)
    llm.loaded.clear()
    moved(model, 0.25)
    made.sync_weights()
    assert not llm.loaded and not folder.exists() and made.policy.lora_int_id != before.lora_int_id
    assert list(llm.taken) == [made.policy.lora_int_id]


def test_requests_ask_the_policy_or_who_is_named_instead(engine: Callable[..., Any]) -> None:
    model = policy(target_modules=["q_proj"])
    made = engine(model)
    made.sync_weights()
    teacher = made.take()
    for instead in (None, (None,), (teacher,)):
        made.instead = instead
        made.generate([[1, 2]], None, 1)
    assert made.llm.asked == [made.policy.lora_int_id, None, teacher.lora_int_id]


def test_base_weights_are_kept_asleep(engine: Callable[..., Any]) -> None:
    assert engine(policy(target_modules=["q_proj"]), enable_sleep_mode=True).llm.slept == [1]
    assert engine(build_model(build_tokenizer()), enable_sleep_mode=True).llm.slept == [2]


def test_an_engine_that_refuses_gets_the_merged_weights(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LLM, "refuses", True)
    with caplog.at_level(logging.WARNING):
        made = engine(moved(policy(target_modules=["q_proj"]), 0.5))
    assert "vLLM gets the adapter merged into all weights at each push: vLLM refuses it: this module" in caplog.text
    assert not made.serves and "enable_lora" not in made.llm.options
    made.sync_weights()
    name = next(one for one in made.llm.loaded if one.endswith("q_proj.weight"))
    base = dict(made.model.get_base_model().named_parameters())[name.replace(".weight", ".base_layer.weight")]
    assert not torch.equal(made.llm.loaded[name], base)
    made.generate([[1, 2]], None, 1)
    assert made.llm.asked == [None]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "lm_head.* is trained, which is no matrix"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head.* is on the head"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens.* is trained, which is no matrix of LoRA"),
        ({"target_modules": ["q_proj"], "bias": "all"}, "bias is trained, which is no matrix|norm"),
        ({"target_modules": ["q_proj"], "use_dora": True}, "is trained, which is no matrix of LoRA"),
        ({"target_modules": ["q_proj"], "r": 600}, "its rank is above 512"),
        ({"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 513}}, "its rank is above 512"),
    ],
)
def test_what_is_more_than_an_adapter_is_merged(options: dict[str, Any], says: str) -> None:
    reason = why_merged(policy(**options))
    assert reason is not None and re.search(says, reason)


def test_scales_and_ranks_by_module_are_the_adapters_own(engine: Callable[..., Any]) -> None:
    options = {"rank_pattern": {"v_proj": 9}, "alpha_pattern": {"v_proj": 18}, "use_rslora": True}
    model = moved(policy(target_modules=["q_proj", "v_proj"], **options), 1.0)
    made = engine(model)
    assert made.llm.options["max_lora_rank"] == 16
    made.sync_weights()
    (taken,) = made.llm.taken.values()
    scales = {name.split(".")[-3]: value.unique().tolist() for name, value in taken.items() if ".lora_B." in name}
    assert scales == {"q_proj": [pytest.approx(6.0)], "v_proj": [pytest.approx(6.0)]}
    assert made.llm.settings["r"] == 9
