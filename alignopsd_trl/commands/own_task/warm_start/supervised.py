"""Trains on demonstrations with TRL's `SFTTrainer`: a warm-up and a cosine over a budget of minutes or of updates, and
the weights of the lowest held-out loss."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig
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
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig, SFTTrainer

from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.agreement import WITH_SKILL, Agreement, HeldOutTurn, turns_of
from alignopsd_trl.commands.own_task.warm_start.precision import bfloat16_pays
from alignopsd_trl.common.errors import Terminated
from alignopsd_trl.common.progress import duration
from alignopsd_trl.common.statistics import spread

IGNORED = -100
PROMPT_WEIGHT, PROMPTS_FIRST = 0.25, 0.3
"""Weight of the loss on prompts, and the share of the budget in which a fresh model learns to copy from them."""
WARM_UP = 0.05
"""Share of the budget in which the learning rate rises."""
EVALUATIONS, EVERY, REST = 8, 30.0, 6.0
"""Evaluations on held-out turns: so many, or one in so many seconds, and so many times their own time apart; the last
one is at the end."""
HELD_OUT, HELD_TURNS = 0.1, {True: 128, False: 32}
"""Share of held-out tasks, and their turns at most, for a fresh and a pretrained model."""
WINDOW = 4
"""Updates whose rows are sorted by length together, so that each kind of rows comes in every so many."""
FORWARD, TOKENS, CHARACTERS = 4, 2048, 3
"""Rows and tokens of a pretrained model's forward at most, one row at least: an update accumulates several forwards, so
that its memory does not grow with its rows. A token has about so many characters at least."""
SAID_EVERY = 10.0
"""Seconds between two lines of progress."""
LOOKS, COOLED = 2, 0.75
"""Last comparisons whose mean says that the skill is read, since one with so few turns is not sure; the spent share of
the budget, and so the low learning rate, from which training then goes on."""
USED = ("prompt", "completion", "tools", "input_ids", "completion_mask")
"""Columns of the demonstrations that training reads."""


class Budget(TrainerCallback):
    """Ends training when its minutes or updates are spent, prints its progress, and keeps the best weights.

    Args:
        minutes: wall-clock time of training; `None` if the number of updates is given.
        updates: that number.
        until_read: mean agreement on held-out turns with the skill after which training cools down to its end.

    Attributes:
        best: trained weights of the lowest held-out loss; empty before the first evaluation, and if the number of
            updates is given.
        best_at: the update of these weights.
        history: the comparisons with the held-out turns, oldest first.
    """

    def __init__(self, minutes: float | None, updates: float = -1, until_read: float | None = None):
        self.minutes, self.updates, self.until_read = minutes, updates, until_read or math.inf
        self.begun = self.said = self.evaluated = time.monotonic()
        self.cpu, self.pause, self.lowest = time.process_time(), 0.0, math.inf
        self.best, self.best_at = dict[str, Tensor](), 0
        self.history = list[Agreement]()

    def spent(self, step: int) -> float:
        """Returns the spent share of the budget, after so many updates."""
        if self.minutes is None:
            return step / self.updates
        return (time.monotonic() - self.begun) / (60 * self.minutes)

    def on_train_begin(self, *given: Any, **_: Any) -> None:
        self.begun = self.said = self.evaluated = time.monotonic()
        self.pause = min(EVERY, 60 * (self.minutes or math.inf) / EVALUATIONS)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        ended = self.spent(state.global_step) >= 1
        control.should_training_stop |= ended
        control.should_evaluate = ended or time.monotonic() - self.evaluated >= self.pause
        control.should_log = control.should_evaluate or time.monotonic() - self.said >= SAID_EVERY

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if "loss" in (logs := given["logs"]):
            self._say(state, f"loss {logs['loss']:.3f}, {self._left(state)}")

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        agreement: Agreement = given["metrics"]["agreement"]
        self.pause = max(self.pause, REST * given["metrics"]["seconds"])
        self.evaluated = time.monotonic()
        clock = f"{duration(self.evaluated - self.begun)} gone ({time.process_time() - self.cpu:.0f} CPU s)"
        self._say(state, f"{agreement.told()}; {clock}, {self._left(state)}")
        self.history.append(agreement)
        if self.minutes is not None and agreement.loss < self.lowest:
            self.lowest, self.best_at = agreement.loss, state.global_step
            trained = ((name, one) for name, one in given["model"].named_parameters() if one.requires_grad)
            self.best = {name: one.detach().to("cpu", copy=True) for name, one in trained}
        read = [one.views.get(WITH_SKILL, 0.0) for one in self.history[-LOOKS:]]
        if len(read) == LOOKS and fmean(read) >= self.until_read:
            self.cool(state)

    def cool(self, state: TrainerState) -> None:
        """Shortens the budget to what is spent and a last part, in which the learning rate is low."""
        self.until_read, share = math.inf, min(1.0, self.spent(state.global_step) / COOLED)
        self.updates, self.minutes = share * self.updates, self.minutes and share * self.minutes
        self._say(state, f"the skill is read: training cools down, {self._left(state)}")

    def _say(self, state: TrainerState, text: str) -> None:
        self.said = time.monotonic()
        print(f"{state.global_step} updates: {text}", flush=True)

    def _left(self, state: TrainerState) -> str:
        left = max(0.0, (time.monotonic() - self.begun) * (1 / self.spent(state.global_step) - 1))
        return f"{duration(left)} left"


class SimilarLengths(Sampler[int]):
    """Spreads the rows of each kind evenly over an epoch, and puts rows of similar length of a window into the same
    batch.

    Args:
        window: rows that are sorted together.
        kinds: the kind of each row, such as a first turn without a skill; one kind by default.
        seed: of the order, which evaluations by the clock then leave as it is.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, window: int, kinds: Sequence[Hashable] = (), seed: int = 0
    ):
        self.lengths, self.batch_size, self.window = lengths, batch_size, window
        self.kinds = kinds or [None] * len(lengths)
        self.draw = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self.lengths), generator=self.draw).tolist()
        for near in torch.tensor(spread(order, self.kinds)).split(self.window):
            batches = torch.tensor(sorted(near.tolist(), key=self.lengths.__getitem__)).split(self.batch_size)
            for number in torch.randperm(len(batches), generator=self.draw):
                yield from batches[number].tolist()


