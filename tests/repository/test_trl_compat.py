"""Fails by name when a place of TRL or transformers that the trainer builds on has moved.

To try another TRL: ``pip install --target elsewhere "trl==X"``, then ``PYTHONPATH=elsewhere pytest`` on this file.
Nothing here imports the trainer or a file `trl_*.py`, which such a TRL may break.
"""

from __future__ import annotations

import ast
import inspect
from importlib import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from accelerate import Accelerator
from packaging.version import Version
from trl import GRPOTrainer

PACKAGE = Path(__file__).parents[2] / "alignopsd_trl"

METHODS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate_single_turn": ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"],
    "_prepare_inputs": ["self", "generation_batch"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": ["self", "model", "input_ids", "attention_mask", "logits_to_keep"],
    "_compute_loss": ["self", "model", "inputs"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "evaluation_loop": [
        "self",
        "dataloader",
        "description",
        "prediction_loss_only",
        "ignore_keys",
        "metric_key_prefix",
    ],
    "train": ["self", "resume_from_checkpoint"],
    "_run_epoch": ["self", "model", "epoch"],
    "_get_train_sampler": ["self", "dataset"],
    "_save_checkpoint": ["self", "model", "trial"],
    "_save_rng_state": ["self", "output_dir"],
    "_issue_warnings_after_load": ["self", "load_result"],
    "save_model": ["self", "output_dir", "_internal_call"],
    "push_to_hub": ["self", "commit_message", "blocking", "token", "revision"],
    "_push_from_checkpoint": ["self", "checkpoint_folder"],
    "create_model_card": ["self", "model_name", "dataset_name", "tags"],
}
"""Methods of TRL's trainer and those below it that are overridden or called: how their arguments begin."""

PLACES = (
    "trl.generation.vllm_generation:extract_logprobs",
    "trl.generation.vllm_generation:VLLMGeneration",
    "trl.models.utils:disable_gradient_checkpointing",
    "trl.trainer.grpo_trainer:prepare_fsdp",
    "trl.trainer.grpo_trainer:VLLMGeneration",
    "trl.trainer.utils:_use_triton",
    "trl.trainer.utils:add_fused_lm_head",
    "trl.trainer.utils:nanstd",
    "trl.trainer.utils:use_adapter",
    "trl.trainer.utils:RepeatSampler",
    "accelerate.utils:fsdp2_prepare_model",
    "transformers.integrations.deepspeed:_hf_deepspeed_config_weak_ref",
    "transformers.integrations.deepspeed:set_hf_deepspeed_config",
    "transformers.integrations.deepspeed:unset_hf_deepspeed_config",
)
"""What is imported or patched."""


def _table(name: str) -> dict[str, str]:
    """A table of `scoring/trl_trainer.py`, read from its source."""
    tree = ast.parse((PACKAGE / "scoring" / "trl_trainer.py").read_text(encoding="utf-8"))
    found = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(found[0])


def _overridden() -> set[str]:
    tree = ast.parse((PACKAGE / "trainer.py").read_text(encoding="utf-8"))
    (trainer,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AlignOPSDTrainer"]
    methods = {node.name for node in trainer.body if isinstance(node, ast.FunctionDef)} - {"__init__"}
    return {name for name in methods if hasattr(GRPOTrainer, name)}


def test_overrides_are_listed_with_their_reason_and_held_to_a_signature() -> None:
    listed = set(_table("OVERRIDES"))
    assert listed - _overridden() == set(), "listed, but not overridden or no longer a name of TRL's trainer"
    assert _overridden() <= listed, f"scoring.trl_trainer.OVERRIDES: say why {_overridden() - listed} are overridden"
    assert listed <= set(METHODS), f"METHODS: add the arguments of {listed - set(METHODS)}"


def test_there_is_one_class_that_extends_trl() -> None:
    bases = {kind.__name__ for kind in GRPOTrainer.__mro__[:-1]}
    found = [
        f"{file.name}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & bases
    ]
    found.remove("trl_trainer.py: Trainer")  # for type checkers alone
    assert found == ["trainer.py: AlignOPSDTrainer"]


def test_private_names_are_listed() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("trl_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    owned = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    touched = {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr[0] == "_"}
    touched |= {node.arg for node in nodes if isinstance(node, ast.keyword) and (node.arg or "")[:1] == "_"}
    listed = {name.partition(".")[2] for name in _table("PRIVATE")}
    assert {name for name in touched if not name.startswith("__")} - owned == listed


@pytest.mark.parametrize("place", PLACES)
def test_place_is_where_we_left_it(place: str) -> None:
    try:
        resolve_name(place)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{place} has moved: {error}")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("__init__", ["self._init_vllm()", "self.model = model"]),
        ("_init_vllm", ["self.llm = LLM(", "self.llm.sleep(level=2)", "self.enable_sleep_mode"]),
        ("_iter_named_params", ["model.merge_adapter()", "model.unmerge_adapter()"]),
        ("sync_weights", ["_iter_named_params()", "model_runner.model.load_weights("]),
        ("generate", ["self.llm.generate(", "_llm_weights_sleeping"]),
    ],
)
def test_names_of_its_engine_are_still_used(method: str, words: list[str]) -> None:
    source = inspect.getsource(getattr(resolve_name("trl.generation.vllm_generation:VLLMGeneration"), method))
    missing = [word for word in words if word not in source]
    assert not missing, f"VLLMGeneration.{method} no longer uses {missing}"


def test_trl_is_of_the_pinned_series() -> None:
    assert Version("1.16") <= Version(metadata.version("trl")) < Version("1.17")


@pytest.mark.parametrize("name", METHODS)
def test_method_is_where_we_left_it(name: str) -> None:
    assert hasattr(GRPOTrainer, name), f"GRPOTrainer.{name} is gone"
    found = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert found[: len(METHODS[name])] == METHODS[name], f"GRPOTrainer.{name} has moved: {found}"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("_compute_loss", ["tool_mask", "old_per_token_logps", "num_items_in_batch", "importance_sampling_ratio"]),
        ("_compute_loss", ["ref_per_token_logps", "steps_per_generation", "current_gradient_accumulation_steps"]),
        ("_compute_loss", ["gathered_low_clip = self.accelerator.gather(", "nanmin(gathered_low_clip)"]),
        ("_prepare_inputs", ["steps_per_generation", "num_iterations", "_buffered_inputs"]),
        ("_generate_single_turn", ["_last_loaded_step", "vllm_generation", "generation_config"]),
        (
            "_run_epoch",
            ["epoch == epochs_trained", "on_pre_optimizer_step", "self.optimizer.step()"],
        ),
        ("_save_checkpoint", ["_save_rng_state", "save_to_json", "PREFIX_CHECKPOINT_DIR"]),
        ("log", ["_metrics", '_logs["prompt"]', '_logs["advantages"]', '_logs["rewards"]']),
        ("__init__", ["eos_token_ids", "reward_func_names", "reward_weights", "aux_loss_enabled", "environments"]),
        ("__init__", ["prepare_fsdp(self.ref_model, self.accelerator)"]),
        ("__init__", ["args.entropy_coef", "mask_truncated_completions", "chat_template_kwargs"]),
        ("_get_per_token_logps_and_entropies", ["labels=labels", "outputs.log_probs", "outputs.entropy"]),
        ("save_model", ["self._save(", "args.should_save", "args.push_to_hub and not _internal_call"]),
        ("_push_from_checkpoint", ["hub_strategy"]),
    ],
)
def test_names_that_we_read_or_write_are_still_used(method: str, words: list[str]) -> None:
    written = [vars(owner)[method] for owner in GRPOTrainer.__mro__ if inspect.isfunction(vars(owner).get(method))]
    source = "".join(map(inspect.getsource, written))
    missing = [word for word in words if word not in source]
    assert not missing, f"GRPOTrainer.{method} no longer mentions {missing}"


