"""WebShop as an environment: prompts, parsed actions, terminal rewards, many sessions over one shop."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from alignopsd_trl.environments.base import Opening, Projection, Step, TextEnvironment
from alignopsd_trl.environments.batch import SerialBatch
from alignopsd_trl.environments.cache import cache_folder
from alignopsd_trl.environments.webshop.engine import pages
from alignopsd_trl.environments.webshop.engine.files import DataFiles
from alignopsd_trl.environments.webshop.engine.goals import CONSTRUCT_SEED, SHUFFLE_SEED, GoalList
from alignopsd_trl.environments.webshop.engine.index import data_checksum, open_catalogue
from alignopsd_trl.environments.webshop.engine.pages import Role
from alignopsd_trl.environments.webshop.engine.session import Effect, ShopSession
from alignopsd_trl.environments.webshop.engine.shop import Shop
from alignopsd_trl.environments.webshop.options import WebShopOptions
from alignopsd_trl.environments.webshop.prompt import WebShopPrompt, project

KEPT_SHOPS = 256  # goal lists of different seeds that a process keeps (`splits="released"` has one a group)


class Shops:
    """The shops of one set of options: one catalogue, and a goal list for each seed. ``None`` is the canonical list."""

    def __init__(self, options: WebShopOptions):
        self.options = options
        self.catalogue = open_catalogue(
            options.data_dir,
            data_variant=options.data_variant,
            num_products=options.num_products,
            cache_dir=options.cache_dir,
            lenient=options.lenient,
        )
        self.of_seed = lru_cache(maxsize=KEPT_SHOPS)(self._of_seed)

    def _of_seed(self, seed: int | None = None) -> Shop:
        options = self.options
        goals = GoalList(
            self.catalogue,
            human_goals=options.human_goals,
            construct_seed=CONSTRUCT_SEED if seed is None else seed,
            shuffle_seed=SHUFFLE_SEED if seed is None else seed,
            lenient=options.lenient,
        )
        return Shop(
            self.catalogue,
            goals,
            nouns=options.nouns,
            show_attributes=options.show_attributes,
            specials=options.specials,
            results_per_page=options.results_per_page,
        )


class Shopper(TextEnvironment):
    """A shopper with a session in one of the shops."""

    concurrent = True  # it draws from a generator of its own

    def __init__(self, shops: Shops, prompt: WebShopPrompt | None = None):
        self._shops, self.options = shops, shops.options
        self.prompt = prompt or WebShopPrompt(self.options.template)
        self.history_length, self.max_turns = self.options.history_length, self.options.max_turns
        self._session: ShopSession | None = None
        self._task_text = ""

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return project(response)

    def _live(self) -> ShopSession:
        if self._session is None:
            raise RuntimeError("step before reset; call reset(goal_index=...) first")
        return self._session

    def step(self, action: str) -> Step:
        """Executes any string. ``metrics``: whether the action was admissible. ``info``: the raw observation, and the
        breakdown at a purchase."""
        session = self._live()
        admitted = session.admits(action)
        effect = session.step(action)
        info: dict[str, Any] = {"raw_observation": session.text}
        if effect.breakdown is not None:
            info["breakdown"] = effect.breakdown
        done, won, score = self._result(effect)
        return Step(
            observation=self._observation(),
            reward=self._terminal(won, score) if done else 0.0,
            done=done,
            won=won,
            score=score,
            admissible=self._admissible(),
            valid=admitted or self.options.validity == "format",
            metrics={"admissible": admitted},
            info=info,
        )

    def _result(self, effect: Effect) -> tuple[bool, bool, float]:
        """Returns whether the episode ends with an action's effect, whether it is won, and its score."""
        return effect.done, effect.done and effect.reward == 1.0, float(effect.reward)

    def _terminal(self, won: bool, score: float) -> float:
        return score if self.options.reward == "score" else self.options.won_reward * won

    def _admissible(self) -> tuple[str, ...]:
        """Returns the actions on offer; compact ones leave out the click on the search button, which does nothing."""
        actions = prompt_actions(self._live())
        compact = self.options.observation == "compact"
        return tuple(action for action in actions if action != "click[search]") if compact else actions

    def _observation(self) -> str:
        session = self._live()
        if self.options.observation == "compact":
            return compact_observation(session)
        return prompt_observation(session.text, self._task_text)


class WebShopEnvironment(Shopper):
    """One shopper. It reads the task columns ``goal_index`` and, in the released splits, ``env_seed``."""

    def reset(self, goal_index: int, env_seed: int | None = None, dynamics_seed: int = 0, **_: Any) -> Opening:
        """Starts the episode of a goal.

        Args:
            goal_index: of the goal list; negative ones count from the end.
            env_seed: of the goal list; None for the canonical one.
            dynamics_seed: of the random search ``<r>``.

        Raises:
            IndexError: if there is no such goal.
        """
        shop = self._shops.of_seed(env_seed)
        self._session = ShopSession(shop, shop.goal(goal_index), Random(dynamics_seed))
        self._task_text = self._session.text.split(pages.SEPARATOR)[2]
        return Opening(
            self._observation(), self._task_text, self._admissible(), category=self._session.goal["category"]
        )


def prompt_observation(raw: str, task_text: str) -> str:
    """Returns the pieces after the task, each in single quotes; a page without the task is returned unchanged."""
    pieces = raw.split(pages.SEPARATOR)
    if task_text not in pieces:
        return raw
    after = pieces[pieces.index(task_text) + 1 :]
    return pages.SEPARATOR.join(f"'{piece}'" for piece in after)


def prompt_actions(session: ShopSession) -> tuple[str, ...]:
    """Returns the actions on offer as a prompt lists them."""
    search = ("search[<your query>]",) if session.has_search_bar else ()
    return search + tuple(f"click[{name}]" for name in session.clickables)


def compact_observation(session: ShopSession) -> str:
    """Returns the page without the instruction and without texts that the list of actions repeats, and with the chosen
    options, which mode ``text`` does not show."""
    shown = session.pieces[0 if session.has_search_bar else 2 :]
    kept = [piece for piece in shown if piece.role in (Role.TEXT, Role.PRODUCT) and piece.text != "Rating: N.A."]
    if session.has_search_bar:
        kept = kept[:1]
    texts = [text.lower() for piece in kept if (text := pages.plain_piece(piece.text))]
    return " ; ".join([*texts, *(f"chosen {value}" for value in session.options.values())])


class WebShopFactory:
    """Makes shoppers over one shop, which is opened at first use, so that a factory can be sent to a process."""

    def __init__(self, options: WebShopOptions, kind: type[Shopper] = WebShopEnvironment):
        self.options, self.kind = options, kind

    def __call__(self) -> Shopper:
        return self.kind(open_shops(self.options))

    def batch(self, size: int, time_limit: float = 60.0) -> SerialBatch:
        """Makes a batch with all shoppers in this process. No call can hang, so the time limit is not used."""
        shops, prompt = open_shops(self.options), WebShopPrompt(self.options.template)
        return SerialBatch([self.kind(shops, prompt) for _ in range(size)])


def open_shops(options: WebShopOptions) -> Shops:
    """Opens the shops of some options, once per process as long as the data files do not change."""
    files = DataFiles.find(options.data_dir, options.data_variant)
    cache = Path(options.cache_dir) if options.cache_dir is not None else cache_folder("webshop")
    return _shops(options, data_checksum(files, cache, options.num_products, options.lenient))


@lru_cache(maxsize=8)
def _shops(options: WebShopOptions, checksum: str) -> Shops:
    return Shops(options)
