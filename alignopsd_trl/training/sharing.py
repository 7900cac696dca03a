"""A trainer whose model is shared as a recipe's is: one commit, a card of our own, no token and no trajectory in it."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from alignopsd_trl.evaluation import EvaluationResult
from alignopsd_trl.runs.files import plain, replacing, write_text
from alignopsd_trl.sharing.card import model_card
from alignopsd_trl.sharing.facts import trainer_results
from alignopsd_trl.sharing.hub import OF_A_MODEL, OF_A_RUN, PushFailed, push_files

logger = logging.getLogger(__name__)


class Sharing(GRPOTrainer):
    """A trainer that writes its own card and pushes what a card is about, and nothing else of its folder."""

    def _remember(self, result: EvaluationResult) -> None:
        """Keeps an evaluation for the card: of the initial policy, and the last one since."""
        when = "after" if self.state.global_step else "before"
        self.evaluations[when] = plain(result.to_dict(outcomes=False))

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        licence: str | None = None,
    ) -> None:
        """Writes ``README.md`` into the output folder: what was trained on what and how well, as far as this trainer
        knows. Call `evaluate_panel` before the first update and after the last, and the card has both.

        Args:
            model_name (`str`, *optional*):
                Title of the card; the repository's or the folder's name by default.
            dataset_name, tags (*optional*):
                Of TRL's signature; a card names the environment in place of a data set, and the method as a tag.
            licence (`str`, *optional*):
                Licence id of the weights.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        results = trainer_results(self, self._environment_factory, self.evaluations)
        name = model_name or self.args.hub_model_id or folder.name
        place = self.hub_model_id or self.args.hub_model_id or str(self.args.output_dir)
        write_text(folder / "README.md", model_card(results, name, licence, place))

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **card: Any,
    ) -> Any:
        """As in [`~transformers.Trainer`], but one commit of model, tokenizer, card and results alone.

        Raises:
            PushFailed: if the Hub refused or could not be reached; the model is in the output folder.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.hub_model_id = self.hub_model_id or self.args.hub_model_id or Path(self.args.output_dir).name
        self.create_model_card(**card)

        def own_card(folder: Path, repository: str) -> dict[str, bytes]:
            self.hub_model_id = repository  # whole, whatever was asked for
            self.create_model_card(**card)
            return {}

        return self._push(Path(self.args.output_dir), OF_A_RUN, commit_message, token, revision, blocking, own_card)

    def _push(
        self,
        folder: Path,
        patterns: tuple[str, ...],
        message: str | None,
        token: str | None = None,
        revision: str | None = None,
        blocking: bool = True,
        instead: Any = lambda folder, repository: {},
    ) -> Any:
        return push_files(
            folder,
            self.hub_model_id,
            "trainer.push_to_hub()",
            token or self.args.hub_token,
            self.args.hub_private_repo,
            patterns,
            instead,
            commit_message=message,
            revision=revision or self.args.hub_revision,
            run_as_future=not blocking,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """A checkpoint's model while training goes on (``hub_strategy``); a push that fails does not end the run."""
        if not self.is_world_process_zero() or self.args.hub_strategy == "end":
            return
        try:
            self._push(Path(checkpoint_folder), OF_A_MODEL, f"Training in progress, step {self.state.global_step}")
        except PushFailed as error:
            logger.warning(f"checkpoint of update {self.state.global_step}: {error}")

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """transformers pickles its arguments beside the model: the token is not among them. In the run's own folder,
        where there is no mark that is written last, each file is replaced in one step."""
        target = Path(output_dir or self.args.output_dir)
        token, self.args.hub_token = self.args.hub_token, None
        try:
            with replacing(target) if target == Path(self.args.output_dir) else nullcontext(target) as place:
                super()._save(str(place), state_dict)
        finally:
            self.args.hub_token = token
