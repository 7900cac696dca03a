"""Run under torchrun by `test_spread.py`: the same short runs with the policy spread over two processes in another way
(`ddp`, `fsdp2`, `zero2`, `zero3`). ``python spread.py FOLDER STRATEGY...``; each leaves
``FOLDER/STRATEGY/CASE_RANK.pt``. ZeRO needs the extra `deepspeed`.

accelerate ignores FSDP where it finds no accelerator and would run DDP instead, so a CPU world is made to look like a
world of GPUs to it, and every run asserts what it runs under. ZeRO-3 keeps small parameters whole, and a toy has no
others: its threshold is 0 here, and the tests assert what share of the weights a process holds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from fakes.toy import Scripted, ToyEnvironment, build_model, build_tokenizer, scripted, toy_dataset
from fakes.trainers import DEFAULTS, losses
from fsdp_on_cpu import look_like_gpus
from launching import TESTS, run_script
from peft import LoraConfig
from torch.distributed.tensor import DTensor

from alignopsd_trl.common import strategies
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments import EnvironmentsDown, Opening
from alignopsd_trl.trainer import AlignOPSDTrainer

BASE = {
    "method": "align_opsd",
    "max_steps": 3,
    "optim": "sgd",
    "learning_rate": 0.5,
    "max_grad_norm": 1.0,
    "tokens_per_forward": 300,
    "save_trajectories": True,
}
GENTLE = {"num_iterations": 2, "learning_rate": 0.1}
"""The second of a round's two steps is steep: at a rate of 0.5 one rounding of it moves a norm by 4e-6."""
TALK = {"history": "conversation", "max_prompt_length": 400, "beta": 0.05, **GENTLE, "max_steps": 2}
TAUGHT = {"teacher_model_kind": "base", "privileged_siblings": 2}
AUXILIARY = {"auxiliary_loss": "alignment", "auxiliary_coefficient": 0.1, "entropy_coef": 0.01}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"save_strategy": "steps", "save_steps": 1},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, **AUXILIARY},
    "lora": {"beta": 0.05, "gradient_checkpointing": True, **TAUGHT},
    "distribution": {"auxiliary_loss": "distribution", "similarity_threshold": 0.1},
    "teacher": {"beta": 0.05, **TAUGHT, **GENTLE, "max_steps": 4},
    "conversation": TALK,
    "sampled": {"max_completion_length": 24, "per_device_train_batch_size": 4, "top_k": 1000},  # by `generate`
}
ROWS = "conversation_rows"
"""The conversation with a row a turn."""
RUNS = {
    "ddp": (*CASES, ROWS),
    "fsdp2": (*CASES, "down", "failing"),
    "zero2": ("plain", "accumulation", "lora", "down"),  # shards less than ZeRO-3, and shows it in fewer runs
    "zero3": (*CASES, "down", "failing"),
}
ENCODED = ("plain", "sampled")
"""Cases with a neural encoder; the others make do with the lexical one."""
EXPECTED = {"ddp": DistributedType.MULTI_CPU, "fsdp2": DistributedType.FSDP}


class Down(ToyEnvironment):
    """What the environments of process 1 share fails for good in the second round."""

    def reset(self, **row: Any) -> Opening:
        if os.environ["RANK"] == "1" and Down.broken:
            raise EnvironmentsDown("the shop of process 1 is closed")
        return super().reset(**row)

    broken = False


class Failing(ToyEnvironment):
    """Every environment of process 1 fails; its episodes are lost, the run goes on."""

    def step(self, action: str) -> Any:
        if os.environ["RANK"] == "1":
            raise RuntimeError("no answer")
        return super().step(action)


def launch(folder: Path, *strategies: str, timeout: float = 1200) -> None:
    """Two processes that make the runs of each strategy in turn."""
    variables = {
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # where pip puts ninja
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # so that the end of stderr is what went wrong
        "PYTHONFAULTHANDLER": "1",
    }
    script = TESTS / "spread.py"
    run_script(script, folder, *strategies, processes=2, timeout=timeout, **variables)


def load(folder: Path, strategy: str, case: str) -> list[dict[str, Any]]:
    """What each process left."""
    return [torch.load(folder / strategy / f"{case}_{rank}.pt", weights_only=False) for rank in range(2)]


