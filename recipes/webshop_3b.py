"""AlignOPSD on WebShop with Qwen2.5-3B-Instruct, the trainer built by hand: the paper's protocol.

    accelerate launch --config_file recipes/accelerate/fsdp2.yaml recipes/webshop_3b.py DATA [REPOSITORY]

DATA is a folder with WebShop's official files (items_shuffle*.json, items_ins_v2*.json), and REPOSITORY is where the
Hub gets the model. The paper used 2 A800 GPUs. The same settings with flags, a plan and a report:
``alignopsd train webshop_3b``.
"""

import argparse

from accelerate import PartialState

from alignopsd_trl import AlignOPSDConfig, AlignOPSDTrainer
from alignopsd_trl.environments import load

MODEL, ENCODER = "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen3-Embedding-0.6B"


def config(processes: int, **more) -> AlignOPSDConfig:
    """150 rounds of 16 tasks, each played by 8 siblings and trained on in one optimiser step."""
    return AlignOPSDConfig(
        "outputs/webshop_3b",
        method="align_opsd",
        action_filter="webshop",
        num_generations=8,
        per_device_train_batch_size=16 * 8 // processes,
        max_steps=150,
        max_turns=15,
        max_prompt_length=4096,
        max_completion_length=512,
        eval_temperature=0.4,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        beta=0.01,
        logging_steps=1,
        save_steps=25,
        save_total_limit=2,
        **more,
    )


def main(data: str, repository: str | None = None) -> None:
    suite = load("webshop", data_dir=data, reward="score")
    args = config(PartialState().num_processes, hub_model_id=repository)
    trainer = AlignOPSDTrainer(
        MODEL,
        args,
        environment_factory=suite.factory,
        train_dataset=suite.tasks("train"),
        skill_bank="webshop",
        encoder=ENCODER,
    )
    print(trainer.evaluate_panel(suite.panel("test/128")))
    trainer.train()
    print(trainer.evaluate_panel(suite.panel("test/128")))
    trainer.save_model()
    if repository:
        trainer.push_to_hub()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(epilog="with flags, --plan and a report: alignopsd train webshop_3b")
    parser.add_argument("data", help="folder with WebShop's official files")
    parser.add_argument("repository", nargs="?", help="id on the Hub for the model")
    main(**vars(parser.parse_args()))
