"""Trains on demonstrations with TRL's `SFTTrainer`, and stops when the held-out loss no longer falls."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.trainer_pt_utils import get_length_grouped_indices
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig, SFTTrainer

from alignopsd_trl.own_task.options import WarmStartConfig
from alignopsd_trl.own_task.tokenizer import OPEN
from alignopsd_trl.runs.lost import Terminated
from alignopsd_trl.runs.progress import duration

IGNORED = -100
PROMPT_WEIGHT = 0.25
"""Weight of the loss on prompts, from which a fresh model learns to copy. A pretrained model learns responses alone."""
EXCHANGED = 0.5
"""Share of the rows whose words are exchanged while prompts are learnt."""
PROMPTS_FIRST = 0.3  # share of the updates that learn prompts, if their number is given
HELD_OUT, HELD_TURNS = 0.1, {True: 128, False: 32}
"""Share of held-out tasks, and their turns at most, for a fresh and a pretrained model; their loss ends training."""
WARM_UP, WARM_UP_SHARE = {True: 50, False: 5}, 0.05
"""Updates in which the learning rate rises, for a fresh and a pretrained model; their share with ``max_steps``."""
BETTER = 0.99
"""A loss below this share of the best one counts as an improvement."""
PATIENCE = (8, 3, 3)
"""Evaluations without an improvement before each fall of the learning rate; the last number ends training."""
TIMES = (0.6, 0.8, 1.0)
"""Shares of the time at which the learning rate falls in any case; the last one ends training."""
FALL = 0.25
SAID_EVERY = 15.0  # seconds between two lines of progress


class Budget(TrainerCallback):
    """Lowers the learning rate when the held-out loss stops falling or a share of the time is spent, and ends training
    the third time. Prints one line per evaluation.

    Args:
        minutes: wall-clock time of training.
        warm_up: updates in which the learning rate rises.

    Attributes:
        kept: trained weights at the best evaluation after the first update, for an interrupted run.
        kept_at: the update of these weights; 0 if there are none.
    """

    def __init__(self, minutes: float, warm_up: int):
        self.minutes, self.warm_up = minutes, warm_up
        self.begun = time.monotonic()
        self.falls, self.without_better, self.best = 0, 0, math.inf
        self.kept, self.kept_at = dict[str, Tensor](), 0
        self.out_of_time = False

    @property
    def spent(self) -> float:
        """Minutes since this object was made."""
        return (time.monotonic() - self.begun) / 60

    def rate(self, update: int) -> float:
        """Returns the learning rate as a share of its peak."""
        return min(1.0, (update + 1) / self.warm_up) * FALL**self.falls

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        model: Any = None,
        **_: Any,
    ) -> None:
        loss = (metrics or {})["eval_loss"]
        print(f"{state.global_step} updates, {self.spent:.1f} min: held-out loss {loss:.3f}", flush=True)
        if model is not None and state.global_step and (loss < self.best or not self.kept):
            self.kept, self.kept_at = _trained_weights(model), state.global_step
        better = loss < BETTER * self.best
        self.best, self.without_better = min(loss, self.best), 0 if better else self.without_better + 1
        if self.falls < len(PATIENCE) and self.without_better >= PATIENCE[self.falls]:
            self._fall(control)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.spent >= TIMES[self.falls] * self.minutes:
            self.out_of_time = True
            self._fall(control)

    def _fall(self, control: TrainerControl) -> None:
        self.falls, self.without_better = self.falls + 1, 0
        if self.falls == len(TIMES):
            control.should_training_stop = True


def _trained_weights(model: Any) -> dict[str, Tensor]:
    named = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
    return {name: one.detach().to("cpu", copy=True) for name, one in named}


class Progress(TrainerCallback):
    """Prints the progress of training every `SAID_EVERY` seconds.

    Args:
        budget: the time budget; `None` if the number of updates is given.
    """

    def __init__(self, budget: Budget | None):
        self.budget, self.loss = budget, torch.tensor(math.nan)
        self.begun = self.said = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        now, done = time.monotonic(), state.global_step
        if now - self.said < SAID_EVERY:
            return
        self.said = now
        if self.budget is None:
            left = f"about {duration((now - self.begun) / done * (state.max_steps - done))} left"
        else:
            left = f"{duration(max(0.0, 60 * (self.budget.minutes - self.budget.spent)))} left at most"
        print(f"{done} updates: loss {float(self.loss):.3f}, {left}", flush=True)


class SimilarLengths(Sampler[int]):
    """Samples rows so that each batch holds rows of similar length and batches come in random order. `transformers`
    sorts every 50 batches by falling length, so the shortest rows (first pages) come at the end of each 50.

    Args:
        lengths: tokens of each row.
        batch_size: rows of a batch.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int):
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        order = get_length_grouped_indices(self.lengths, self.batch_size)
        whole = len(order) // self.batch_size
        batches = torch.tensor(order[: whole * self.batch_size]).view(whole, self.batch_size)
        yield from batches[torch.randperm(whole)].flatten().tolist()
        yield from order[whole * self.batch_size :]