def make_encoder(folder: Path) -> None:
    """A sentence-transformers model of random weights over the toy's words."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = build_tokenizer()
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder / "body")
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder / "body")
    body = Transformer(str(folder / "body"))
    SentenceTransformer(modules=[body, Pooling(16)]).save(str(folder / "encoder"))


def use(strategy: str) -> None:
    """From here on, trainers of this process spread the policy in this way."""
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in [name for name in os.environ if name.startswith(("FSDP_", "ACCELERATE_USE_"))]:
        del os.environ[name]
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if strategy == "fsdp2":
        os.environ |= {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_RESHARD_AFTER_FORWARD": "true",
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
            "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        }
    if strategy.startswith("zero"):
        del os.environ["ACCELERATE_USE_CPU"]  # with it accelerate would pass over DeepSpeed; use_cpu=True is enough
        os.environ |= {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(_zero(int(strategy[-1]))),
            "DS_ACCELERATOR": "cpu",
        }


def _zero(stage: int) -> Path:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
    sizes = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    content = {"zero_optimization": zero, "gradient_clipping": "auto", "zero_allow_untested_optimizer": True, **sizes}
    path = Path(tempfile.mkdtemp()) / f"zero{stage}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def make(folder: Path, root: Path, case: str, factory: Any = ToyEnvironment, **options: Any) -> AlignOPSDTrainer:
    tokenizer = build_tokenizer()
    arguments = DEFAULTS | BASE | options
    trainer = AlignOPSDTrainer(
        str(root / "policy"),
        AlignOPSDConfig(output_dir=str(folder), **arguments),
        environment_factory=factory,
        train_dataset=toy_dataset(),
        skill_bank="webshop",
        encoder=str(root / "encoder") if case in ENCODED else "lexical",
        processing_class=tokenizer,
        peft_config=_lora() if case == "lora" else None,
    )
    if case != "sampled":
        scripted(trainer)
    return trainer


def _lora() -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, init_lora_weights=True)


def outcome(trainer: AlignOPSDTrainer) -> dict[str, Any]:
    history = trainer.state.log_history
    return {
        "loss": losses(trainer),
        "norm": [float(entry["grad_norm"]) for entry in history if "grad_norm" in entry],
        "kl": [entry["kl"] for entry in history if "kl" in entry],
        "history": history,
        "held": share_held(trainer),
        "weights": whole_weights(trainer),
    }


def watch_lengths(trainer: AlignOPSDTrainer) -> list[int]:
    """The longest response of each generation, that is, how many forwards it took this process."""
    inner, found = trainer.backend.sampler, []

    def make(*settings: Any) -> Scripted:
        def generate(prompts: Any) -> Any:
            responses = sampler.respond(prompts)
            found.append(max(map(len, responses.ids)))
            return responses

        sampler = inner(*settings)
        return Scripted(generate)

    trainer.backend.sampler = make
    return found


def whole_weights(trainer: AlignOPSDTrainer) -> dict[str, torch.Tensor]:
    """The trained parameters, gathered; `get_state_dict` gives them to process 0 only."""
    accelerator = trainer.accelerator
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        import deepspeed

        model = accelerator.unwrap_model(trainer.model)
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            found = {name: value.detach().clone() for name, value in model.named_parameters()}
    else:
        found = accelerator.get_state_dict(trainer.model_wrapped)
    return {name: value.float().cpu() for name, value in found.items()}


def whole_parameters(trainer: AlignOPSDTrainer) -> tuple[int, int]:
    """How many parameters are not in shards after a forward without a backward, and when they are pushed to vLLM."""

    def count() -> int:
        return sum(not isinstance(value, DTensor) for value in trainer.model.parameters())

    with torch.no_grad():
        trainer.model(input_ids=torch.full((1, 4), 5))
    after_scoring = count()
    strategies.reshard(trainer.model)
    return after_scoring, count()


def share_held(trainer: AlignOPSDTrainer) -> float:
    """The share of the policy's parameters that this process holds between two steps."""
    parameters = list(trainer.accelerator.unwrap_model(trainer.model_wrapped).parameters())
    total = sum(getattr(value, "ds_numel", value.numel()) for value in parameters)
    return sum((value.to_local() if hasattr(value, "to_local") else value).numel() for value in parameters) / total


