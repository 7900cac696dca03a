"""Makes the tiny policy that a recipe starts from.

    python -m assets.tiny_policies.make_policy webshop_tiny --output alignopsd_trl/data/tiny_webshop
    python -m assets.tiny_policies.make_policy alfworld_pairs

1. Scripted players play the training tasks; their turns become demonstrations, with and without a skill block.
2. Every word of them and of the skill bank becomes one token.
3. A Qwen2 model of a million parameters is trained on the responses.
4. Several rounds of this, where the curriculum has them (`curricula`).
5. The panel says what came out, with and without skills; of a policy that reads its skill, by the skill in the prompt.

Needs one CPU core, 3 GB and about 20 minutes. Seeds are fixed: the same versions on the same machine give the same
weights. `recipe.json` beside the weights holds the options and limits that the policy was made for. ``--start`` trains
a policy further, on other draws where ``--seed`` is another.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.supervised import train
from alignopsd_trl.commands.own_task.warm_start.tiny import CONTEXT, ROLES, tiny_model
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.skills import Retrieved, SkillBank, render, skill_source
from assets.tiny_policies.curricula import CURRICULA, Setting
from assets.tiny_policies.demonstrations import Demonstration
from assets.tiny_policies.heeding import ANY_LENGTH
from assets.tiny_policies.reading import WORLDS
from assets.tiny_policies.reading import main as reading
from assets.tiny_policies.storage import store_in_half
from assets.tiny_policies.tokenizer import build_tokenizer

IDENTIFIER = re.compile(r"click\[[0-9]{10}\]")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", choices=sorted(CURRICULA))
    parser.add_argument("--output", type=Path, help="folder of the policy; outputs/policies/ENVIRONMENT")
    parser.add_argument("--start", type=Path, help="folder of a policy to train further, with its tokenizer")
    parser.add_argument("--passes", type=int, default=4, help="episodes per training task")
    parser.add_argument("--copies", type=int, default=1, help="of demonstrations that copy a product's identifier")
    parser.add_argument("--actions", type=float, default=0.0, help="share that is learnt from its action alone")
    parser.add_argument("--steps", type=int, default=1000, help="supervised updates")
    parser.add_argument("--batch", type=int, default=64, help="turns an update")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--layers", type=int, default=4, help="of a model that does not start from another")
    parser.add_argument("--tasks", type=int, default=200, help="tasks of the measurement at the end; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(**CURRICULA[parser.parse_args(argv).environment].training)
    arguments = parser.parse_args(argv)
    torch.manual_seed(arguments.seed)
    curriculum = CURRICULA[arguments.environment]
    output = arguments.output or Path("outputs/policies") / arguments.environment
    setting = curriculum.setting
    suite = load(setting.environment, **setting.environment_options)
    bank = SkillBank.load(setting.skill_bank, load_encoder(setting.encoder))
    shown = list(curriculum.demonstrations(suite, bank, arguments.passes, arguments.seed))
    shown += [one for one in shown if IDENTIFIER.search(one.response)] * (arguments.copies - 1)
    if arguments.start:
        tokenizer = AutoTokenizer.from_pretrained(arguments.start, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(arguments.start, local_files_only=True)
    else:
        tokenizer = build_tokenizer(corpus(shown, bank), CONTEXT, curriculum.phrases, curriculum.pieces)
        model = tiny_model(tokenizer, arguments.layers, arguments.seed)
    print(f"{len(shown)} demonstrations, {len(tokenizer)} tokens, {model.num_parameters()} parameters")
    config = WarmStartConfig(
        max_steps=arguments.steps,
        batch_size=arguments.batch,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
    )
    trainer, _ = train(model, tokenizer, encode(tokenizer, shown, arguments.actions, arguments.seed), output, config)
    loss = [one["loss"] for one in trainer.state.log_history if "loss" in one][-1]
    model.save_pretrained(output)
    store_in_half(output)
    model = AutoModelForCausalLM.from_pretrained(output, local_files_only=True)  # what is shipped is measured
    tokenizer.save_pretrained(output)
    made = {
        name: getattr(arguments, name)
        for name in ("passes", "copies", "actions", "layers", "steps", "batch", "learning_rate", "seed")
    }
    if arguments.start:
        made["start"] = json.loads((arguments.start / "recipe.json").read_text(encoding="utf-8"))["made_with"]
    recipe = {**setting.to_dict(), "made_with": made, "loss": round(loss, 4)}
    (output / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    if curriculum.then:
        return main([curriculum.then, "--start", str(output), "--output", str(output), "--tasks", str(arguments.tasks)])
    if arguments.tasks and setting.environment in WORLDS:
        flags = ["--environment", setting.environment, "--model", str(output), "--tasks", str(arguments.tasks)]
        reading([*flags, "--output", str(output / "reading.json")])
    elif arguments.tasks:
        recipe["measured"] = measure(model, tokenizer, suite, bank, setting, arguments.tasks)
        (output / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")


def corpus(shown: Sequence[Demonstration], bank: SkillBank) -> Iterator[str]:
    """All that the vocabulary covers: the roles, the demonstrations and every item of the bank."""
    yield from ROLES
    for demonstration in shown:
        yield from (demonstration.prompt, demonstration.response)
    skills = (*bank.general, *(skill for kind in bank.task_types for skill in kind.skills))
    yield render(Retrieved((), skills, (0.0,) * len(skills), (), bank.mistakes), len, ANY_LENGTH * len(skills)).text


def encode(
    tokenizer: PreTrainedTokenizerBase, demonstrations: Sequence[Demonstration], actions: float = 0.0, seed: int = 0
) -> list[dict[str, list[int]]]:
    """Rows for `train`: the tokens of a whole conversation, and which of them are learnt.

    Args:
        actions (`float`, *optional*, defaults to 0.0):
            Share of the demonstrations whose thought counts as prompt, so that their action alone is learnt.
    """
    chats = [[{"role": "user", "content": shown.prompt}] for shown in demonstrations]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    responses = tokenizer([shown.response for shown in demonstrations])["input_ids"]
    draw, ends = random.Random(seed), tokenizer("</think><action>")["input_ids"][-1]
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = [*prompt, *response, tokenizer.eos_token_id]
        shown = len(prompt) + (response.index(ends) + 1 if draw.random() < actions else 0)
        rows.append({"input_ids": ids, "completion_mask": [0] * shown + [1] * (len(ids) - shown)})
    return rows


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    suite: Suite,
    bank: SkillBank,
    setting: Setting,
    tasks: int,
) -> list[dict[str, Any]]:
    """Success, score and invalid actions on the panel's first tasks: temperatures 0.4 and 1.0, without and with
    skills."""
    panel, source = suite.panel(setting.panel).head(tasks), skill_source(bank, tokenizer, setting.skill_tokens)
    limits = {name: getattr(setting, name) for name in ("max_prompt_length", "max_completion_length")}
    model.eval()
    rows = []
    for temperature in (0.4, 1.0):
        for skills in (None, source):
            result, _ = evaluate(
                model, tokenizer, suite.factory, panel, skills=skills, temperature=temperature, batch_size=100, **limits
            )
            rows.append(result.to_dict())
            print(f"temperature {temperature}, {'with' if skills else 'without'} skills\n{result.table()}")
    return rows


if __name__ == "__main__":
    main()