class WarmStartTrainer(SFTTrainer):
    """An `SFTTrainer` that also trains fresh models, which at first learn prompts too, with a smaller weight.

    Args:
        budget: the time budget; `None` if the number of updates is given.
        fresh: whether the model starts from random weights.

    Attributes:
        interrupted: the error of Ctrl-C or SIGTERM, after which the model has its best weights so far; else `None`.
    """

    interrupted: KeyboardInterrupt | Terminated | None = None

    def __init__(self, *given: Any, budget: Budget | None, fresh: bool, **more: Any):
        self.budget, self.fresh = budget, fresh
        super().__init__(*given, **more)
        self.remove_callback(PrinterCallback)
        self.progress = Progress(budget)
        self.add_callback(self.progress)
        if budget is not None:
            self.add_callback(budget)
        self.words = words_of(self.processing_class) if fresh and budget is not None else None

    def _get_train_sampler(self, train_dataset: Any = None) -> SimilarLengths:
        rows: Any = train_dataset or self.train_dataset
        return SimilarLengths([len(ids) for ids in rows["input_ids"]], self.args.train_batch_size)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Makes a scheduler that follows the budget, if there is one."""
        if self.budget is None:
            return super().create_scheduler(num_training_steps, optimizer)
        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler = LambdaLR(chosen, self.budget.rate)
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns the loss of response tokens, and of prompt tokens while a fresh model learns prompts. TRL's own
        loss computes the logits of all tokens, which takes two fifths of the time if responses are short."""
        reads_prompts = self.fresh and model.training and self._reads_prompts()
        if reads_prompts and self.words is not None:
            inputs = inputs | {"input_ids": exchanged(inputs["input_ids"], self.words)}
        with self.accelerator.autocast():
            loss = loss_of(self.accelerator.unwrap_model(model), inputs, reads_prompts)
        if model.training:
            self.progress.loss = loss.detach()
        return loss

    def train_or_keep_the_best(self) -> None:
        """Trains. After an interrupt the model gets the weights of the best evaluation so far. With a given number of
        updates there are no evaluations, and the model keeps its last weights.

        Raises:
            KeyboardInterrupt, Terminated: if there are no weights to keep.
        """
        try:
            self.train()
        except (KeyboardInterrupt, Terminated) as stop:
            if not (self.budget.kept_at if self.budget is not None else self.state.global_step):
                raise
            self.interrupted = stop
            if self.budget is not None:
                self.accelerator.unwrap_model(self.model).load_state_dict(self.budget.kept, strict=False)

    @property
    def kept_at(self) -> int:
        """The update that made the model's weights."""
        return self.budget.kept_at if self.budget is not None and self.interrupted else self.state.global_step

    def _reads_prompts(self) -> bool:
        if self.budget is None:
            return self.state.global_step < PROMPTS_FIRST * self.state.max_steps
        return self.budget.falls == 0


def words_of(tokenizer: Any) -> Tensor:
    """Returns the ids of whole words in a word-level tokenizer."""
    return torch.tensor([id for token, id in tokenizer.get_vocab().items() if token.startswith(OPEN)])


def exchanged(ids: Tensor, words: Tensor) -> Tensor:
    """Returns the rows, half of them with some words exchanged, each word in the same way all over a row. The next word
    then follows only from earlier places in the row, so the model learns to copy.

    Args:
        ids: of shape `(B, T)`.
        words: ids that may be exchanged.
    """
    rows = [_exchange(row, words) if torch.rand(()) < EXCHANGED else row for row in ids]
    return torch.stack(rows)


def _exchange(row: Tensor, words: Tensor) -> Tensor:
    some = words[torch.rand(len(words)) < torch.rand(())]
    named = torch.arange(int(max(words.max(), row.max())) + 1)
    named[some] = some[torch.randperm(len(some))]
    return named.to(row.device)[row]