class WarmStartTrainer(SFTTrainer):
    """An `SFTTrainer` with a `Budget`, which also trains fresh models.

    Args:
        fresh: whether the model starts from random weights, and so learns prompts at first.

    Attributes:
        interrupted: the error of Ctrl-C or SIGTERM that ended training; else `None`.
    """

    interrupted: KeyboardInterrupt | Terminated | None = None

    def __init__(
        self,
        *given: Any,
        budget: Budget,
        fresh: bool,
        learnt: Sequence[Mapping[str, Any]],
        held: Sequence[Mapping[str, Any]],
        **more: Any,
    ):
        self.budget, self.fresh = budget, fresh
        self.kinds = [(bool(row.get("skilled")), not row.get("turn")) for row in learnt]
        self.held_skilled = [bool(row.get("skilled")) for row in held]
        data = _dataset(learnt), _dataset(held)
        super().__init__(*given, train_dataset=data[0], eval_dataset=data[1], callbacks=[budget], **more)
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the tokens of all of an update's forwards

    def _get_train_sampler(self, train_dataset: Any = None) -> SimilarLengths:
        rows: Any = train_dataset or self.train_dataset
        lengths, forward = [len(ids) for ids in rows["input_ids"]], self.args.train_batch_size
        window = WINDOW * self.args.gradient_accumulation_steps * forward
        return SimilarLengths(lengths, forward, window, self.kinds, self.args.seed)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Makes a scheduler whose rate follows the spent budget."""
        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler = LambdaLR(chosen, lambda step: rate(self.budget.spent(step)))
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns the loss of responses, and of prompts while a fresh model learns these, as a mean over the responses'
        tokens of an update. TRL's own loss also computes entropies and accuracies, with which a tiny model makes a
        third fewer updates in the same time."""
        reads_prompts = self.fresh and self.budget.spent(self.state.global_step) < PROMPTS_FIRST
        with self.accelerator.autocast():
            loss = loss_of(self.accelerator.unwrap_model(self.model), inputs, reads_prompts)
        return loss * (inputs["labels"] != IGNORED).sum() / num_items_in_batch

    def evaluate(self, *given: Any, **more: Any) -> dict[str, Any]:
        """Compares the model with the held-out turns, in the place of TRL's evaluation."""
        begun, model = time.monotonic(), self.accelerator.unwrap_model(self.model).eval()
        turns, skilled = list[HeldOutTurn](), iter(self.held_skilled)
        for inputs in self.get_eval_dataloader():
            ids, chosen = inputs["input_ids"], inputs["labels"] != IGNORED
            with torch.no_grad(), self.accelerator.autocast():
                logits, wanted = predictions(model, hidden_states(model, inputs), ids, chosen)
            losses = functional.cross_entropy(logits, wanted, reduction="none")
            turns += turns_of(ids, chosen, losses, logits.argmax(-1) == wanted, list(islice(skilled, len(ids))))
        metrics = {"agreement": Agreement(turns, self.processing_class), "seconds": time.monotonic() - begun}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def train_and_keep_the_best(self) -> int:
        """Trains until the budget is spent or an interrupt, which is raised if there are no weights to keep. The model
        then has the weights of the lowest held-out loss, or the last ones if the number of updates is given. Returns
        the update that made them."""
        try:
            self.train()
        except (KeyboardInterrupt, Terminated) as stop:
            if not (self.budget.best if self.budget.minutes is not None else self.state.global_step):
                raise
            self.interrupted = stop
        self.accelerator.unwrap_model(self.model).load_state_dict(self.budget.best, strict=False)
        return self.budget.best_at if self.budget.best else self.state.global_step


