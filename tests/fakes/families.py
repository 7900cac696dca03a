"""Model families as tiny policies of random weights, under their own chat templates, and a training of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from fakes.tool_classes import TEMPLATES, Counter, counter_rows, hint
from fakes.toy import TEMPLATE, WORDS, ToyEnvironment, toy_dataset
from fakes.trainers import log_probs_of, make_config
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import supports_tool_calling

from alignopsd_trl import AlignOPSDTrainer
from alignopsd_trl.environments.adapters import ToolEnvironment
from alignopsd_trl.rollout.sampler import Responses

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_ssm": 64}
SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16}


@dataclass(frozen=True)
class Family:
    """A family's configuration class, what it needs beside `SHAPE`, TRL's copy of its chat template (ChatML where there
    is none), its end of a turn, and the token that begins its texts."""

    config: str
    template: str | None = None
    end: str = "<|im_end|>"
    begin: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "Qwen2.5": Family("Qwen2", "qwen2_5"),
    "Qwen3": Family("Qwen3", "qwen3", options={"head_dim": 16}),
    "Qwen3-MoE": Family("Qwen3Moe", "qwen3_instruct_2507", options={**EXPERTS, "head_dim": 16}),
    "Qwen3-Next": Family(
        "Qwen3Next",
        "qwen3_instruct_2507",
        options={**EXPERTS, **LINEAR, "head_dim": 16, "shared_expert_intermediate_size": 32},
    ),
    "Qwen3.5": Family("Qwen3_5Text", "qwen3_5_think", options={**LINEAR, "head_dim": 16}),
    "Llama 3": Family("Llama", "llama3_2", "<|eot_id|>", "<|begin_of_text|>"),
    "Gemma 2": Family("Gemma2", "gemma", "<end_of_turn>", "<bos>", SLIDING),
    "Gemma 3": Family("Gemma3Text", "gemma3", "<end_of_turn>", "<bos>", SLIDING),
    "Gemma 4": Family(
        "Gemma4Text",
        "gemma4",
        "<turn|>",
        "<bos>",
        {**SLIDING, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
    ),
    "Mistral": Family("Mistral", None, "</s>", "<s>", {"sliding_window": None}),
    "Mixtral": Family("Mixtral", None, "</s>", "<s>", EXPERTS),
    "Ministral 3": Family("Ministral3", None, "</s>", "<s>"),
    "OLMo 2": Family("Olmo2"),
    "OLMo 3": Family("Olmo3", options=SLIDING),
    "Granite": Family("Granite", options={"logits_scaling": 2.0}),
    "Granite 4 (hybrid)": Family(
        "GraniteMoeHybrid",
        options={**EXPERTS, **MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    ),
    "DeepSeek-V3": Family(
        "DeepseekV3",
        "deepseekv3",
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        {**EXPERTS, "q_lora_rank": 16, "kv_lora_rank": 16}
        | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1},
    ),
    "GLM-4": Family("Glm4", "glm4moe", "<|user|>", options={"head_dim": 16}),
    "GLM-4.5 (MoE)": Family("Glm4Moe", "glm4moe", "<|user|>", options={**EXPERTS, "head_dim": 16}),
    "SmolLM3": Family("SmolLM3", "qwen3"),
    "LFM2": Family("Lfm2", "lfm2_v2", begin="<|startoftext|>", options={"layer_types": ["conv", "full_attention"]}),
    "gpt-oss": Family("GptOss", "gptoss", "<|return|>", options={**EXPERTS, **SLIDING}),
    "GPT-2": Family("GPT2", options={"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8192}),
    "Phi-3": Family("Phi3", "phi3", "<|end|>"),
    "Phi-3 (longrope)": Family(
        "Phi3",
        "phi3_5",
        "<|end|>",
        options={
            "original_max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [4.0] * 8,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "Falcon-H1": Family("FalconH1", options={**MAMBA, "head_dim": 16}),
    "Nemotron-H": Family(
        "NemotronH",
        "nemotron_3_nano",
        options={**EXPERTS, "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16}
        | {"n_groups": 1, "ssm_state_size": 16, "head_dim": 16, "num_hidden_layers": 2},
    ),
    "Command R (Cohere 2)": Family("Cohere2", "cohere2", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", SLIDING),
}
_TAG = re.compile(r"<\|?[^<>{}'\"\s=]+\|?>|\[/?[A-Z_]+\]")


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """A small byte-level BPE with the special tokens of the family's template."""
    name = family.template
    template = TEMPLATE if name is None else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    if name is None:
        template = template.replace("<|im_end|>", family.end)
    tags = [*dict.fromkeys([*_TAG.findall(template), "<think>", "</think>", "<action>", "</action>"])]
    special = [one for one in ("<pad>", family.begin, family.end) if one] + [one for one in tags if "|" in one]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [" ".join(WORDS), _TAG.sub("", template)] * 3,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=sorted(alphabet), show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in dict.fromkeys(special)])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in tags if one not in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token=family.begin,
        eos_token=family.end,
        padding_side="left",
        chat_template=template,
    )