def test_helpers_are_where_we_left_them() -> None:
    add_fused_lm_head, use_adapter = (
        resolve_name(f"trl.trainer.utils:{name}") for name in ("add_fused_lm_head", "use_adapter")
    )
    gradients = vars(Accelerator)["sync_gradients"]
    assert isinstance(gradients, property) and gradients.fset
    assert "temperature" in inspect.signature(add_fused_lm_head).parameters
    assert "adapter_name" in inspect.signature(use_adapter).parameters
    fused = inspect.getsource(add_fused_lm_head)
    assert "compact = _use_triton(" in fused and fused.count("_use_triton") == 1, "the fused head chooses otherwise"
    assert "shift_labels" in fused, "the fused head no longer takes shifted labels"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("_init_vllm", ["LLM(", "max_num_seqs=", "max_num_batched_tokens=", "max_model_len="]),
        ("generate", ["enable_sleep_mode", "_llm_weights_sleeping", "llm.sleep(level=2)"]),
        ("sync_weights", ["enable_sleep_mode", "load_weights", "reset_prefix_cache"]),
        ("sync_weights", ["self.vllm_client.update_named_params", "in self._iter_named_params()"]),
        ("generate", ["repetition_penalty", "top_p", "top_k", "0.0 if min_p is None", "structured_outputs_regex"]),
    ],
)
def test_sampler_is_where_we_left_it(where: str, words: list[str]) -> None:
    engine: Any = resolve_name("trl.generation.vllm_generation:VLLMGeneration")
    assert hasattr(engine, where), f"VLLMGeneration.{where} is gone"
    missing = [word for word in words if word not in inspect.getsource(getattr(engine, where))]
    assert not missing, f"VLLMGeneration.{where} no longer mentions {missing}"


def test_engine_takes_requests_as_we_make_them() -> None:
    engine: Any = pytest.importorskip("vllm.v1.engine.llm_engine").LLMEngine
    for name, parameters in {
        "add_request": ["request_id", "prompt", "params"],
        "step": [],
        "abort_request": ["request_ids"],
    }.items():
        assert list(inspect.signature(getattr(engine, name)).parameters)[1 : len(parameters) + 1] == parameters, name
    parameters = resolve_name("vllm.sampling_params:SamplingParams")(seed=3, logprobs=0)
    assert parameters.seed == 3 and parameters.output_kind.FINAL_ONLY
    assert {"request_id", "outputs", "finished"} <= set(
        inspect.signature(resolve_name("vllm:RequestOutput").__init__).parameters
    )
