"""What is done around TRL's colocated vLLM, with a stand-in for the engine; `.ci/vllm` runs the real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.trainers import make_config
from trl.generation import vllm_generation

from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.sampling.trl_engine import awake, push_weights
from alignopsd_trl.training.trl_construction import engine_options, made_for_turns

COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}


def engine_arguments(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> dict[str, Any]:
    """What reaches vLLM when TRL asks for an engine of its own."""
    monkeypatch.setattr(vllm_generation, "LLM", dict, raising=False)
    with engine_options(make_config(folder, **COLOCATE | options).engine_options):
        made = vllm_generation.LLM(model="policy", max_num_seqs=8, max_num_batched_tokens=4096, max_model_len=None)
    assert vllm_generation.LLM is dict, "the seam must be closed again"
    return made


def test_engine_takes_more_at_once_than_a_round_has_trajectories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine_arguments(monkeypatch, tmp_path)
    assert (made["max_num_seqs"], made["max_num_batched_tokens"], made["model"]) == (256, 8192, "policy")
    assert made["max_model_len"] == 128 + 12, "a turn's prompt and response, or vLLM asks for room for the model's own"
    many = engine_arguments(monkeypatch, tmp_path, per_device_train_batch_size=400)
    assert many["max_num_seqs"] == 400


def test_engine_options_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine_arguments(
        monkeypatch,
        tmp_path,
        vllm_max_model_length=200,
        vllm_engine_options='{"dtype": "float32", "max_num_seqs": 32, "max_model_len": 300}',
    )
    assert (made["max_num_seqs"], made["max_num_batched_tokens"]) == (32, 8192)
    assert (made["dtype"], made["max_model_len"]) == ("float32", 300)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (COLOCATE | {"vllm_engine_options": {"max_num_batched_tokens": 100}}, "set it to 256 or more"),
        (COLOCATE | {"vllm_max_model_length": 100}, "set it to 140"),
        (COLOCATE | {"vllm_max_model_length": 140, "teacher_max_completion_length": 40}, "set it to 168"),
    ],
)
def test_limits_that_can_not_be_met_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_config(tmp_path, **options)


class Engine:
    """Notes in which order the weights are pushed and the engine sleeps."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.enable_sleep_mode, self._llm_weights_sleeping, self.llm = True, True, self

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append("wake")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")


def test_sleeping_engine_wakes_once_for_a_round_and_takes_the_weights_again() -> None:
    engine = Engine()
    trainer = SimpleNamespace(use_vllm=True, vllm_mode="colocate", vllm_generation=engine, _last_loaded_step=3)

    with awake(trainer):
        assert not engine.enable_sleep_mode and not engine._llm_weights_sleeping, "TRL would put it to sleep each call"
        assert trainer._last_loaded_step == -1, "what it slept on is gone: the first generation must push"
        engine.calls += ["generate"] * 2
    assert engine.calls == ["wake", "generate", "generate", "sleep 2"]
    assert engine.enable_sleep_mode and engine._llm_weights_sleeping
    with pytest.raises(AssertionError, match="broken"), awake(trainer):
        raise AssertionError("broken")
    assert engine.calls[-1] == "sleep 2" and engine._llm_weights_sleeping


def test_engine_that_never_sleeps_is_left_alone() -> None:
    engine = Engine()
    engine.enable_sleep_mode = False
    with awake(SimpleNamespace(use_vllm=True, vllm_mode="colocate", vllm_generation=engine, _last_loaded_step=3)):
        pass
    with awake(SimpleNamespace(use_vllm=False)):
        pass
    assert engine.calls == []


class Pushed:
    """A vLLM whose weights are pushed through a client, as TRL does it."""

    def __init__(self, client: Any):
        self.vllm_client, self.passes = client, []

    def _iter_named_params(self) -> Any:
        for number in range(3):
            self.passes.append(number)
            yield f"weight {number}", number

    def sync_weights(self) -> None:
        self.vllm_client(self._iter_named_params())


def pushing(engine: Pushed, step: int = 4) -> SimpleNamespace:
    state = SimpleNamespace(global_step=step)
    return SimpleNamespace(
        state=state, _last_loaded_step=3, is_fsdp_enabled=False, vllm_mode="server", vllm_generation=engine
    )


def test_a_server_gets_the_weights_once_an_update() -> None:
    taken: list[Any] = []
    trainer = pushing(Pushed(taken.extend))
    push_weights(trainer)
    push_weights(trainer)
    assert taken == [(f"weight {number}", number) for number in range(3)]
    assert trainer._last_loaded_step == 4


def test_a_push_that_fails_passes_all_weights_since_others_gather_them_too() -> None:
    def refuses(params: Any) -> None:
        next(params)
        raise Exception("Request failed: 500")

    trainer = pushing(Pushed(refuses))
    with pytest.raises(SamplerDown, match="did not take the weights .Request failed: 500.; start it again and resume"):
        push_weights(trainer)
    assert trainer.vllm_generation.passes == [0, 1, 2] and trainer._last_loaded_step == 3


@pytest.mark.parametrize(("processes", "expected"), [(1, {"dtype": "bfloat16"}), (8, {"device_map": None})])
def test_no_process_spreads_its_model_over_all_gpus(processes: int, expected: dict[str, Any]) -> None:
    given: dict[str, Any] = {"dtype": "bfloat16"}
    args: Any = SimpleNamespace(world_size=processes, model_init_kwargs=given, engine_options=None, entropy_coef=0.1)
    with made_for_turns(args, whole=True):
        assert args.model_init_kwargs == given | expected and args.entropy_coef == 0.0