def loss_of(model: PreTrainedModel, inputs: Mapping[str, Tensor], reads_prompts: bool) -> Tensor:
    """Returns the mean cross-entropy of responses, plus `PROMPT_WEIGHT` times that of prompts if ``reads_prompts``.

    Args:
        inputs: ``input_ids``, ``attention_mask`` and ``labels`` of shape `(B, T)`; labels are -100 on prompts and
            padding.
    """
    ids, mask, wanted = inputs["input_ids"], inputs["attention_mask"], inputs["labels"] != IGNORED
    hidden = hidden_states(model, inputs)
    response = functional.cross_entropy(*predictions(model, hidden, ids, wanted))
    if not reads_prompts:
        return response
    return response + PROMPT_WEIGHT * functional.cross_entropy(*predictions(model, hidden, ids, mask.bool() & ~wanted))


def hidden_states(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Returns the decoder's last hidden states, of shape `(B, T, width)`."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return model.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state


def predictions(model: PreTrainedModel, hidden: Tensor, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the logits of the chosen tokens, each after the hidden state before it, and these tokens."""
    chosen = chosen[:, 1:]
    return model.get_output_embeddings()(hidden[:, :-1][chosen]).float(), ids[:, 1:][chosen]


def rate(spent: float) -> float:
    """Returns the learning rate, as a share of its peak, when a share of the budget is spent."""
    return min(1.0, spent / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, spent)))


def held_out(rows: Sequence[Mapping[str, Any]], turns: int) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Splits rows by task into training rows and at most ``turns`` held-out rows; a single task's rows are both."""
    tasks = [str(row.get("task_id", number)) for number, row in enumerate(rows)]
    names = sorted(set(tasks))
    if len(names) < 2:
        return list(rows), list(rows)
    held = set(random.Random(0).sample(names, max(1, int(HELD_OUT * len(names)))))
    kept = [row for row, task in zip(rows, tasks, strict=True) if task in held]
    learnt = [row for row, task in zip(rows, tasks, strict=True) if task not in held]
    return learnt, random.Random(0).sample(kept, min(turns, len(kept)))


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    config: WarmStartConfig,
) -> tuple[WarmStartTrainer, int]:
    """Trains a model on rows of TRL's conversational prompt-completion form, or of ``input_ids`` and
    ``completion_mask``. Returns the trainer, which holds the trained model, and the update of its weights."""
    disable_progress_bar()
    disable_progress_bars()
    counted = config.max_steps > 0
    responses = sum(one["role"] == "assistant" for row in rows for one in row.get("completion", ())) or len(rows)
    learnt, held = held_out(rows, max(1, HELD_TURNS[config.fresh] * len(rows) // responses))
    bf16 = not config.fresh and bfloat16_pays(model.config.get_text_config().hidden_size)
    adapters = LoraConfig(r=config.lora_r, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = WarmStartTrainer(
        model,
        args=_arguments(folder, config, learnt, bf16),
        processing_class=tokenizer,
        peft_config=adapters if config.use_peft else None,
        budget=Budget(None if counted else config.time, config.max_steps, config.until_read),
        fresh=config.fresh,
        learnt=learnt,
        held=held,
    )
    longest = f"{config.max_steps} updates" if counted else f"{config.time:g} min"
    print(f"{config.model} learns from {len(learnt)} rows, {longest}{', in bfloat16' * bf16}", flush=True)
    return trainer, trainer.train_and_keep_the_best()


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    return Dataset.from_list([{name: row[name] for name in USED if row.get(name)} for row in rows])


def rows_at_once(rows: Sequence[Mapping[str, Any]], batch: int) -> int:
    """Returns how many rows of an update a pretrained model reads in one forward."""
    longest = max(
        len(row.get("input_ids", ())) or sum(len(str(row.get(name, ""))) for name in USED) // CHARACTERS for row in rows
    )
    most = min(FORWARD, TOKENS // max(1, longest))
    return max(one for one in range(1, max(1, most) + 1) if batch % one == 0)


def _arguments(folder: Path, config: WarmStartConfig, rows: Sequence[Mapping[str, Any]], bf16: bool) -> SFTConfig:
    batch = min(config.batch_size, len(rows))
    forward = batch if config.fresh else rows_at_once(rows, batch)
    return SFTConfig(
        output_dir=str(folder),
        max_steps=config.max_steps if config.max_steps > 0 else 10**6,
        per_device_train_batch_size=forward,
        gradient_accumulation_steps=batch // forward,
        per_device_eval_batch_size=config.batch_size,
        learning_rate=config.rate,
        adam_beta2=0.98,
        weight_decay=0.01,
        max_length=None,
        completion_only_loss=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=bf16,
        gradient_checkpointing=False,
        seed=config.seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