def loss_of(model: PreTrainedModel, inputs: Mapping[str, Tensor], reads_prompts: bool) -> Tensor:
    """Returns the mean cross-entropy of responses, plus `PROMPT_WEIGHT` times that of prompts if ``reads_prompts``.

    Args:
        inputs: ``input_ids``, ``attention_mask`` and ``labels`` of shape `(B, T)`; labels are -100 on prompts and
            padding.
        reads_prompts: whether the loss counts prompt tokens.
    """
    ids, mask, wanted = inputs["input_ids"], inputs["attention_mask"], inputs["labels"] != IGNORED
    hidden = model.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    response = _loss(model, hidden, ids, wanted)
    return response + PROMPT_WEIGHT * _loss(model, hidden, ids, mask.bool() & ~wanted) if reads_prompts else response


def _loss(model: PreTrainedModel, hidden: Tensor, ids: Tensor, chosen: Tensor) -> Tensor:
    chosen = chosen[:, 1:]
    logits = model.get_output_embeddings()(hidden[:, :-1][chosen])
    return functional.cross_entropy(logits.float(), ids[:, 1:][chosen])


def held_out(rows: Sequence[Mapping[str, Any]], turns: int) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Splits rows by task into training rows and at most ``turns`` held-out rows; a single task's rows are both."""
    names = sorted({str(row.get("task_id", number)) for number, row in enumerate(rows)})
    if len(names) < 2:
        return list(rows), list(rows)
    held = set(random.Random(0).sample(names, max(1, int(HELD_OUT * len(names)))))
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, row in enumerate(rows):
        parts[str(row.get("task_id", number)) in held].append(row)
    learnt, kept = parts
    return learnt, random.Random(0).sample(kept, min(turns, len(kept)))


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    config: WarmStartConfig,
) -> WarmStartTrainer:
    """Trains a model on rows of TRL's conversational prompt-completion form, or of ``input_ids`` and
    ``completion_mask``.

    Args:
        folder: output folder of the trainer.

    Returns:
        The trainer, which holds the trained model.
    """
    disable_progress_bar()
    disable_progress_bars()
    learnt, held = (list(rows), []) if config.max_steps > 0 else held_out(rows, HELD_TURNS[config.fresh])
    budget = None if config.max_steps > 0 else Budget(config.minutes, WARM_UP[config.fresh])
    trainer = WarmStartTrainer(
        model,
        args=_arguments(folder, config, len(learnt), max(_lengths(tokenizer, rows))),
        train_dataset=_dataset(learnt),
        eval_dataset=_dataset(held) if held else None,
        processing_class=tokenizer,
        peft_config=_adapters(config) if config.use_peft else None,
        budget=budget,
        fresh=config.fresh,
    )
    longest = f"{config.max_steps} updates" if budget is None else f"at most {config.minutes:g} min"
    print(f"{config.model} learns from {len(learnt)} turns, {longest}", flush=True)
    trainer.train_or_keep_the_best()
    return trainer


def _adapters(config: WarmStartConfig) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=config.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")


USED = ("prompt", "completion", "tools", "input_ids", "completion_mask")


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    return Dataset.from_list([{name: row[name] for name in USED if row.get(name)} for row in rows])


def _lengths(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the number of tokens of each row."""
    if "input_ids" in rows[0]:
        return [len(row["input_ids"]) for row in rows]
    whole = [[*row["prompt"], *row["completion"]] for row in rows]
    tools = rows[0].get("tools")
    options: dict[str, Any] = {"tools": tools} if tools else {}
    encoded: Any = tokenizer.apply_chat_template(whole, **options, return_dict=True)
    return [len(one) for one in encoded["input_ids"]]


def _fast_bfloat16(on_gpu: bool) -> bool:
    """Returns whether the GPU, or without one the CPU, multiplies bfloat16 matrices in hardware."""
    if on_gpu:
        return torch.cuda.is_bf16_supported()
    return bool(getattr(torch.cpu, "get_capabilities", dict)().get("amx_bf16"))


def _arguments(folder: Path, config: WarmStartConfig, rows: int, longest: int) -> SFTConfig:
    on_gpu, counted = torch.cuda.is_available(), config.max_steps > 0
    return SFTConfig(
        output_dir=str(folder),
        max_steps=config.max_steps if counted else 10**6,
        per_device_train_batch_size=min(config.batch_size, rows),
        per_device_eval_batch_size=config.batch_size,
        eval_strategy="no" if counted else "steps",
        eval_steps=50 if config.fresh else 20,  # a pretrained model learns a task in fewer updates
        eval_on_start=not counted,
        learning_rate=config.rate,
        lr_scheduler_type="cosine",
        adam_beta2=0.98,
        warmup_steps=WARM_UP_SHARE,
        weight_decay=0.01,
        max_length=longest,
        completion_only_loss=True,
        use_cpu=not on_gpu,
        bf16=not config.fresh and _fast_bfloat16(on_gpu),
        gradient_checkpointing=False,
        seed=config.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=20,
    )