def save_family(family: Family, folder: Path, seed: int = 0) -> PreTrainedTokenizerFast:
    """Saves a policy of random weights, with its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_of(family)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{family.config}Config")(
        **{**SHAPE, **family.options, **ids, "bos_token_id": tokenizer.bos_token_id, "vocab_size": len(tokenizer)}
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # some families begin with heads so small that all tokens are alike
        model.get_output_embeddings().weight.normal_(0, 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def makes_calls(family: Family) -> bool:
    return supports_tool_calling(tokenizer_of(family))


@dataclass(frozen=True)
class Calling:
    """A sampler of the policy, of whose responses every second one is a call in the template's own words."""

    sampler: Any
    call: Sequence[int]

    def respond(self, prompts: Sequence[Sequence[int]], until: Any = None) -> Responses:
        found = self.sampler.respond(prompts, until)
        return Responses([list(self.call) if row % 2 else one for row, one in enumerate(found.ids)], None)


def call_of(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """A response that calls a tool, as the chat template writes it."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "Count."}]
    call = {"type": "function", "function": {"name": "increment", "arguments": {"step": 1}}}
    whole = [*said, {"role": "assistant", "content": "", "tool_calls": [call]}]
    begun, ended = (
        tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=not number)
        for number, one in enumerate((said, whole))
    )
    start = next(n for n in range(len(begun), 0, -1) if ended.startswith(begun[:n]))
    text = ended[start:].rsplit(tokenizer.eos_token, 1)[0]
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def _unpadded(trainer: AlignOPSDTrainer, turns: Sequence[Any]) -> torch.Tensor:
    """``(n, T)`` log-probs of the turns' responses by one forward each."""
    with torch.no_grad():
        rows = [log_probs_of(trainer.model, turn.prompt_ids, turn.response_ids) for turn in turns]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def family_trainer(policy: Path, folder: Path, kind: str, max_steps: int = 2, **options: Any) -> AlignOPSDTrainer:
    """A trainer of a saved family.

    Args:
        kind: ``window`` and ``conversation`` over the toy game, ``calls`` over tools in the template's own format.
    """
    native = kind == "calls"
    settings = {
        "method": "align_opsd",
        "max_steps": max_steps,
        "save_steps": 1,
        "save_strategy": "steps",
        "learning_rate": 1e-3,
        "router_aux_loss_coef": 0.0,
        "max_prompt_length": 3000,
        "max_completion_length": 24,
        "skill_tokens": 60,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "num_generations_eval": 1,
        "max_turns": 2,
        "skip_zero_advantage": False,
        "merge_rows": "longrope" not in (policy / "config.json").read_text(),
        "history": "window" if kind == "window" else "conversation",
        "seed": 1,
    }
    trainer = AlignOPSDTrainer(
        str(policy),
        make_config(folder, **settings | options),
        environment_factory=ToolEnvironment(Counter, (), "native") if native else ToyEnvironment,
        train_dataset=counter_rows(8) if native else toy_dataset(8),
        eval_dataset=counter_rows(2) if native else toy_dataset(2),
        skill_bank=hint if native else "webshop",
        encoder="lexical",
    )
    if native:
        backend, call = trainer.backend, call_of(trainer.processing_class)
        inner = backend.sampler
        backend.sampler = lambda *given, **also: Calling(inner(*given, **also), call)  # type: ignore[method-assign]
    return trainer


def try_family(policy: Path, folder: Path, kind: str) -> dict[str, Any]:
    """Trains two rounds, compares log-probs with unpadded forwards, evaluates, loads what was saved and resumes.

    Returns:
        ``log-probs`` (largest difference of a token), ``calls`` (tool calls that were read and made, of ``calls``).
    """
    trainer = family_trainer(policy, folder, kind)
    found, calls = [], []

    def compare(inner: Any, trajectories: Any, *given: Any) -> Any:
        batch = inner(trajectories, *given)
        turns = [turn for turn in batch.turns if turn.response_ids]
        own = trainer.scorer.own(batch)[torch.tensor([bool(turn.response_ids) for turn in batch.turns])]
        apart = _unpadded(trainer, turns)
        found.append(float((own[:, : apart.size(1)] - apart).abs().max()))
        calls.append(sum(len(turn.info.get("calls", ())) for turn in turns))
        return batch

    trainer.scorer.batch = partial(compare, trainer.scorer.batch)  # type: ignore[method-assign]
    trainer.train()
    assert trainer.state.global_step == 2
    trainer.evaluate()
    trainer.save_model(str(folder / "saved"))
    again = AutoModelForCausalLM.from_pretrained(folder / "saved")
    for (name_, one), other in zip(trainer.model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), f"{name_} is not what was saved"
    resumed = family_trainer(policy, folder, kind, max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    return {"log-probs": max(found), "calls": sum(calls)}