def run(root: Path, strategy: str, case: str) -> None:
    folder = root / strategy / case
    trainer = make(folder, root, case, **TALK | {"merge_rows": False} if case == ROWS else CASES[case])
    assert trainer.accelerator.num_processes == 2, "not a two-process run"
    assert trainer.accelerator.distributed_type == EXPECTED.get(strategy, DistributedType.DEEPSPEED)
    if strategy.startswith("zero"):
        assert trainer.accelerator.state.deepspeed_plugin.zero_stage == int(strategy[-1])
    longest = watch_lengths(trainer)
    trainer.train()
    embedding = trainer.encoder(["go zero left"]) if case in ENCODED and trainer.encoder else None
    result = outcome(trainer) | {"embedding": embedding, "longest": longest}
    if case == "plain" and strategy == "fsdp2":
        result["whole_after_scoring"], result["whole_before_push"] = whole_parameters(trainer)
    torch.save(result, root / strategy / f"{case}_{os.environ['RANK']}.pt")
    if case == "plain":
        trainer.save_model()
    if case == "plain" and strategy != "ddp":
        resume(root, strategy, folder)


def resume(root: Path, strategy: str, folder: Path) -> None:
    """From the checkpoint of the first step, in the form of the launch configuration; FSDP2 in the other form too."""
    resumed = make(folder, root, "plain", **CASES["plain"] | {"save_strategy": "no"})
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    torch.save(outcome(resumed), root / strategy / f"resumed_{os.environ['RANK']}.pt")
    if strategy != "fsdp2":
        return
    other, adam = root / strategy / "full", {"optim": "adamw_torch", "learning_rate": 1e-2}  # with a state to resume
    for name, options in (("full", {}), ("full_resumed", {"save_strategy": "no"})):
        trainer = make(other, root, "plain", **CASES["plain"] | adam | options)
        _checkpoints(trainer, "FULL_STATE_DICT")
        trainer.train(resume_from_checkpoint=str(other / "checkpoint-1") if name == "full_resumed" else None)
        torch.save(outcome(trainer), root / strategy / f"{name}_{os.environ['RANK']}.pt")
        _checkpoints(trainer, "SHARDED_STATE_DICT")


def _checkpoints(trainer: AlignOPSDTrainer, kind: str) -> None:
    plugin = trainer.accelerator.state.fsdp_plugin
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type(kind)


def run_down(root: Path, strategy: str) -> None:
    """All save and all raise in the second round; the run can be resumed."""
    folder = root / strategy / "down"
    trainer = make(folder, root, "down", factory=Down)
    inner = trainer.rollouts.play_groups

    def play(asked: Any) -> Any:
        Down.broken = asked.update == 1
        return inner(asked)

    trainer.rollouts.play_groups = play
    message = None
    try:
        trainer.train()
    except EnvironmentsDown as error:
        message = str(error)
    Down.broken = False
    resumed = make(folder, root, "down", factory=Down)
    resumed.train(resume_from_checkpoint=True)
    torch.distributed.barrier()  # the first process still writes
    result = outcome(resumed) | {"message": message, "files": sorted(path.name for path in folder.glob("*/*"))}
    torch.save(result, root / strategy / f"down_{os.environ['RANK']}.pt")


def run_failing(root: Path, strategy: str) -> None:
    trainer = make(root / strategy / "failing", root, "failing", factory=Failing)
    trainer.train()
    torch.save(outcome(trainer), root / strategy / f"failing_{os.environ['RANK']}.pt")


def prepare(folder: Path) -> None:
    """The policy and the encoder that all runs start from."""
    build_model(build_tokenizer()).save_pretrained(folder / "policy")
    make_encoder(folder)


if __name__ == "__main__":
    gc.freeze()  # what was imported: each training would look through it for garbage
    target = Path(sys.argv[1])
    look_like_gpus()
    for one in sys.argv[2:]:
        use(one)
        (target / one).mkdir(parents=True, exist_ok=True)
        for name in RUNS[one]:
            print(one, name, round(time.perf_counter(), 1), flush=True)
            if name in ("down", "failing"):
                {"down": run_down, "failing": run_failing}[name](target, one)
            else:
                run(target, one, name)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a process that leaves while the other still reads from it can crash that one
        time.sleep(1.0)  # the other one may still read the barrier's own answer
        torch.distributed.destroy_process_group()
